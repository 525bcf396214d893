//! 2: ours, from memory. The consumer's own transaction, with what comes before it (parse,
//! ids, fingerprint, message chain), fed with messages that lie in memory: no Kafka client.
//!
//! Each worker is a thread with a connection of its own, as in the consumer, and has its
//! share of four partitions. The time runs from the first message that is read to the last
//! commit, parsing included; what it was without is told beside it.

use crate::args::PARTITIONS;
use crate::bench::{Bench, Run};
use crate::ledger::{Ledger, on_threads};
use crate::load::{InMemory, Payments};
use crate::plan::{Contestant, Measurement};
use crate::usage::{Client, Meter};
use anyhow::{Context, Result, ensure};
use postonce_consumer::apply::apply;
use postonce_consumer::batch::{Batch, Positions, Received};
use postonce_consumer::claim::{Claims, Lineage, claim};
use postonce_consumer::config::BATCH_MESSAGES;
use postonce_consumer::message::{At, Message};
use postonce_consumer::store::KnownAccounts;
use postonce_schema::{Decoder, StreamId};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

pub const MEASUREMENT: Measurement = Measurement {
    number: 2,
    name: "memory",
    what: "ours, from memory: the consumer's own transaction, parsing included",
    contestants: &[Contestant { name: "memory", run }],
};

/// The messages' Kafka timestamp: 2026-01-01T00:00:00Z, in milliseconds.
const MESSAGE_TIME: i64 = 1_767_225_600_000;

fn run(bench: &Bench, round: usize) -> Result<Run> {
    let payments = Payments::usual(bench.memory_events());
    of(bench, round, payments)
}

/// The same with other payments.
pub fn of(bench: &Bench, round: usize, payments: Payments) -> Result<Run> {
    let messages = InMemory::of(payments.events, |number, event| payments.write(number, event));
    let ledger = bench.fresh_ledger("memory")?;
    let run = fill(bench, &ledger, &messages)?;
    finish(bench, round, &ledger, run)
}

/// Applies all of them.
pub fn fill(bench: &Bench, ledger: &Ledger<'_>, messages: &InMemory) -> Result<Run> {
    ledger.register_rules(&bench.decoder)?;
    ledger.checkpoint()?;
    let start = Barrier::new(bench.workers + 1);
    let meter = Meter::start(&bench.parts, Client::Ourselves)?;
    let (begun, workers) = std::thread::scope(|scope| {
        let workers = scope.spawn(|| {
            on_threads(bench.workers, |number, runtime| {
                Worker { number, of: bench.workers, runtime, ledger, decoder: &bench.decoder }.work(messages, &start)
            })
        });
        start.wait();
        (Instant::now(), workers.join())
    });
    let seconds = begun.elapsed().as_secs_f64();
    let workers = workers.map_err(|_| anyhow::anyhow!("a worker panicked"))??;
    let events = u64::try_from(messages.len())?;
    let mut run = Run { events, seconds, usage: meter.stop()?, ..Run::default() };
    tell(&mut run, &workers);
    Ok(run)
}

/// What it was without parsing, and how much of the time each step took.
fn tell(run: &mut Run, workers: &[Times]) {
    let slowest = workers.iter().map(|times| (times.all - times.read).as_secs_f64()).fold(0.0, f64::max);
    run.more.insert("events/s without parsing".to_owned(), run.events as f64 / slowest);
    for times in workers {
        let steps = times.steps.iter().map(|(step, time)| (*step, *time)).chain([("parse", times.read)]);
        for (step, time) in steps {
            *run.steps.entry(step).or_default() += time.as_secs_f64() * 1e6 / run.events as f64;
        }
    }
}

/// Size on disk, and whether it is right.
pub fn finish(bench: &Bench, round: usize, ledger: &Ledger<'_>, mut run: Run) -> Result<Run> {
    run.usage.disk_bytes = Some(ledger.disk_bytes("postonce")?);
    ledger.check(run.events, run.events * 2)?;
    if round == 0 {
        ledger.verify(&bench.decoder)?;
    }
    Ok(run)
}

/// The lineage of the streams that come from memory.
pub fn lineage() -> Lineage {
    Lineage { cluster_id: "bench".to_owned(), topic: "memory".to_owned(), topic_id: "memory".to_owned() }
}

/// The partitions of this worker.
pub fn partitions(worker: usize, workers: usize) -> impl Iterator<Item = usize> {
    (worker..PARTITIONS).step_by(workers)
}

struct Worker<'r> {
    number: usize,
    of: usize,
    runtime: &'r Runtime,
    ledger: &'r Ledger<'r>,
    decoder: &'r Decoder,
}

/// Of one worker.
#[derive(Default)]
struct Times {
    all: Duration,
    read: Duration,
    steps: BTreeMap<&'static str, Duration>,
}

impl Worker<'_> {
    fn work(self, messages: &InMemory, start: &Barrier) -> Result<Times> {
        // Also where something fails: the others wait for it.
        let ready = self.runtime.block_on(self.claim());
        start.wait();
        let (mut connection, mut claims) = ready?;
        let mut accounts = KnownAccounts::default();
        let positions = Positions::new();
        // Once for each partition, as the consumer does it.
        let streams = (0..PARTITIONS).map(|partition| Ok(lineage().stream(i32::try_from(partition)?)));
        let streams = streams.collect::<Result<Vec<StreamId>>>()?;
        let mut times = Times::default();
        let begun = Instant::now();
        let mine: Vec<usize> =
            (0..messages.len()).filter(|place| place % PARTITIONS % self.of == self.number).collect();
        for places in mine.chunks(usize::try_from(BATCH_MESSAGES)?) {
            let reading = Instant::now();
            let received =
                places.iter().map(|place| self.read(messages, *place, &streams)).collect::<Result<Vec<_>>>()?;
            times.read += reading.elapsed();
            let batch = Batch { received: &received, positions: &positions };
            let rules = &self.decoder.rules;
            let applied = self.runtime.block_on(apply(&mut connection, &mut accounts, rules, &claims, &batch))?;
            claims.extend(applied.claims.into_iter().map(|claim| (claim.stream, claim)));
            applied.steps.iter().for_each(|(step, time)| *times.steps.entry(step).or_default() += *time);
        }
        times.all = begun.elapsed();
        Ok(times)
    }

    async fn claim(&self) -> Result<(sqlx::PgConnection, Claims)> {
        let mut connection = self.ledger.database.connect_worker().await?;
        let mut claims = Claims::new();
        for partition in partitions(self.number, self.of) {
            let claim = claim(&mut connection, &lineage(), i32::try_from(partition)?, 0).await?;
            claims.insert(claim.stream, claim);
        }
        Ok((connection, claims))
    }

    fn read<'m>(&'m self, messages: &'m InMemory, place: usize, streams: &[StreamId]) -> Result<Received<'m>> {
        let (key, value) = messages.get(place).context("a place behind the last message")?;
        let stream = streams.get(place % PARTITIONS).copied().context("a partition too many")?;
        let message = Message {
            at: At { stream, offset: i64::try_from(place / PARTITIONS)? },
            key: Some(key),
            value: Some(value),
            headers: Vec::new(),
            timestamp: Some(MESSAGE_TIME),
            leader_epoch: Some(0),
        };
        let received = Received::read(message, self.decoder);
        ensure!(received.decoded.is_ok(), "an event of the bench was refused");
        Ok(received)
    }
}
