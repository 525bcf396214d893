//! Postgres and Kafka away under load: the process stays, says that it is not ready,
//! and goes on by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postonce_tests::{
    Consumer, Flow, Kafka, Ledger, PrivatePostgres, Proxy, QUICK, Transaction, Trial, kafka, payments, start_postgres,
    trials, unique, wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than one life of a worker waits for Postgres.
const LONG: Duration = Duration::from_millis(10_500);

const LIVES: &str = "postonce_worker_lives_total";
const TRIES: u32 = 5;

pub fn tests() -> Vec<Trial> {
    trials![
        postgres_stops_for_a_moment,
        postgres_is_killed_for_long,
        partitions_come_back_during_an_outage,
        partitions_come_back_after_an_outage,
        kafka_stops_for_a_moment,
        kafka_is_killed_under_load,
    ]
}

/// Sends payments, one after the other, until it is told to stop; how many.
fn under_load(flow: &Flow, stop: &AtomicBool) -> Result<usize> {
    let (mut sent, label) = (0, unique("load"));
    while !stop.load(Ordering::Relaxed) {
        flow.send(payments(&format!("{label}_{sent}"), 50))?;
        sent += 50;
        thread::sleep(Duration::from_millis(10));
    }
    Ok(sent)
}

/// Runs `outage` while a producer goes on sending, then checks that everything is there.
fn disturbed(flow: &Flow, consumer: &mut Consumer, outage: impl FnOnce(&mut Consumer) -> Result<()>) -> Result<()> {
    let stop = AtomicBool::new(false);
    let (offsets, before) = (flow.ledger.offsets()?, flow.ledger.balance("assets:psp:stripe", "EUR")?);
    let sent = thread::scope(|scope| {
        let producer = scope.spawn(|| under_load(flow, &stop));
        let outcome = flow.wait_offsets(offsets + 100, LIMIT).and_then(|()| outage(consumer));
        stop.store(true, Ordering::Relaxed);
        let sent = producer.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?;
        outcome.and(sent)
    })?;
    flow.wait_done(LIMIT)?;
    consumer.wait_ready(200, LIMIT)?;
    let balance = flow.ledger.balance("assets:psp:stripe", "EUR")? - before;
    ensure!(balance == 100 * i64::try_from(sent)?, "{sent} payments of 100 stand in the books as {balance}");
    Ok(())
}

fn not_ready_and_alive(consumer: &mut Consumer) -> Result<()> {
    consumer.wait_ready(503, LIMIT)?;
    ensure!(consumer.is_running()?, "the process has ended");
    Ok(())
}

fn postgres_stops_for_a_moment() -> Result<()> {
    let (kafka, mut server) = (kafka(), start_postgres(&[])?);
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "short")?, "short", 2)?;
    let mut consumer = flow.consume(&[])?;
    for way in [PrivatePostgres::stop_fast, PrivatePostgres::kill_postmaster] {
        disturbed(&flow, &mut consumer, |consumer| {
            way(&mut server)?;
            not_ready_and_alive(consumer)?;
            server.start_again()?;
            consumer.wait_ready(200, LIMIT)
        })?;
    }
    consumer.finish()?;
    flow.check_against_undisturbed()
}

fn postgres_is_killed_for_long() -> Result<()> {
    let (kafka, mut server) = (kafka(), start_postgres(&[])?);
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "long")?, "long", 2)?;
    let mut consumer = flow.consume(&[])?;
    disturbed(&flow, &mut consumer, |consumer| {
        server.kill_postmaster()?;
        let until = Instant::now() + LONG;
        not_ready_and_alive(consumer)?;
        while Instant::now() < until {
            ensure!(consumer.ready()? == 503, "ready without a database");
            thread::sleep(Duration::from_millis(50));
        }
        // By now every worker has ended a life, and has begun others in vain.
        consumer.wait_metric("postonce_worker_lives_total", &[], 4.0, LIMIT)?;
        not_ready_and_alive(consumer)?;
        server.start_again()?;
        consumer.wait_ready(200, LIMIT)
    })?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// What was taken from it comes back before its way does: the messages that it holds in
/// memory have been posted by another meanwhile.
fn partitions_come_back_during_an_outage() -> Result<()> {
    partitions_move_during_an_outage(true)
}

