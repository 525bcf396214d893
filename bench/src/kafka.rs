//! 3: ours, from Kafka. `postonce consume` itself, as a process of its own, on a topic that
//! was filled before.
//!
//! The time runs from the start of the process to the moment when the last offset is seen
//! committed in the database: program start, joining the group and claiming the streams are
//! part of it. Beside it stands the steady rate, between a tenth and nine tenths of the events.

use crate::bench::{Bench, Run, Topic};
use crate::ledger::Ledger;
use crate::memory;
use crate::plan::{Contestant, Measurement};
use crate::usage::{Client, Meter};
use anyhow::{Context, Result, bail, ensure};
use postonce::commands::interrupt;
use postonce_tests::{PostonceProcess, unique};
use std::thread;
use std::time::{Duration, Instant};

pub const MEASUREMENT: Measurement = Measurement {
    number: 3,
    name: "kafka",
    what: "ours, from Kafka: postonce consume, from its start to the last commit",
    contestants: &[Contestant { name: "kafka", run }],
};

/// Between two looks at the offsets.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Without any new offset for so long, something is broken.
const STILL_AT_MOST: Duration = Duration::from_secs(300);

fn run(bench: &Bench, round: usize) -> Result<Run> {
    of(bench, round, &*bench.usual_topic()?, bench.workers)
}

/// Reads a topic of payments into a fresh ledger.
pub fn of(bench: &Bench, round: usize, topic: &Topic, workers: usize) -> Result<Run> {
    let ledger = bench.fresh_ledger("kafka")?;
    let run = consume(bench, &ledger, topic, workers)?;
    memory::finish(bench, round, &ledger, run)
}

/// When, in seconds from the start of the process, how many offsets had their outcome.
pub type Curve = Vec<(f64, u64)>;

/// Runs a consumer until each offset of the topic has its outcome.
pub fn consume(bench: &Bench, ledger: &Ledger<'_>, topic: &Topic, workers: usize) -> Result<Run> {
    Ok(consume_with(bench, ledger, topic, workers, &[], &mut || Ok(()))?.0)
}

/// The same, with more arguments, and something to be done now and then.
pub fn consume_with(
    bench: &Bench,
    ledger: &Ledger<'_>,
    topic: &Topic,
    workers: usize,
    more: &[&str],
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<(Run, Curve)> {
    let before = ledger.offsets()?;
    ledger.checkpoint()?;
    let meter = Meter::start(&bench.parts, Client::Process)?;
    let begun = Instant::now();
    let mut consumer = start(bench, ledger, &topic.name, workers, more)?;
    let curve = watch(ledger, &mut consumer, begun, before + topic.events, meanwhile)?;
    let (seconds, _) = curve.last().copied().context("nothing was seen")?;
    let usage = meter.stop_with(consumer.pid())?;
    consumer.terminate()?;
    ensure!(consumer.wait(Duration::from_secs(60))?.success(), "postonce consume:\n{}", consumer.stderr());
    let mut run = Run { events: topic.events, seconds, usage, ..Run::default() };
    if let Some(rate) = steady(&curve, before, topic.events) {
        run = run.with("events/s, steady", rate);
    }
    Ok((run, curve))
}

/// Starts `postonce consume` on a topic, in a group that nobody was in before.
pub fn start(
    bench: &Bench,
    ledger: &Ledger<'_>,
    topic: &str,
    workers: usize,
    more: &[&str],
) -> Result<PostonceProcess> {
    let (workers, group) = (workers.to_string(), unique("bench"));
    let mut args = vec!["consume", "--workers", &workers, "--group", &group, "--topic", topic];
    args.extend_from_slice(more);
    let brokers = bench.parts.kafka.bootstrap();
    let env = [
        ("KAFKA_BROKERS", brokers.as_str()),
        // It holds a password, and arguments can be read by everybody.
        ("DATABASE_URL", ledger.url.as_str()),
        ("POSTONCE_LOG", "warn"),
    ];
    PostonceProcess::start_by(&bench.postonce()?, &args, &env)
}

/// Looks until so many offsets are done: when, in seconds from the beginning, were how many.
fn watch(
    ledger: &Ledger<'_>,
    consumer: &mut PostonceProcess,
    begun: Instant,
    offsets: u64,
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<Curve> {
    let mut curve = vec![(0.0, 0)];
    let mut moved = Instant::now();
    loop {
        let done = ledger.offsets()?;
        let last = curve.last().map_or(0, |(_, done)| *done);
        if done > last {
            curve.push((begun.elapsed().as_secs_f64(), done));
            moved = Instant::now();
        }
        if done >= offsets {
            return Ok(curve);
        }
        if !consumer.is_running()? || moved.elapsed() > STILL_AT_MOST {
            bail!("postonce consume has come to {done} of {offsets} offsets:\n{}", consumer.stderr());
        }
        ensure!(interrupt::signal().is_none(), "stopped by a signal");
        meanwhile()?;
        thread::sleep(LOOK_EVERY);
    }
}

/// Events in a second between a tenth and nine tenths of them.
fn steady(curve: &[(f64, u64)], before: u64, events: u64) -> Option<f64> {
    let reached = |part: u64| curve.iter().find(|(_, done)| *done >= before + events / 10 * part);
    let ((from, first), (to, last)) = (reached(1)?, reached(9)?);
    (to > from).then(|| (last - first) as f64 / (to - from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_rate_leaves_out_both_ends() {
        let curve = [(0.0, 0), (2.0, 100), (3.0, 500), (4.0, 900), (9.0, 1_000)];
        assert_eq!(steady(&curve, 0, 1_000), Some(400.0));
        assert_eq!(steady(&curve[..1], 0, 1_000), None);
        assert_eq!(steady(&[(0.0, 0), (1.0, 1_000)], 0, 1_000), None, "one step says nothing");
    }
}
