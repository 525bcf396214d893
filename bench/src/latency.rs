//! 8: latency, from produce to visible in the ledger: 1,000 events a second, and half of the
//! rate at which the consumer works off a full topic.
//!
//! One machine, one clock. An event's time begins when it is due to be handed to the producer
//! (so a producer that is held up hides nothing) and ends when somebody who asks the database
//! every millisecond has read that its stream's `next_offset` is behind it: the ledger entry
//! is committed with that offset. So the figure holds the producer's linger of 5 ms, the
//! broker, the consumer, the commit, and the watcher's own question; it is too long by up to
//! a millisecond, never too short.
//!
//! The first seconds are sent and not counted: the consumer meets its accounts in them, and the
//! broker is compiled while it runs.

use crate::args::PARTITIONS;
use crate::bench::{Bench, Run};
use crate::kafka;
use crate::ledger::{Ledger, runtime};
use crate::load::{EventText, Payments};
use crate::memory;
use crate::own_topic::OwnTopic;
use crate::plan::{Contestant, Measurement};
use crate::usage::{Client, Meter};
use anyhow::{Context, Result, ensure};
use postonce::commands::interrupt;
use postonce_producer::{Config, Producer};
use postonce_tests::PostonceProcess;
use sqlx::Connection;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub const MEASUREMENT: Measurement = Measurement {
    number: 8,
    name: "latency",
    what: "latency: produce → visible in the ledger, at 1,000 events/s and at half of the top rate",
    contestants: &[
        Contestant { name: "latency", run: |bench, round| at_rate(bench, round, 1_000.0) },
        Contestant { name: "latency, half of the top rate", run: half_of_the_top },
    ],
};

const LOOK_EVERY: Duration = Duration::from_millis(1);
/// What is due within this is sent in one go.
const PACE: Duration = Duration::from_micros(500);
/// Without a new offset for so long, something is broken.
const STILL_AT_MOST: Duration = Duration::from_secs(60);

fn half_of_the_top(bench: &Bench, round: usize) -> Result<Run> {
    let payments = Payments::usual(bench.size.pick(10_000, 400_000, 2_000_000));
    let own = OwnTopic::filled(bench, "top", payments.events, |number, event| payments.write(number, event))?;
    let ledger = bench.fresh_ledger("top")?;
    let top = kafka::consume(bench, &ledger, &own.topic, bench.workers)?;
    let rate = top.more.get("events/s, steady").copied().or(top.rate()).context("the consumer has no rate")?;
    drop((ledger, own));
    at_rate(bench, round, rate / 2.0)
}

fn at_rate(bench: &Bench, round: usize, rate: f64) -> Result<Run> {
    let [uncounted, counted] = [bench.size.pick(1.0, 10.0, 20.0), bench.size.pick(2.0, 30.0, 120.0)];
    let plan = Plan::new(rate, uncounted, counted);
    let own = OwnTopic::empty(bench, "latency")?;
    let ledger = bench.fresh_ledger("latency")?;
    let producer = Producer::new(&Config::new(bench.parts.kafka.bootstrap(), &own.topic.name))?;
    producer.check(Duration::from_secs(30))?;
    let meter = Meter::start(&bench.parts, Client::Process)?;
    let mut consumer = kafka::start(bench, &ledger, &own.topic.name, bench.workers, &[])?;
    plan.send(&producer, 0..plan.first, Instant::now())?;
    watch(&ledger, &mut consumer, plan.first, &AtomicBool::new(false))?;
    let failed = AtomicBool::new(false);
    let begun = Instant::now();
    let (sent, seen) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let sent = plan.send(&producer, plan.first..plan.events, begun);
            failed.store(sent.is_err(), Ordering::Relaxed);
            sent
        });
        let seen = watch(&ledger, &mut consumer, plan.events, &failed);
        (sender.join(), seen)
    });
    sent.map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    let latencies = plan.latencies(begun, &seen?)?;
    let usage = meter.stop_with(consumer.pid())?;
    consumer.terminate()?;
    ensure!(consumer.wait(Duration::from_secs(60))?.success(), "postonce consume:\n{}", consumer.stderr());
    let run = Run { events: plan.events, seconds: plan.events as f64 / rate, usage, ..Run::default() };
    memory::finish(bench, round, &ledger, tell(run, &latencies))
}