/// What was taken from it while it rested comes back later, and must not rest any more.
fn partitions_come_back_after_an_outage() -> Result<()> {
    partitions_move_during_an_outage(false)
}

/// A consumer loses its way to the database, with a batch in memory. Another joins, posts
/// some of the same messages, and leaves; all of it within one life of the first. A life
/// waits for ten seconds, and on a busy machine the other may need them for its start: then
/// the first has forgotten its batch and has left the group, which is another story, and
/// this one begins again.
fn partitions_move_during_an_outage(back_within: bool) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("moved")?, "moved", 6)?;
    let proxy = Proxy::start(&flow.ledger.url)?;
    let more = [&QUICK[..], &["--workers", "1", "--batch", "200"]].concat();
    let mut cut_off = flow.consume_through(proxy.url(), &more)?;
    // With nobody else, what comes back is what went away.
    let other = if back_within { None } else { Some(flow.consume(&more)?) };
    let owners = |many: i64| {
        wait_until(LIMIT, &format!("{many} owners"), || {
            let owners: i64 = flow.ledger.db.one("SELECT count(DISTINCT backend_pid) FROM streams")?;
            Ok((owners == many).then_some(()))
        })
    };
    let before = if back_within { 1 } else { 2 };
    owners(before)?;
    disturbed(&flow, &mut cut_off, |cut_off| {
        for _ in 0..TRIES {
            let lives = cut_off.metric(LIVES, &[])?;
            proxy.refuse();
            not_ready_and_alive(cut_off)?;
            let third = flow.consume(&more)?;
            let meets = wait_until(LIMIT, "a meeting", || {
                let ended = cut_off.metric(LIVES, &[])? > lives;
                let owners: i64 = flow.ledger.db.one("SELECT count(DISTINCT backend_pid) FROM streams")?;
                let posts = third.metric("postonce_events_total", &[]).unwrap_or_default() >= 1.0;
                Ok((ended || owners == before + 1 && posts).then_some(!ended))
            })?;
            if meets && back_within {
                third.finish()?;
                not_ready_and_alive(cut_off)?;
                // The group gives it back as soon as it asks, some ten times a second.
                thread::sleep(Duration::from_millis(700));
                proxy.accept();
                cut_off.wait_ready(200, LIMIT)?;
            } else {
                proxy.accept();
                cut_off.wait_ready(200, LIMIT)?;
                third.finish()?;
            }
            owners(before)?;
            if cut_off.metric(LIVES, &[])? == lives {
                return Ok(());
            }
        }
        anyhow::bail!("in {TRIES} tries its life has ended each time before the others had moved")
    })?;
    other.map_or(Ok(()), Consumer::finish)?;
    // To all partitions, and all of them are its own now.
    flow.send(payments("last", 100))?;
    flow.wait_done(LIMIT)?;
    cut_off.finish()?;
    flow.check_against_undisturbed()
}

fn kafka_stops_for_a_moment() -> Result<()> {
    kafka_is_away(Kafka::stop)
}

/// A broker that is killed has not closed its log: what it had taken is there nevertheless.
fn kafka_is_killed_under_load() -> Result<()> {
    kafka_is_away(Kafka::kill)
}

fn kafka_is_away(way: impl FnOnce(&mut Kafka) -> Result<()>) -> Result<()> {
    let mut kafka = Kafka::start()?;
    let flow = Flow::new(&kafka, Ledger::fresh("broker")?, "broker", 2)?;
    flow.send_load(3_000, 5)?;
    let mut consumer = flow.consume(&["--batch", "100"])?;
    flow.wait_done(LIMIT)?;
    // The producer goes on sending: what the broker has not confirmed it sends again.
    disturbed(&flow, &mut consumer, |consumer| {
        way(&mut kafka)?;
        not_ready_and_alive(consumer)?;
        kafka.start_again()?;
        consumer.wait_ready(200, LIMIT)
    })?;
    ensure!(consumer.is_running()?, "the process has ended");
    // The broker leads in a new epoch now. Markers of that epoch stand behind the last
    // message, which is of the old one: nothing was cut off.
    let aborted = Transaction::begin(&kafka.bootstrap())?;
    aborted.send(&flow.topic, payments("aborted", 100))?;
    aborted.abort()?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let consumer = flow.consume(&[])?;
    flow.send(payments("after", 100))?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}
