//! 6: growth. One ledger that is filled from Kafka, at full size with 20 million events and
//! over several whole checkpoint intervals: the rate of each slice, and the last million
//! divided by the second one. The first is left out: it holds the start of the program, and
//! every account is new in it.
//!
//! Three runs: in order; late events, whose `updatedAt` is any moment of two years, so that
//! each comes into the middle of every index by time; and three events for each resource
//! (created, authorized, succeeded), each in a transaction of its own.
//!
//! At the end of the first one the first page of `statement`, fifty lines, on a connection of
//! its own: of accounts that nobody has asked for before, and again; of a merchant, and of
//! the account that is in every payment.

use crate::args::Size;
use crate::bench::{Bench, Run};
use crate::kafka::{self, Curve};
use crate::ledger::{Ledger, block_on};
use crate::load::{EventText, Payment, Payments, mix, time_of};
use crate::own_topic::OwnTopic;
use crate::parts;
use crate::plan::{Contestant, Measurement};
use crate::sample::Spread;
use anyhow::{Context, Result, ensure};
use postonce_consumer::read::statement::{Request, statement};
use sqlx::PgConnection;
use std::time::{Duration, Instant};

pub const MEASUREMENT: Measurement = Measurement {
    number: 6,
    name: "growth",
    what: "growth: the rate slice by slice, and statements at the end",
    contestants: &[
        Contestant { name: IN_ORDER, run: |bench, _| run(bench, Load::InOrder) },
        Contestant { name: LATE, run: |bench, _| run(bench, Load::Late) },
        Contestant { name: THREE_EACH, run: |bench, _| run(bench, Load::ThreeEach) },
    ],
};

pub const IN_ORDER: &str = "growth, in order";
pub const LATE: &str = "growth, late events";
pub const THREE_EACH: &str = "growth, three events each";

const MILLION: u64 = 1_000_000;
/// Of the ledger, its indexes and its topic, for each event; and what WAL may add.
const DISK_FOR_EACH: u64 = 1_500;
/// Between two deletions of what was read from the topic.
const DELETE_EVERY: Duration = Duration::from_secs(10);
const MERCHANTS: u64 = 5_000;
const TWO_YEARS_MICROS: u64 = 2 * 365 * 24 * 3_600 * 1_000_000;
/// Between two events of one resource: three times as many events, more than the batches of
/// all workers hold.
const APART: u64 = 50_000;
/// Lines on a page of `postonce statement`.
const PAGE: u16 = 50;
/// Of a size, how many are asked for their statement.
const ASKED: u64 = 21;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    InOrder,
    Late,
    ThreeEach,
}

fn run(bench: &Bench, load: Load) -> Result<Run> {
    let events = bench.size.pick(30_000, 3 * MILLION, 20 * MILLION) / 3 * 3;
    room(bench, events)?;
    let own = filled(bench, load, events)?;
    let ledger = bench.fresh_ledger("growth")?;
    let mut deleted = Instant::now();
    let mut delete_read = || {
        if deleted.elapsed() < DELETE_EVERY {
            return Ok(());
        }
        deleted = Instant::now();
        own.delete_read(&ledger)
    };
    let (run, curve) = kafka::consume_with(bench, &ledger, &own.topic, bench.workers, &[], &mut delete_read)?;
    drop(own);
    let mut run = tell(run, &curve, bench.size.pick(2_000, 100_000, 250_000));
    run.usage.disk_bytes = Some(ledger.disk_bytes("postonce")?);
    if load == Load::InOrder {
        run = statements(&ledger, run)?;
    }
    ledger.check(events, if load == Load::ThreeEach { events / 3 * 2 } else { events * 2 })?;
    if bench.size != Size::Full {
        ledger.verify(&bench.decoder)?;
    }
    Ok(run)
}

/// Better than a full disk after an hour.
fn room(bench: &Bench, events: u64) -> Result<()> {
    let (free, needed) = (parts::free(&bench.parts.directory)?, events * DISK_FOR_EACH);
    ensure!(
        free >= needed,
        "growth to {events} events needs about {} GB in {}, and {} are free; choose another --directory or a smaller --size",
        needed >> 30,
        bench.parts.directory.display(),
        free >> 30
    );
    Ok(())
}

fn filled(bench: &Bench, load: Load, events: u64) -> Result<OwnTopic<'_>> {
    let payments = Payments { events, merchants: MERCHANTS };
    let mut lives = lives(events / 3);
    OwnTopic::filled(bench, "growth", events, |number, event| match load {
        Load::InOrder => payments.write(number, event),
        Load::Late => late(number).write(event),
        Load::ThreeEach => write_life(number, lives.next(), event),
    })
}

/// Any moment of the two years before the first event of a run in order.
fn late(number: u64) -> Payment {
    let micros = time_of(0) - mix(number ^ 0x1a7e) % TWO_YEARS_MICROS;
    Payment { number, state: "succeeded", micros, merchants: MERCHANTS }
}

