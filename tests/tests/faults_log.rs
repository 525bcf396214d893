//! A log that grows in partitions, is damaged, is cut at its start, or is held back.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Flow, Kafka, Ledger, Message, Sender, Transaction, Trial, delete_before, end_offsets, get, kafka, payments, trials,
    unique, wait_until,
};

use crate::faults_traps::ended;

const LIMIT: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Trial> {
    trials![
        partitions_are_added_under_load,
        a_batch_with_a_broken_checksum_is_never_skipped,
        markers_with_retention_behind_them_are_no_gap,
        a_hanging_transaction_is_told_and_waited_for,
        a_partition_of_which_nothing_comes_is_told_and_begun_anew,
        a_topic_that_reaches_back_too_shortly_is_told,
    ]
}

fn euros(flow: &Flow) -> Result<i64> {
    flow.ledger.balance("assets:psp:stripe", "EUR")
}

/// Keys move to other partitions: what came of a resource before stands on another one.
fn partitions_are_added_under_load() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("grown")?, "grown", 2)?;
    let consumer = flow.consume(&["-X", "topic.metadata.refresh.interval.ms=500"])?;
    let stop = AtomicBool::new(false);
    let label = unique("grown");
    let sent = thread::scope(|scope| {
        let producer = scope.spawn(|| -> Result<usize> {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                // The same resources again and again: all but the first round are duplicates.
                // A new client: an old one hears of new partitions after minutes.
                Sender::new(&kafka.bootstrap(), "lz4")?.send(&flow.topic, payments(&label, 100))?;
                rounds += 1;
            }
            Ok(rounds * 100)
        });
        let outcome = flow.wait_offsets(500, LIMIT).and_then(|()| {
            kafka.add_partitions(&flow.topic, 5)?;
            wait_until(LIMIT, "messages on every partition", || {
                let ends = end_offsets(&kafka.bootstrap(), &flow.topic)?;
                Ok((ends.len() == 5 && ends.iter().all(|end| *end > 0)).then_some(()))
            })
        });
        stop.store(true, Ordering::Relaxed);
        let sent = producer.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?;
        outcome.and(sent)
    })?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_whole()?;
    let streams: Vec<(i32, i64)> =
        flow.ledger.db.rows("SELECT partition, first_offset FROM streams ORDER BY partition")?;
    ensure!(streams == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)], "not from the start: {streams:?}");
    ensure!(sent >= 500 && euros(&flow)? == 100 * 100, "{} for 100 payments", euros(&flow)?);
    let moved: i64 = flow.ledger.db.one(
        "SELECT count(*) FROM streams s JOIN batches b USING (stream)
         WHERE s.partition >= 2 AND position('D'::bytea IN b.outcomes) > 0",
    )?;
    ensure!(moved > 0, "no key has moved");
    Ok(())
}

/// One byte of a record is altered on disk. The partition stands still before that batch,
/// whatever it takes; put back, it goes on.
fn a_batch_with_a_broken_checksum_is_never_skipped() -> Result<()> {
    let mut kafka = Kafka::start()?;
    let flow = Flow::new(&kafka, Ledger::fresh("checksum")?, "checksum", 2)?;
    // Each send is a batch of its own on each partition.
    for (partition, label) in [(0, "a"), (1, "b")] {
        for n in 0..3 {
            flow.send(payments(&format!("{label}{n}"), 10).into_iter().map(|message| message.partition(partition)))?;
        }
    }
    kafka.stop()?;
    let segment = kafka.segment(&flow.topic, 1)?;
    let whole = fs::read(&segment)?;
    let second = batches(&whole)?.into_iter().find(|(offset, _)| *offset == 10).context("no batch at offset 10")?;
    let mut broken = whole.clone();
    // The header is 61 bytes; then come the records.
    broken[second.1 + 61 + 20] ^= 1;
    write(&segment, &broken)?;
    kafka.start_again()?;

    let first = flow.consume(&["--workers", "1"])?;
    let says = ["offset 10", "failed CRC32C check", "offset 10 of partition 1", "Nothing is skipped"];
    ended(first, 15, LIMIT, &says)?;
    // Not the auditor: it cannot read that log either.
    flow.ledger.check()?;
    let at = || flow.ledger.db.rows::<(i32, i64)>("SELECT partition, next_offset FROM streams ORDER BY partition");
    // What stands before the batch is posted, and what stands on the other partition.
    ensure!(at()? == [(0, 30), (1, 10)], "{:?}", at()?);
    // Nor does the next one skip it, when the messages behind it have come first.
    flow.send(payments("c", 10).into_iter().map(|message| message.partition(0)))?;
    ended(flow.consume(&["--workers", "2"])?, 15, LIMIT, &says[..2])?;
    flow.ledger.check()?;
    ensure!(at()? == [(0, 40), (1, 10)], "{:?}", at()?);

    kafka.stop()?;
    write(&segment, &whole)?;
    kafka.start_again()?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    ensure!(euros(&flow)? == 7_000, "{} for 70 payments", euros(&flow)?);
    flow.check_against_undisturbed()
}

