//! Whether the books are right, computed anew from the tables while the consumers write.
//!
//! ```text
//! resources   in chunks of their ids, each with the streams' offsets then:
//!             the position of each by its own facts, added up       resources, sums
//! snapshot    one short moment: streams, accounts, balances         snapshot
//! history     up to those offsets, each table once, page by page:
//!             batches, and the rows that each wrote, hashed again   history, batch, tables
//! accounts    the rows by which each account's postings are found   accounts
//! compare     balances = postings = positions, for each account     compare
//! blame       only where they differ: which resource, event, offset blame, suspects
//! gaps        who has accepted what is lost                         gaps
//! topic       with --deep and --against: every message against      topic, partition,
//!             the tables, and the chain against what was signed     known, against
//! record      how far all of it was right                           record
//! ```
//!
//! `since` goes on from the last run without findings instead of from the beginning.
//!
//! It is exact although nothing stands still, because a row is never changed once its
//! offset is passed: a posting counts for the balances if its offset lies before the
//! snapshot's, and for the positions if it lies before that of its own resource's chunk.

mod accounts;
mod against;
mod batch;
mod blame;
mod compare;
mod copy;
mod gaps;
mod history;
mod known;
mod partition;
mod record;
pub mod report;
mod resources;
mod since;
mod snapshot;
mod sums;
mod suspects;
mod tables;
mod topic;

use crate::checkpoint::Checkpoint;
use crate::config::Kafka;
use crate::database::Database;
use crate::digest::DigestError;
use crate::error::DatabaseError;
use crate::read::When;
use crate::registry::{self, RulesRefused};
use crate::reread::{RereadError, Source};
use batch::Ledger;
use history::Histories;
use postonce_schema::Decoder;
use report::{Against, Findings, Gap, Report, Totals, VerifiedStream};
use resources::Resources;
use since::Last;
use snapshot::{Books, Stream};
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;
use std::time::Instant;
use sums::Sums;
use tables::{Scan, Table};
use topic::Reading;
use uuid::Uuid;

/// Why nothing can be said of the books.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Copy(#[from] copy::Unreadable),
    #[error(transparent)]
    Rules(#[from] RulesRefused),
    #[error(transparent)]
    Topic(#[from] RereadError),
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error("table {0} was written anew during the run (VACUUM FULL, CLUSTER); verify again")]
    Rewritten(&'static str),
    #[error(
        "there is no verification without findings to go on from; run `postonce verify` without --since-last first, as \
         a role that may write `verifications`, such as postonce_operator"
    )]
    NoFormerRun,
    #[error(
        "the checkpoint signs off {signed}, and this is {asked}: it proves nothing here. Was another --topic or broker \
         meant? A topic that was made again is another one"
    )]
    OtherTopic { signed: String, asked: String },
    #[error("nothing of the checkpoint can be proved: {0}")]
    NothingProved(String),
}

impl From<sqlx::Error> for VerifyError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What is to be verified.
pub struct Request<'r> {
    /// The rules. With `deep`, allow every kind and every clock: what a consumer has
    /// accepted is no question any more.
    pub decoder: &'r Decoder,
    /// On from the last run without findings.
    pub since_last: bool,
    /// The topic too.
    pub topic: Option<Topic<'r>>,
}

/// What is read again of the topic.
#[derive(Clone, Copy)]
pub struct Topic<'r> {
    pub kafka: &'r Kafka,
    /// All of it, or only what the checkpoint signs off.
    pub deep: bool,
    pub against: Option<&'r Checkpoint>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// Resources read.
    Resources(u64),
    /// Offsets done, of so many.
    Offsets(u64, u64),
    /// Offsets read again from the topic, of so many.
    Topic(u64, u64),
}

/// A run on its way: what it adds up and what it finds.
struct Run<'r> {
    connection: &'r mut PgConnection,
    request: &'r Request<'r>,
    source: Option<Source>,
    progress: &'r dyn Fn(Progress),
    sums: Sums,
    findings: Findings,
    totals: Totals,
}

