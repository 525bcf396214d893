//! `postonce demo`: the whole path on one machine, with a crash in the middle.
//!
//! ```text
//! parts      a private Postgres, a mock broker in this process, an empty ledger
//! consumer   `postonce consume` as a child process, to be killed and started again
//! watch      how far the ledger is, seen from outside
//! books      what the ledger says after each pass
//! checks     what must hold at the end, each able to fail
//! positions  what all resources hold, computed anew from their facts
//! report     the tables
//! steady     `--watch`: no crash and no end, and a dashboard
//! prometheus the real one, where it is installed
//! ```

mod books;
mod checks;
mod consumer;
mod parts;
mod positions;
mod progress;
mod prometheus;
mod report;
mod steady;
mod watch;

use crate::commands::interrupt;
use books::{Books, Expected};
use checks::Check;
use consumer::Consumer;
use indicatif::HumanCount;
use parts::Parts;
use postonce_producer::generate::{Generator, Summary, Workload};
use progress::{Step, say};
use std::fmt;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use watch::Watched;

/// What the demo is asked for.
#[derive(Debug, Clone)]
pub struct Settings {
    pub events: u64,
    pub seed: u64,
    pub workers: u16,
    /// Leave Postgres running at the end.
    pub keep: bool,
}

impl Settings {
    fn workload(&self) -> Workload {
        Workload {
            duplicates: 0.1,
            disorder: 0.2,
            poison: 0.01,
            conflicts: 0.001,
            ..Workload::new(self.events, self.seed)
        }
    }

    /// Small, so that there are many transactions and a crash can meet one halfway.
    fn batch(&self) -> u64 {
        (self.events / 50).clamp(50, 2_000)
    }
}

/// A signal has ended the demo. What was started is stopped and removed.
#[derive(Debug)]
pub struct Interrupted(pub i32);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Asked wherever something may take long.
fn go_on() -> Result<(), Interrupted> {
    interrupt::signal().map_or(Ok(()), |signal| Err(Interrupted(signal)))
}

/// No crash and no end: a steady workload of so many messages a second, to be watched.
pub fn watch(settings: &Settings, rate: NonZeroU32) -> anyhow::Result<()> {
    steady::run(settings, rate)
}

/// Runs the demo; whether all checks hold.
pub fn run(settings: &Settings) -> anyhow::Result<bool> {
    let began = Instant::now();
    say(&format!(
        "Postonce demo: {} messages, seed {}. Everything is private to this run{}.\n",
        HumanCount(settings.events),
        settings.seed,
        if settings.keep { "" } else { " and removed at its end" },
    ))?;
    let mut parts = set_up(settings)?;
    let held = match play(settings, &mut parts) {
        Ok(checks) => {
            say(&report::checks(&checks))?;
            checks.iter().all(Check::holds)
        }
        Err(error) => {
            if !error.is::<Interrupted>() {
                parts.show_log();
            }
            return Err(error);
        }
    };
    if !held {
        parts.show_log();
    }
    let seconds = began.elapsed().as_secs_f64();
    let verdict = if held { "All checks hold" } else { "NOT all checks hold" };
    say(&format!("{verdict}; {seconds:.1} s in all."))?;
    if settings.keep {
        say(&parts.keep()?)?;
    }
    Ok(held)
}

fn set_up(settings: &Settings) -> anyhow::Result<Parts> {
    let step = Step::begin("starting Postgres and a Kafka mock broker");
    let parts = Parts::start(settings)?;
    go_on()?;
    step.done(
        &format!("Postgres {} (fsync on), a Kafka mock broker, an empty ledger", parts.postgres_version()),
        &format!("topic {} with {} partitions", parts::TOPIC, parts.partitions()),
    )?;
    Ok(parts)
}

