//! The dry run: reads topic and ledger, and writes nothing.

use super::ReplayError;
use super::crew::{Job, share_out};
use super::difference::Differences;
use super::judge::{Passed, Said, Seen, Tally};
use super::plan::{Place, Plan, Span};
use crate::chain::Parts;
use crate::claim::Lineage;
use crate::config::Kafka;
use crate::database::Database;
use crate::decide::{Arrival, Known, decide};
use crate::digest::{self, Digest};
use crate::failure::Failure;
use crate::message::Outcome;
use crate::read::snapshot;
use crate::registry;
use crate::reread::{Ranges, Source, Stretch, Watch};
use crate::store::Transaction;
use crate::stream;
use postonce_schema::{Decoder, Rules};
use rdkafka::Message as _;
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Messages that are looked up at once.
const STRETCH: usize = 20_000;

/// What is to be replayed, and against which ledger. Not Debug: properties hold passwords.
pub struct DryRun {
    pub database: Database,
    pub kafka: Kafka,
    pub decoder: Decoder,
    pub from: Vec<Place>,
    pub to: Vec<Place>,
    /// Threads, each with a Kafka consumer and a Postgres connection of its own.
    pub workers: usize,
    /// How many differences are named; all are counted.
    pub differences: usize,
    /// Whether the books are hashed before and after.
    pub digest: bool,
}

/// Messages by what the ledger would make of them now.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub read: u64,
    pub duplicates: u64,
    /// Part of `new`.
    pub superseded: u64,
    pub conflicts: u64,
    pub rejected: u64,
    /// In quarantine in the ledger, accepted by these rules.
    pub accepted_now: u64,
    /// Must be 0.
    pub new: u64,
    /// Offsets without a message.
    pub holes: u64,
}

/// The books and how far they had read, of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Books {
    #[serde(flatten)]
    pub digest: Digest,
    /// Offsets that the live ledger has read, over all its streams.
    pub offsets: i64,
}

/// What a replay has found.
#[derive(Debug)]
pub struct Report {
    pub lineage: Lineage,
    pub spans: Vec<Span>,
    /// Offsets that the live ledger has not read yet.
    pub behind: u64,
    pub counts: Counts,
    pub differences: Differences,
    pub before: Option<Books>,
    pub after: Option<Books>,
    /// Of the reading, without the hashing of the books.
    pub took: Duration,
}

impl Report {
    /// Whether the ledger knows all that was read.
    pub fn is_equal(&self) -> bool {
        self.differences.total() == 0 && !self.books_have_changed()
    }

    /// The books are others although nothing was read from the topic meanwhile.
    pub fn books_have_changed(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => before.offsets == after.offsets && before.digest != after.digest,
            _ => false,
        }
    }
}

/// Replays. `watch` hears how many offsets of how many are through, and says whether to go on.
pub fn dry_run(run: &DryRun, watch: &dyn Fn(u64, u64) -> bool) -> Result<Report, ReplayError> {
    let runtime = runtime()?;
    let mut connection = runtime.block_on(run.database.connect())?;
    runtime.block_on(run.database.check_migrated(&mut connection))?;
    runtime.block_on(registry::check(&mut connection, &run.decoder.rules))?;
    let source = Source::open(&run.kafka)?;
    let plan = runtime.block_on(Plan::make(&source, &mut connection, &run.from, &run.to))?;
    let rules = &run.decoder.rules;
    let before = if run.digest { Some(runtime.block_on(books(&mut connection, rules))?) } else { None };

    let (job, began, ranges) = (Job::default(), Instant::now(), plan.ranges());
    let total = ranges.left();
    let shared = Shared { run, plan: &plan, job: &job, unknown: Mutex::default() };
    let tallies = share_out(ranges.split(run.workers), &job, &|done| watch(done, total), |share| shared.read(share))?;
    let took = began.elapsed();

    same_topic(&run.kafka, &plan.lineage)?;
    let after = if run.digest { Some(runtime.block_on(books(&mut connection, rules))?) } else { None };
    let mut all = shared.tally();
    for tally in tallies {
        all.counts += tally.counts;
        all.differences.add(tally.differences);
    }
    let behind = plan.behind();
    let Plan { lineage, spans } = plan;
    Ok(Report { lineage, spans, behind, counts: all.counts, differences: all.differences, before, after, took })
}

pub(crate) fn runtime() -> Result<Runtime, ReplayError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| ReplayError::Start(format!("no async runtime: {error}")))
}

/// A topic that was made anew while it was read has other messages at the same offsets.
pub(crate) fn same_topic(kafka: &Kafka, lineage: &Lineage) -> Result<(), ReplayError> {
    let now = Source::open(kafka)?;
    if now.lineage() == lineage { Ok(()) } else { Err(ReplayError::TopicChanged(lineage.topic.clone())) }
}

/// Both from one snapshot: the hash belongs to these offsets.
async fn books(connection: &mut PgConnection, rules: &Rules) -> Result<Books, ReplayError> {
    let mut snapshot = snapshot(connection).await?;
    let offsets = sqlx::query_scalar("SELECT coalesce(sum(next_offset), 0)::bigint FROM streams WHERE NOT replay")
        .fetch_one(&mut *snapshot)
        .await?;
    let digest = digest::books(&mut snapshot, rules).await?;
    snapshot.commit().await?;
    Ok(Books { digest, offsets })
}