/// Verifies the ledger.
pub async fn verify(
    connection: &mut PgConnection,
    database: &Database,
    request: &Request<'_>,
    progress: &dyn Fn(Progress),
) -> Result<Report, VerifyError> {
    let began = Instant::now();
    database.check_migrated(connection).await?;
    registry::check(connection, &request.decoder.rules).await?;
    let started_at = now(connection).await?;
    // First of all: it fails at once, not after the tables.
    let source = request.topic.as_ref().map(open).transpose()?;
    let (sums, findings, totals) = (Sums::default(), Findings::default(), Totals::default());
    let mut run = Run { connection, request, source, progress, sums, findings, totals };

    let last = if request.since_last { Some(since::last(run.connection, &mut run.sums).await?) } else { None };
    let mut resources = run.resources().await?;
    let books = snapshot::books(run.connection, &mut run.sums, &mut run.findings).await?;
    let (mut gaps, mut against) = (Vec::new(), None);
    let mut streams = verified(&books.streams, last.as_ref());
    if run.goes_on(last.as_ref(), &books.streams).await? {
        gaps = run.tables(last.as_ref(), &books, &mut resources).await?;
        gaps::accepted(run.connection, &mut gaps, &mut run.findings).await?;
        against = run.topic(last.as_ref(), &books.streams, &mut streams).await?;
    }
    blame::name(run.connection, &books.streams, &mut run.findings).await?;

    run.totals.accounts = u64::try_from(run.sums.accounts().count()).unwrap_or(u64::MAX);
    let seconds = began.elapsed().as_secs_f64();
    let mut report = Report {
        verification_id: Uuid::from_u128(rand::random()),
        not_recorded: None,
        started_at,
        deep: request.topic.is_some_and(|topic| topic.deep),
        since: last.map(|last| last.started_at),
        findings: run.findings.count(),
        checks: run.findings.into_checks(),
        gaps,
        streams,
        against,
        totals: run.totals,
        seconds,
        rows_per_second: rate(&run.totals, seconds),
    };
    report.not_recorded = record::record(run.connection, &report, (&run.sums, books.quarantined)).await?;
    Ok(report)
}

/// Connects, and refuses a checkpoint of another topic.
fn open(topic: &Topic<'_>) -> Result<Source, VerifyError> {
    let source = Source::open(topic.kafka)?;
    topic.against.map(|checkpoint| against::is_of(checkpoint, source.lineage())).transpose()?;
    Ok(source)
}

