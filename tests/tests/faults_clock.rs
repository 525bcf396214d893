//! Clocks that are wrong. Nothing depends on a machine's clock but `recorded_at`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use postonce_tests::{Clock, Consumer, Flow, Ledger, Message, Trial, kafka, payment, payments, postgres, trials};

const LIMIT: Duration = Duration::from_secs(60);
const LIVES: &str = "postonce_worker_lives_total";
/// Ten years and ten years: nothing that is right by chance.
const FAR: [&str; 4] = ["+10y", "-10y", "+5d", "-5d"];

pub fn tests() -> Vec<Trial> {
    trials![
        the_future_is_measured_by_the_messages_clock,
        the_clock_of_the_consumer_is_stepped,
        the_clock_of_postgres_is_stepped,
    ]
}

fn clock() -> Result<Option<Clock>> {
    let clock = Clock::right()?;
    if clock.is_none() {
        eprintln!("skipped: only on Linux can a program be made to look at another clock");
    }
    Ok(clock)
}

fn consume_by(clock: &Clock, flow: &Flow, more: &[&str]) -> Result<Consumer> {
    let environment = clock.environment();
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    flow.consume_in(&environment, more)
}

/// A day after the message's own time is the last moment that an event may have.
fn the_future_is_measured_by_the_messages_clock() -> Result<()> {
    let kafka = kafka();
    let at = |message_time: &str, event: Message| -> Result<Message> {
        Ok(event.timestamp(message_time.parse::<Timestamp>()?.as_millisecond()))
    };
    let event = |name: &str, time: &str| payment(&format!("stripe/acct_1/{name}"), "succeeded", time, 100);
    let messages = [
        // Nobody alive has a clock that says so.
        at("2090-01-01T00:00:00Z", event("far", "2090-01-01T00:00:00Z"))?,
        at("2090-01-01T00:00:00Z", event("last_moment", "2090-01-02T00:00:00Z"))?,
        at("2090-01-01T00:00:00Z", event("too_far", "2090-01-02T00:00:00.000001Z"))?,
        at("2026-01-01T00:00:00Z", event("first_day", "1970-01-01T00:00:00Z"))?,
        // A producer whose clock has lost its battery: its events are not, its messages are from 1970.
        // (To librdkafka a time of 0 is the time of sending.)
        at("1970-01-01T00:00:00.001Z", event("no_battery", "2026-01-01T00:00:00Z"))?,
        at("1970-01-01T00:00:00.001Z", event("all_old", "1970-01-01T12:00:00Z"))?,
    ];
    let flow = Flow::new(&kafka, Ledger::fresh("future")?, "future", 1)?;
    flow.send(messages)?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let outcomes = flow.ledger.outcomes()?;
    ensure!(outcomes == "PPRPRP", "the outcomes are {outcomes}");
    let codes: i64 = flow.ledger.db.one("SELECT count(*) FROM quarantine WHERE code = 'future_time'")?;
    ensure!(codes == 2, "{codes} were refused for their time");
    flow.check_against_undisturbed()?;

    // The same where the consumer's machine believes in another time.
    let Some(clock) = clock()? else { return Ok(()) };
    for offset in ["+100y", "-40y"] {
        clock.set(offset)?;
        let again = Flow::on(&kafka, &flow.topic, Ledger::fresh("future")?)?;
        let consumer = consume_by(&clock, &again, &[])?;
        again.wait_done(LIMIT)?;
        consumer.finish()?;
        ensure!(again.ledger.books()? == flow.ledger.books()?, "other books with a clock at {offset}");
    }
    Ok(())
}

/// By days and years, forth and back, under load.
fn the_clock_of_the_consumer_is_stepped() -> Result<()> {
    let Some(clock) = clock()? else { return Ok(()) };
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("stepped")?, "stepped", 2)?;
    flow.ledger.slow_down(0.05)?;
    flow.send_load(10_000, 8)?;
    // A line for each statement: one of them falls into each of the years.
    let mut consumer = consume_by(&clock, &flow, &["--batch", "200", "--log", "debug"])?;
    for (step, offset) in (1..).zip(FAR) {
        flow.wait_offsets(step * 1_500, LIMIT)?;
        clock.set(offset)?;
    }
    flow.ledger.slow_down(0.0)?;
    flow.wait_done(LIMIT)?;
    // Forward nobody minds; back ends the waits that would last for years, and both begin anew.
    consumer.wait_metric(LIVES, &[], 6.0, LIMIT)?;
    // Once more, while it waits for a message.
    consumer.wait_ready(200, LIMIT)?;
    clock.set("-10y")?;
    consumer.wait_metric(LIVES, &[], 8.0, LIMIT)?;
    flow.send(payments("later", 100))?;
    flow.wait_done(LIMIT)?;
    consumer.wait_ready(200, LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");
    // It did look at this clock.
    let said = consumer.stderr();
    let year = Timestamp::now().to_string()[..4].parse::<i32>()?;
    for year in [year + 10, year - 10] {
        ensure!(said.contains(&format!("\"timestamp\":\"{year}")), "it has never believed to be in {year}");
    }
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// Only `recorded_at` tells of it.
fn the_clock_of_postgres_is_stepped() -> Result<()> {
    let Some(clock) = clock()? else { return Ok(()) };
    let server = clock.start_postgres(&postgres())?;
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "stepped")?, "stepped", 2)?;
    flow.ledger.slow_down(0.05)?;
    flow.send_load(10_000, 8)?;
    let mut consumer = flow.consume(&["--batch", "200"])?;
    for (step, offset) in (1..).zip(FAR) {
        flow.wait_offsets(step * 1_500, LIMIT)?;
        clock.set(offset)?;
    }
    flow.ledger.slow_down(0.0)?;
    flow.wait_done(LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");
    let spread: f64 = flow
        .ledger
        .db
        .one("SELECT (extract(epoch FROM max(recorded_at) - min(recorded_at)) / 86400 / 365)::float8 FROM batches")
        .context("recorded_at")?;
    ensure!(spread > 19.0, "the batches were recorded within {spread} years");
    consumer.finish()?;
    flow.check_against_undisturbed()
}