/// In place, so that the broker finds the file as it knows it.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Base offset and place in the file of each batch of a segment.
fn batches(segment: &[u8]) -> Result<Vec<(i64, usize)>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(header) = segment.get(at..at + 12) {
        let (offset, length) = header.split_at(8);
        found.push((i64::from_be_bytes(offset.try_into()?), at));
        at += 12 + usize::try_from(u32::from_be_bytes(length.try_into()?))?;
    }
    Ok(found)
}

/// Behind the last message stand only markers, and retention takes everything before them,
/// and the markers too: nobody has lost anything.
fn markers_with_retention_behind_them_are_no_gap() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("behind")?, "behind", 1)?;
    let aborted = || {
        let transaction = Transaction::begin(&kafka.bootstrap())?;
        transaction.send(&flow.topic, payments("aborted", 12))?;
        transaction.abort()
    };
    flow.send(payments("first", 5))?;
    aborted()?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    // While it runs: everything up to the end goes, and more markers come.
    delete_before(&kafka, &flow.topic, 0, 18)?;
    aborted()?;
    flow.wait_offsets(31, LIMIT)?;
    consumer.finish()?;
    // At rest: the log begins where the ledger goes on.
    delete_before(&kafka, &flow.topic, 0, 31)?;
    for label in ["second", "third"] {
        let consumer = flow.consume(&["--workers", "1"])?;
        flow.send(payments(label, 5))?;
        flow.wait_done(LIMIT)?;
        consumer.finish()?;
    }
    flow.check()?;
    ensure!(flow.ledger.db.one::<i64>("SELECT count(*) FROM actions")? == 0, "something was accepted");
    ensure!(euros(&flow)? == 1_500, "{} for 15 payments", euros(&flow)?);
    Ok(())
}

/// The producer is gone without an end: what stands behind its messages waits, and says so.
fn a_hanging_transaction_is_told_and_waited_for() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("hanging")?, "hanging", 2)?;
    let on = |partition: i32, label: &str| {
        payments(label, 5).into_iter().map(move |message| message.partition(partition)).collect::<Vec<Message>>()
    };
    flow.send(on(0, "a"))?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    let hanging = Transaction::begin(&kafka.bootstrap())?;
    hanging.send(&flow.topic, on(0, "never"))?;
    flow.send(on(0, "behind").into_iter().chain(on(1, "beside")))?;
    let (held, unstable) = ("postonce_last_stable_offset_held_seconds", "postonce_unstable_offsets");
    consumer.wait_metric(held, &[("partition", "0")], 3.0, LIMIT)?;
    consumer.wait_metric(unstable, &[("partition", "0")], 10.0, LIMIT)?;
    flow.wait_offsets(10, LIMIT)?;
    ensure!(consumer.metric(held, &[("partition", "1")])? == 0.0, "the other partition is not held back");
    let at: Vec<(i32, i64)> = flow.ledger.db.rows("SELECT partition, next_offset FROM streams ORDER BY partition")?;
    ensure!(at == [(0, 5), (1, 5)], "{at:?}");
    ensure!(consumer.metric("postonce_partition_still_seconds", &[])? == 0.0, "there is nothing that it could read");
    // `kafka-transactions.sh abort` writes the same marker.
    hanging.abort()?;
    flow.wait_done(LIMIT)?;
    wait_until(LIMIT, "an alarm that ends", || {
        Ok((consumer.metric(held, &[])? == 0.0 && consumer.metric(unstable, &[])? == 0.0).then_some(()))
    })?;
    consumer.finish()?;
    flow.check_whole()?;
    ensure!(euros(&flow)? == 1_500, "{} for 15 payments", euros(&flow)?);
    Ok(())
}

