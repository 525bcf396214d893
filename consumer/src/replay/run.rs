//! A replay from its plan to its report.

use super::difference::Differences;
use super::dry_run::dry_run;
use super::execute::execute;
use super::plan::{Place, Plan, Span};
use super::{ReplayError, unless_stopped};
use crate::claim::Lineage;
use crate::config::Kafka;
use crate::database::Database;
use crate::digest::{self, Digest};
use crate::read::snapshot;
use crate::registry;
use crate::reread::Source;
use postonce_schema::{Decoder, Rules};
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::time::{Duration, Instant};

/// What is to be replayed, and against which ledger. Not Debug: properties hold passwords.
pub struct Replay {
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
    /// Through the real transaction, under a lineage of its own.
    pub execute: bool,
}

/// Where a replay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The books, before or after.
    Hashing,
    /// Offsets done, of so many.
    Reading(u64, u64),
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
    /// In quarantine in the ledger, accepted by these rules. Those that a person has
    /// dismissed are no difference.
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
    /// The topic id of its streams, where it was executed.
    pub executed: Option<String>,
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

/// Replays. `watch` hears where it is and says whether to go on.
pub fn replay(run: &Replay, watch: &dyn Fn(Progress) -> bool) -> Result<Report, ReplayError> {
    let runtime = super::runtime()?;
    let rules = &run.decoder.rules;
    let mut connection = runtime.block_on(run.database.connect())?;
    runtime.block_on(run.database.check_migrated(&mut connection))?;
    runtime.block_on(registry::check(&mut connection, rules))?;
    let source = Source::open(&run.kafka)?;
    let plan = runtime.block_on(Plan::make(&source, &mut connection, &run.from, &run.to))?;
    let hash = |connection: &mut PgConnection| {
        let books = unless_stopped(books(connection, rules), || watch(Progress::Hashing));
        run.digest.then(|| runtime.block_on(books)).transpose()
    };
    let before = hash(&mut connection)?;

    let began = Instant::now();
    let reading = |done, total| watch(Progress::Reading(done, total));
    let (counts, differences, executed) = if run.execute {
        let lineage = plan.lineage.of_replay();
        let (counts, differences) = execute(run, &plan, &lineage, &mut connection, &runtime, &reading)?;
        (counts, differences, Some(lineage.topic_id))
    } else {
        let tally = dry_run(run, &plan, &reading)?;
        (tally.counts, tally.differences, None)
    };
    let took = began.elapsed();

    same_topic(&run.kafka, &plan.lineage)?;
    let after = hash(&mut connection)?;
    let behind = plan.behind();
    let Plan { lineage, spans } = plan;
    Ok(Report { lineage, spans, behind, counts, differences, before, after, took, executed })
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