struct Shared<'r> {
    run: &'r DryRun,
    plan: &'r Plan,
    job: &'r Job,
    /// What was found unknown so far: nothing is written, so a second copy of it would be
    /// taken for another unknown event.
    unknown: Mutex<Known>,
}

impl Shared<'_> {
    fn tally(&self) -> Tally {
        Tally { counts: Counts::default(), differences: Differences::at_most(self.run.differences) }
    }

    /// Reads one share of the partitions to its end.
    fn read(&self, mut ranges: Ranges) -> Result<Tally, ReplayError> {
        let runtime = runtime()?;
        let mut connection = runtime.block_on(self.run.database.connect_worker())?;
        let source = Source::open(&self.run.kafka)?;
        if source.lineage() != &self.plan.lineage {
            return Err(ReplayError::TopicChanged(self.plan.lineage.topic.clone()));
        }
        source.seek(&ranges)?;
        let (mut watch, mut tally) = (Watch::start(&ranges), self.tally());
        while !ranges.is_done() {
            self.job.go_on()?;
            let before = ranges.clone();
            let stretch = source.next(&mut ranges, STRETCH)?;
            watch.check(&ranges)?;
            let passed = passed(&before, &stretch);
            let seen: Vec<Seen<'_>> = stretch.messages.iter().map(|message| self.see(message)).collect();
            let said = runtime.block_on(self.ask(&mut connection, &seen, &passed))?;
            tally.judge(&seen, &passed, &said);
            self.job.add(before.left() - ranges.left());
        }
        Ok(tally)
    }

    fn see<'m>(&'m self, borrowed: &'m rdkafka::message::BorrowedMessage<'_>) -> Seen<'m> {
        let partition = borrowed.partition();
        let message = stream::message(borrowed, self.plan.lineage.stream(partition));
        let (value, timestamp) = (message.value, message.timestamp);
        let wire = postonce_schema::Message { value, headers: &message.headers, timestamp };
        let decoded = self.run.decoder.decode(wire);
        Seen { partition, message, decoded }
    }

    /// Asks the ledger what it says of a stretch, in one snapshot.
    async fn ask(
        &self,
        connection: &mut PgConnection,
        seen: &[Seen<'_>],
        passed: &BTreeMap<i32, Passed>,
    ) -> Result<Said, Failure> {
        let mut books = Transaction::read_only(connection).await?;
        let mut recorded = BTreeMap::new();
        for (partition, Passed { from, to }) in passed {
            recorded.insert(*partition, books.outcomes(self.plan.lineage.stream(*partition), *from, *to).await?);
        }
        let refused = seen.iter().filter(|one| one.decoded.is_err());
        let hashes: HashMap<_, _> =
            refused.map(|one| ((one.partition, one.message.at.offset), Parts::of(&one.message).content())).collect();
        let quarantined = books.quarantined(&hashes.values().copied().collect::<Vec<_>>()).await?;
        let outcomes = self.outcomes(&mut books, seen).await?;
        books.commit().await?;
        Ok(Said { outcomes, hashes, quarantined, recorded })
    }

    /// The outcome of every event that is no duplicate. An event that is known as it is
    /// needs no more: `decide` asks for that first, and for nothing else then.
    async fn outcomes(
        &self,
        books: &mut Transaction<'_>,
        seen: &[Seen<'_>],
    ) -> Result<HashMap<(i32, i64), Outcome>, Failure> {
        let events = seen.iter().filter_map(|one| Some((one.partition, &one.message, one.decoded.as_ref().ok()?)));
        let (partitions, arrivals): (Vec<i32>, Vec<Arrival<'_, '_>>) =
            events.map(|(partition, message, event)| (partition, Arrival { message, event })).unzip();
        let mut others = books.not_known(&arrivals).await?;
        // The order of the topic, whatever the plan of the query.
        others.sort_unstable();
        if others.is_empty() {
            return Ok(HashMap::new());
        }
        let own: Vec<Arrival<'_, '_>> = others.iter().map(|nth| arrivals[*nth].clone()).collect();
        let held = books.read_resources(&own, &self.run.decoder.rules).await?;
        let mut known = books.look_up(own.iter().map(|arrival| arrival.event)).await?;
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        for arrival in &own {
            if let Some(seen) = unknown.get(&arrival.event.id) {
                known.entry(arrival.event.id).or_default().extend(seen);
            }
        }
        let decision = decide(&own, held, known);
        let mut outcomes = HashMap::with_capacity(others.len());
        for ((nth, arrival), (at, outcome)) in others.into_iter().zip(&own).zip(decision.outcomes) {
            if outcome != Outcome::Duplicate {
                unknown.entry(arrival.event.id).or_default().push(arrival.event.fingerprint);
            }
            outcomes.insert((partitions[nth], at.offset), outcome);
        }
        Ok(outcomes)
    }
}

/// The offsets that a stretch has taken from each partition.
fn passed(before: &Ranges, stretch: &Stretch<'_>) -> BTreeMap<i32, Passed> {
    let moved = before.iter().filter_map(|(partition, from, _)| {
        let to = *stretch.positions.get(&partition)?;
        (from < to).then_some((partition, Passed { from, to }))
    });
    moved.collect()
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.read += other.read;
        self.duplicates += other.duplicates;
        self.superseded += other.superseded;
        self.conflicts += other.conflicts;
        self.rejected += other.rejected;
        self.accepted_now += other.accepted_now;
        self.new += other.new;
        self.holes += other.holes;
    }
}