fn write_life(number: u64, step: Option<(u64, &'static str)>, event: &mut EventText) {
    if let Some((resource, state)) = step {
        Payment { number: resource, state, micros: time_of(number), merchants: MERCHANTS }.write(event);
    }
}

/// Payment and state, event by event: while one payment is created, an older one is
/// authorized and a still older one succeeds.
fn lives(payments: u64) -> impl Iterator<Item = (u64, &'static str)> {
    let apart = APART.min(payments / 10);
    (0..payments + 2 * apart).flat_map(move |tick| {
        let step = |state, after: u64| Some((tick.checked_sub(after)?, state));
        let steps = [step("created", 0), step("authorized", apart), step("succeeded", 2 * apart)];
        steps.into_iter().flatten().filter(move |(payment, _)| *payment < payments)
    })
}

/// The rate of each slice, and the last part divided by the second.
fn tell(mut run: Run, curve: &Curve, slice: u64) -> Run {
    let rate = |from: u64, to: u64| Some((to - from) as f64 / (reached(curve, to)? - reached(curve, from)?));
    run.slices = (0..run.events / slice)
        .filter_map(|number| Some(((number + 1) * slice, rate(number * slice, (number + 1) * slice)?)))
        .collect();
    let part = MILLION.min(run.events / 3);
    let name = if part == MILLION { "last million ÷ second" } else { "last part ÷ second part" };
    match (rate(run.events - part, run.events), rate(part, 2 * part)) {
        (Some(last), Some(second)) => run.with(name, last / second),
        _ => run,
    }
}

/// When so many events were in the ledger, as if each batch had come in evenly.
fn reached(curve: &Curve, events: u64) -> Option<f64> {
    let after = curve.iter().position(|(_, done)| *done >= events)?;
    let (to, done) = *curve.get(after)?;
    let Some((from, before)) = after.checked_sub(1).and_then(|place| curve.get(place)).copied() else {
        return Some(to);
    };
    Some(from + (to - from) * (events - before) as f64 / (done - before) as f64)
}

/// Asks for statements as a person does, who comes, asks, and asks again.
fn statements(ledger: &Ledger<'_>, run: Run) -> Result<Run> {
    let merchants = (0..ASKED).map(|number| format!("liabilities:merchant:m_{:06}", mix(number) % MERCHANTS));
    let merchants = merchants.map(|account| ask(ledger, &account)).collect::<Result<Vec<_>>>()?;
    let hottest = ask(ledger, "assets:psp:stripe")?;
    let median = |times: &mut dyn Iterator<Item = f64>| Spread::of(times).map_or(0.0, |spread| spread.median);
    let events = run.events;
    Ok(run
        // Amount and fee of each of its payments.
        .with("statement, postings of the account", (events * 2 / MERCHANTS) as f64)
        .with("statement, first page, ms", median(&mut merchants.iter().map(|asked| asked.first)))
        .with("statement, first page, again, ms", median(&mut merchants.iter().map(|asked| asked.again)))
        .with("statement of the hottest account, first page, ms", hottest.first)
        .with("statement of the hottest account, first page, again, ms", hottest.again))
}

/// Milliseconds.
struct Asked {
    first: f64,
    /// The median of several on the same connection.
    again: f64,
}

fn ask(ledger: &Ledger<'_>, account: &str) -> Result<Asked> {
    block_on(async {
        let mut connection = ledger.database.connect().await?;
        let first = page(&mut connection, account).await?;
        let mut more = Vec::new();
        for _ in 0..5 {
            more.push(page(&mut connection, account).await?);
        }
        Ok(Asked { first, again: Spread::of(more).context("nobody has asked again")?.median })
    })
}

async fn page(connection: &mut PgConnection, account: &str) -> Result<f64> {
    let request = Request { account, asset: "EUR", from: None, to: None, limit: PAGE, before: None };
    let begun = Instant::now();
    let page = statement(connection, &request).await?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    let balance: i64 =
        sqlx::query_scalar("SELECT balance::bigint FROM account_balances WHERE account = $1 AND asset = 'EUR'")
            .bind(account)
            .fetch_one(connection)
            .await?;
    ensure!(
        !page.lines.is_empty() && page.closing_balance.0 == i128::from(balance),
        "the statement of {account} ends at {} and not at its balance of {balance}",
        page.closing_balance.0
    );
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn each_payment_lives_through_three_states_in_their_order() {
        let mut seen: HashMap<u64, Vec<(usize, &str)>> = HashMap::new();
        lives(1_000)
            .enumerate()
            .for_each(|(place, (payment, state))| seen.entry(payment).or_default().push((place, state)));
        assert_eq!(seen.len(), 1_000);
        for steps in seen.values() {
            let states: Vec<&str> = steps.iter().map(|(_, state)| *state).collect();
            assert_eq!(states, ["created", "authorized", "succeeded"]);
            assert!(steps.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 100), "{steps:?}");
        }
    }

    #[test]
    fn late_events_are_spread_over_two_years() {
        let times: Vec<u64> = (0..10_000).map(|number| late(number).micros).collect();
        let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(last - first > TWO_YEARS_MICROS / 100 * 99 && *last <= time_of(0));
    }

    #[test]
    fn parts_are_compared_between_the_steps_of_the_batches() {
        // 10 a second, from 30 on 5 a second.
        let curve = vec![(0.0, 0), (1.0, 10), (3.0, 30), (6.0, 45), (9.0, 60)];
        assert_eq!(reached(&curve, 20), Some(2.0));
        assert_eq!(reached(&curve, 0), Some(0.0));
        assert_eq!(reached(&curve, 61), None);
        let run = tell(Run { events: 60, seconds: 9.0, ..Run::default() }, &curve, 20);
        assert_eq!(run.slices, [(20, 10.0), (40, 20.0 / 3.0), (60, 5.0)]);
        assert_eq!(run.more.get("last part ÷ second part").map(|ratio| (ratio * 1e6).round()), Some(750_000.0));
    }
}