/// From the first message to the last check.
fn play(settings: &Settings, parts: &mut Parts) -> anyhow::Result<Vec<Check>> {
    let summary = send_first(settings, parts)?;
    let (crash, mut consumer, busy) = crash_and_recover(settings, parts)?;
    let first = parts.ask(Books::read)?;
    let second_took = send_again(settings, parts, &mut consumer, &summary)?;
    let second = parts.ask(Books::read)?;
    let memory = crash.peak_memory_kib.max(consumer.peak_memory_kib());
    consumer.stop()?;

    let step = Step::begin("checking");
    let mut checks = vec![checks::crash_in_the_middle(crash.outcomes, settings.events)];
    let passes = [
        (first.outcomes, Expected::first_pass(&summary)),
        (books::difference(&second.outcomes, &first.outcomes), Expected::second_pass(&summary)),
    ];
    checks.extend(checks::outcomes(&passes));
    let log = parts.log()?;
    checks.push(checks::nothing_trimmed(&log));
    checks.extend(parts.ask(async |connection| checks::of_the_ledger(connection, &log, &summary).await)?);
    checks.push(checks::second_pass_changed_nothing(&first, &second));
    checks.extend(checks::memory(memory));
    step.done("checked the books", "")?;

    say(&report::outcomes(&passes, [busy, second_took]))?;
    say(&parts.ask(report::ledger)?)?;
    Ok(checks)
}

fn send_first(settings: &Settings, parts: &Parts) -> anyhow::Result<Summary> {
    let step = Step::begin("sending").of(settings.events);
    let summary = send(settings, parts, &step)?;
    let Summary { unique, duplicates, conflicts, poison, out_of_order, .. } = summary;
    step.done(
        &format!("sent {} messages, each confirmed", HumanCount(summary.events)),
        &format!(
            "{} events, {} duplicates, {} conflicts, {} poison; {} out of order",
            HumanCount(unique),
            HumanCount(duplicates),
            HumanCount(conflicts),
            HumanCount(poison),
            HumanCount(out_of_order),
        ),
    )?;
    Ok(summary)
}

/// Sends the workload, the same one each time.
fn send(settings: &Settings, parts: &Parts, step: &Step) -> anyhow::Result<Summary> {
    let mut generator = Generator::new(settings.workload())?;
    let events = std::iter::from_fn(|| match go_on() {
        Ok(()) => generator.next(),
        Err(_) => None,
    });
    let sent = parts.send(events, |sent| step.at(sent));
    go_on()?;
    sent?;
    Ok(generator.summary().clone())
}

/// Where the consumer was killed.
struct Crash {
    outcomes: u64,
    peak_memory_kib: Option<u64>,
}

/// Starts the consumer, kills it halfway, starts it again and lets it finish. The
/// time is that in which it had the partitions.
fn crash_and_recover(settings: &Settings, parts: &mut Parts) -> anyhow::Result<(Crash, Consumer, Duration)> {
    let all = settings.events;
    let step = Step::begin("consuming").of(all);
    let mut consumer = Consumer::start(parts, settings)?;
    let Watched { busy: busy_before, in_transaction, .. } = watch::until_halfway(parts, &mut consumer, &step, all)?;
    let killed = Instant::now();
    let peak_memory_kib = consumer.peak_memory_kib();
    consumer.kill()?;
    // What was in COMMIT may still succeed: the ledger is read when Postgres has noticed.
    let outcomes = watch::after_the_end(parts)?;
    let transactions = if in_transaction == 1 { "transaction" } else { "transactions" };
    step.done(
        &format!("started `postonce consume`, killed it (SIGKILL) with {in_transaction} {transactions} open"),
        &format!("{} of {} messages have an outcome", HumanCount(outcomes), HumanCount(all)),
    )?;

    let step = Step::begin("consuming").of(all);
    let mut consumer = Consumer::start(parts, settings)?;
    let watched = watch::until(parts, &mut consumer, &step, 0, all)?;
    step.done(
        &format!("started it again: all {} have an outcome", HumanCount(all)),
        &format!(
            "the group handed the dead consumer's partitions over {:.1} s after the crash",
            watched.claimed.duration_since(killed).as_secs_f64()
        ),
    )?;
    Ok((Crash { outcomes, peak_memory_kib }, consumer, busy_before + watched.busy))
}

/// Sends everything once more, while the consumer reads.
fn send_again(
    settings: &Settings,
    parts: &mut Parts,
    consumer: &mut Consumer,
    summary: &Summary,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let step = Step::begin("sending again").of(settings.events);
    let again = send(settings, parts, &step)?;
    anyhow::ensure!(again == *summary, "the same seed gave another workload: {again:?} after {summary:?}");
    let all = settings.events * 2;
    watch::until(parts, consumer, &step, settings.events, all)?;
    step.done(
        "sent all of it once more, while the consumer was reading",
        &format!("{} messages have an outcome", HumanCount(all)),
    )?;
    Ok(began.elapsed())
}