fn tell(run: Run, sorted: &[Duration]) -> Run {
    let at = |part: f64| {
        // Nearest rank.
        let rank = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    run.with("p50 ms", at(0.5)).with("p99 ms", at(0.99)).with("p99.9 ms", at(0.999)).with("max ms", at(1.0))
}

/// Which event is sent when, and where to: one partition after the other.
struct Plan {
    rate: f64,
    /// Until these are visible, the consumer is not ready.
    first: u64,
    /// From this one on they are counted.
    counted_from: u64,
    events: u64,
}

impl Plan {
    fn new(rate: f64, uncounted_seconds: f64, counted_seconds: f64) -> Self {
        let first = PARTITIONS as u64;
        let counted_from = first + (rate * uncounted_seconds) as u64;
        Self { rate, first, counted_from, events: counted_from + (rate * counted_seconds) as u64 }
    }

    fn due(&self, number: u64, begun: Instant) -> Instant {
        begun + Duration::from_secs_f64(number.saturating_sub(self.first) as f64 / self.rate)
    }

    fn place(number: u64) -> (usize, u64) {
        ((number % PARTITIONS as u64) as usize, number / PARTITIONS as u64)
    }

    fn send(&self, producer: &Producer, numbers: std::ops::Range<u64>, begun: Instant) -> Result<()> {
        let (payments, mut event) = (Payments::usual(self.events), EventText::default());
        for number in numbers {
            let ahead = self.due(number, begun).saturating_duration_since(Instant::now());
            if !ahead.is_zero() {
                thread::sleep(ahead.max(PACE));
            }
            payments.write(number, &mut event);
            let (partition, _) = Self::place(number);
            producer.send(event.message(Some(i32::try_from(partition)?), usize::try_from(number)?))?;
        }
        producer.flush(Duration::from_secs(150)).context("sending")?;
        Ok(())
    }

    /// Of every event that is counted, in rising order.
    fn latencies(&self, begun: Instant, seen: &[Seen; PARTITIONS]) -> Result<Vec<Duration>> {
        let mut at = [0; PARTITIONS];
        let mut latencies = Vec::new();
        for number in self.counted_from..self.events {
            let (partition, offset) = Self::place(number);
            let (at, seen) = (&mut at[partition], &seen[partition]);
            while seen.get(*at).is_some_and(|(_, next_offset)| *next_offset <= offset) {
                *at += 1;
            }
            let (visible, _) = seen.get(*at).with_context(|| format!("event {number} was never seen"))?;
            latencies.push(visible.saturating_duration_since(self.due(number, begun)));
        }
        latencies.sort_unstable();
        Ok(latencies)
    }
}

/// Of one partition: when the next offset was first seen to be what.
type Seen = Vec<(Instant, u64)>;

/// Looks until so many events are visible.
fn watch(
    ledger: &Ledger<'_>,
    consumer: &mut PostonceProcess,
    events: u64,
    failed: &AtomicBool,
) -> Result<[Seen; PARTITIONS]> {
    let mut seen: [Seen; PARTITIONS] = Default::default();
    let mut moved = Instant::now();
    let runtime = runtime()?;
    let mut connection = runtime.block_on(sqlx::PgConnection::connect(&ledger.url))?;
    loop {
        let question = sqlx::query_as("SELECT partition, next_offset FROM postonce.streams");
        let offsets: Vec<(i32, i64)> = runtime.block_on(question.fetch_all(&mut connection))?;
        let now = Instant::now();
        let mut done = 0;
        for (partition, next_offset) in offsets {
            let next_offset = u64::try_from(next_offset)?;
            let seen = seen.get_mut(usize::try_from(partition)?).context("a partition too many")?;
            if seen.last().is_none_or(|(_, last)| *last < next_offset) {
                seen.push((now, next_offset));
                moved = now;
            }
            done += next_offset;
        }
        if done >= events {
            return Ok(seen);
        }
        ensure!(!failed.load(Ordering::Relaxed), "the sender has failed");
        ensure!(interrupt::signal().is_none(), "stopped by a signal");
        ensure!(
            moved.elapsed() < STILL_AT_MOST && consumer.is_running()?,
            "postonce consume has come to {done} of {events} offsets:\n{}",
            consumer.stderr()
        );
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_visible_when_the_offset_is_behind_it() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        // Due at 0, 1, 2, … ms; all partitions come to offset 1 at 3 ms and to 2 at 9 ms.
        let plan = Plan { rate: 1_000.0, first: 0, counted_from: 1, events: 8 };
        let seen: [Seen; PARTITIONS] = std::array::from_fn(|_| vec![(after(3), 1), (after(9), 2)]);
        let millis: Vec<u128> = plan.latencies(begun, &seen).unwrap().iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [0, 1, 2, 2, 3, 4, 5], "events 3, 2, 1 at 3 ms; 7, 6, 5, 4 at 9 ms");
        let none: [Seen; PARTITIONS] = Default::default();
        assert!(plan.latencies(begun, &none).is_err());
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let sorted: Vec<Duration> = (1..=1_000).map(Duration::from_millis).collect();
        let run = tell(Run::default(), &sorted);
        let figures: Vec<f64> = ["p50 ms", "p99 ms", "p99.9 ms", "max ms"].map(|name| run.more[name]).to_vec();
        assert_eq!(figures, [500.0, 990.0, 999.0, 1_000.0]);
    }
}