/// The broker answers no fetch before it has a megabyte: messages are there, and none comes.
fn a_partition_of_which_nothing_comes_is_told_and_begun_anew() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("still")?, "still", 1)?;
    let slow = ["-X", "fetch.min.bytes=1000000", "-X", "fetch.wait.max.ms=50000", "--stuck-after", "5"];
    let consumer = flow.consume(&[&slow[..], &["--workers", "1"]].concat())?;
    flow.wait_claimed(1)?;
    // The brokers know that it waits for a message only once it has asked for one.
    flow.send(payments("still", 5))?;
    consumer.wait_metric("postonce_partition_still_seconds", &[("partition", "0")], 2.0, LIMIT)?;
    consumer.wait_metric("postonce_worker_lives_total", &[], 2.0, LIMIT)?;
    ensure!(consumer.metric("postonce_stuck_partitions_total", &[])? >= 1.0, "the watch has not counted it");
    consumer.wait_ready(503, LIMIT)?;
    wait_until(LIMIT, "a reason that names the partition", || {
        let (_, reason) = get(consumer.port(), "/readyz")?;
        Ok(reason.contains("partition 0 has messages from offset 0 on").then_some(()))
    })?;
    ensure!(flow.ledger.offsets()? == 0, "something came");
    // As soon as a megabyte is there, it moves.
    let sender = Sender::new(&kafka.bootstrap(), "none")?;
    wait_until(LIMIT, "a partition that moves again", || {
        sender.send(&flow.topic, (0..12).map(|_| Message::new(vec![b'x'; 100_000])))?;
        Ok((consumer.ready()? == 200).then_some(()))
    })?;
    consumer.finish()?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    ensure!(euros(&flow)? == 500, "{} for 5 payments", euros(&flow)?);
    Ok(())
}

/// A ledger that is put back heals only as far as the topic reaches back.
fn a_topic_that_reaches_back_too_shortly_is_told() -> Result<()> {
    let kafka = kafka();
    let mut flow = Flow::new(&kafka, Ledger::fresh("short")?, "short", 1)?;
    flow.topic = unique("hour");
    kafka.create_topic(&flow.topic, 1, &[("retention.ms", "3600000")])?;
    flow.send(payments("short", 10))?;
    let consumer = flow.consume(&["--recovery-window-hours", "2"])?;
    flow.wait_done(LIMIT)?;
    let of_topic = [("topic", flow.topic.as_str())];
    consumer.wait_metric("postonce_topic_retention_seconds", &of_topic, 3_600.0, LIMIT)?;
    ensure!(consumer.metric("postonce_recovery_window_seconds", &[])? == 7_200.0, "another window");
    delete_before(&kafka, &flow.topic, 0, 7)?;
    consumer.wait_metric("postonce_log_start_offset", &of_topic, 7.0, LIMIT)?;
    let warned = |said: &str| said.contains("less than the recovery window of 7200s");
    ensure!(warned(&consumer.stderr()), "no warning:\n{}", consumer.stderr());
    consumer.finish()?;
    let consumer = flow.consume(&["--recovery-window-hours", "1"])?;
    consumer.wait_metric("postonce_topic_retention_seconds", &of_topic, 3_600.0, LIMIT)?;
    ensure!(!warned(&consumer.stderr()), "an hour is enough for an hour");
    consumer.finish()
}