impl Run<'_> {
    /// What all resources hold. Where only new events are looked at, their resources are
    /// judged at the end, one by one.
    async fn resources(&mut self) -> Result<Resources, VerifyError> {
        if self.request.since_last {
            return Ok(Resources::one_by_one());
        }
        let progress = |count| (self.progress)(Progress::Resources(count));
        let rules = &self.request.decoder.rules;
        resources::read(self.connection, rules, &mut self.sums, &mut self.findings, &progress).await
    }

    /// Whether there is something to go on from: what the last run saw is still there.
    async fn goes_on(&mut self, last: Option<&Last>, streams: &BTreeMap<i64, Stream>) -> Result<bool, VerifyError> {
        if let Some(last) = last {
            since::still_there(self.connection, last, streams, &mut self.findings).await?;
        }
        Ok(self.findings.of(report::Check::Since) == 0)
    }

    /// The tables against each other.
    async fn tables(
        &mut self,
        last: Option<&Last>,
        books: &Books,
        resources: &mut Resources,
    ) -> Result<Vec<Gap>, VerifyError> {
        let rules = &self.request.decoder.rules;
        let (gaps, rejected) = self.history(last, &books.streams, resources).await?;
        let before = last.map_or(0, |last| last.quarantined);
        self.account_postings(last, &books.streams).await?;
        compare::accounts(&self.sums, &mut self.findings);
        compare::quarantine(rejected, books.quarantined.saturating_sub(before), &mut self.findings);
        match &resources.touched {
            Some(touched) => {
                since::touched(self.connection, rules, touched, &mut self.findings).await?;
                self.totals.resources = u64::try_from(touched.len()).unwrap_or(u64::MAX);
            }
            None => {
                compare::contested(resources, &mut self.findings);
                blame::resources(self.connection, rules, &self.sums, resources, &mut self.findings).await?;
                self.totals.resources = resources.count;
            }
        }
        Ok(gaps)
    }

    /// What each account's statement is found by.
    async fn account_postings(
        &mut self,
        last: Option<&Last>,
        streams: &BTreeMap<i64, Stream>,
    ) -> Result<(), VerifyError> {
        let scan = match last {
            Some(last) => since::account_postings(last, streams),
            None => accounts::whole(self.connection).await?,
        };
        accounts::read(self.connection, scan, streams, &mut self.sums, &mut self.findings).await
    }

    /// Every batch with its rows: the accepted gaps, and how many messages were refused.
    async fn history(
        &mut self,
        last: Option<&Last>,
        streams: &BTreeMap<i64, Stream>,
        resources: &mut Resources,
    ) -> Result<(Vec<Gap>, u64), VerifyError> {
        let from_beginning = BTreeMap::new();
        let since = last.map_or(&from_beginning, |last| &last.heads);
        let from = |stream: &Stream| since.get(&stream.stream).map_or(stream.first_offset, |head| head.next_offset);
        let all: u64 = streams.values().map(|stream| stream.next_offset.abs_diff(from(stream))).sum();
        let mut scans = match last {
            Some(last) => since::scans(last, streams),
            None => scans(self.connection).await?,
        };
        let ledger = Ledger { sums: &mut self.sums, resources, findings: &mut self.findings, totals: &mut self.totals };
        let mut histories = Histories::new(ledger, streams, since);
        let progress = |done| (self.progress)(Progress::Offsets(done, all));
        histories.read(self.connection, &mut scans, &progress).await?;
        let found = (std::mem::take(&mut histories.gaps), histories.rejected);
        for scan in scans {
            scan.finish(self.connection).await?;
        }
        Ok(found)
    }

    /// The topic against the tables, and against what was signed off.
    async fn topic(
        &mut self,
        last: Option<&Last>,
        streams: &BTreeMap<i64, Stream>,
        verified: &mut [VerifiedStream],
    ) -> Result<Option<Against>, VerifyError> {
        let (Some(topic), Some(source)) = (&self.request.topic, &self.source) else { return Ok(None) };
        let (decoder, from_beginning) = (self.request.decoder, BTreeMap::new());
        let since = last.map_or(&from_beginning, |last| &last.deep);
        let reading = Reading { source, topic, decoder, since };
        let progress = |done, all| (self.progress)(Progress::Topic(done, all));
        self.totals.messages =
            topic::read(self.connection, &reading, streams, verified, &mut self.findings, &progress).await?;
        let Some(checkpoint) = topic.against else { return Ok(None) };
        let streams = (streams, &*verified);
        Ok(Some(against::check(self.connection, checkpoint, &decoder.rules, streams, &mut self.findings).await?))
    }
}

async fn scans(connection: &mut PgConnection) -> Result<[Scan; 3], VerifyError> {
    let [events, conflicts, postings] = Table::ALL;
    Ok([events.whole(connection).await?, conflicts.whole(connection).await?, postings.whole(connection).await?])
}

fn verified(streams: &BTreeMap<i64, Stream>, last: Option<&Last>) -> Vec<VerifiedStream> {
    let verified = |stream: &Stream| VerifiedStream {
        stream: stream.stream,
        topic: stream.topic.clone(),
        partition: stream.partition,
        cluster_id: stream.cluster_id.clone(),
        topic_id: stream.topic_id.clone(),
        replay: stream.replay,
        from_offset: last
            .and_then(|last| last.heads.get(&stream.stream))
            .map_or(stream.first_offset, |head| head.next_offset),
        next_offset: stream.next_offset,
        batches: stream.batch_seq,
        message_chain: stream.message_chain,
        batch_chain: stream.batch_chain,
        deep: false,
        topic_from: None,
        topic_to: None,
        topic_not_read: None,
    };
    let mut all: Vec<VerifiedStream> = streams.values().map(verified).collect();
    all.sort_by(|a, b| (&a.topic, &a.topic_id, a.partition).cmp(&(&b.topic, &b.topic_id, b.partition)));
    all
}

fn rate(totals: &Totals, seconds: f64) -> f64 {
    let rows = [totals.batches, totals.events, totals.conflicts, totals.postings, totals.resources, totals.messages];
    let rows: u64 = rows.into_iter().fold(0, u64::saturating_add);
    // Exact to a dozen digits: for a person to read.
    let rows = f64::from(u32::try_from(rows / 1000).unwrap_or(u32::MAX)) * 1000.0;
    if seconds > 0.0 { rows / seconds } else { 0.0 }
}

/// By the database's clock.
async fn now(connection: &mut PgConnection) -> Result<When, VerifyError> {
    let now = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
    Ok(now.fetch_one(connection).await?)
}
