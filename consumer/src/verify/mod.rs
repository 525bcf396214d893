//! Whether the books are right, computed anew from the tables while the consumers write.
//!
//! ```text
//! resources   in chunks of their ids, each with the streams' offsets then:
//!             the position of each by its own facts, added up       resources, sums
//! snapshot    one short moment: streams, accounts, balances         snapshot
//! history     up to those offsets, each table once, page by page:
//!             batches, and the rows that each wrote, hashed again   history, batch, tables
//! compare     balances = postings = positions, for each account     compare
//! blame       only where they differ: which resource, event, offset blame
//! record      how far all of it was right                           record
//! ```
//!
//! It is exact although nothing stands still, because a row is never changed once its
//! offset is passed: a posting counts for the balances if its offset lies before the
//! snapshot's, and for the positions if it lies before that of its own resource's chunk.

mod batch;
mod blame;
mod compare;
mod copy;
mod history;
mod record;
pub mod report;
mod resources;
mod snapshot;
mod sums;
mod tables;

use crate::database::Database;
use crate::error::DatabaseError;
use crate::read::When;
use crate::registry::{self, RulesRefused};
use batch::Ledger;
use history::Histories;
use postonce_schema::{Rules, Timestamp};
use report::{Findings, Report, Totals, VerifiedStream};
use snapshot::Books;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;
use std::time::Instant;
use sums::Sums;
use tables::{Scan, Table};
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
    #[error("table {0} was written anew during the run (VACUUM FULL, CLUSTER); verify again")]
    Rewritten(&'static str),
}

impl From<sqlx::Error> for VerifyError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// Resources read.
    Resources(u64),
    /// Offsets done, of so many.
    Offsets(u64, u64),
}

/// Verifies all of the ledger.
pub async fn verify(
    connection: &mut PgConnection,
    database: &Database,
    rules: &Rules,
    progress: &dyn Fn(Progress),
) -> Result<Report, VerifyError> {
    let (began, started_at) = (Instant::now(), now(connection).await?);
    database.check_migrated(connection).await?;
    registry::check(connection, rules).await?;
    let (mut sums, mut findings, mut totals) = (Sums::default(), Findings::default(), Totals::default());

    let of_resources = |count| progress(Progress::Resources(count));
    let mut resources = resources::read(connection, rules, &mut sums, &mut findings, &of_resources).await?;
    let books = snapshot::books(connection, &mut sums, &mut findings).await?;

    let ledger = Ledger { sums: &mut sums, resources: &mut resources, findings: &mut findings, totals: &mut totals };
    let since = BTreeMap::new();
    let mut histories = Histories::new(ledger, &books.streams, &since);
    let all: u64 = books.streams.values().map(|stream| stream.next_offset.abs_diff(stream.first_offset)).sum();
    let mut scans = scans(connection).await?;
    histories.read(connection, &mut scans, &|done| progress(Progress::Offsets(done, all))).await?;
    for scan in scans {
        scan.finish(connection).await?;
    }
    let (gaps, rejected) = (std::mem::take(&mut histories.gaps), histories.rejected);

    compare::accounts(&sums, &mut findings);
    compare::quarantine(rejected, books.quarantined, &mut findings);
    compare::contested(&resources, &mut findings);
    blame::resources(connection, rules, &sums, &resources, &mut findings).await?;
    blame::name(connection, &books.streams, &mut findings).await?;

    totals.resources = resources.count;
    totals.accounts = u64::try_from(sums.accounts().count()).unwrap_or(u64::MAX);
    let seconds = began.elapsed().as_secs_f64();
    let mut report = Report {
        not_recorded: None,
        verification_id: Uuid::from_u128(rand::random()),
        started_at: When(started_at),
        deep: false,
        since: None,
        findings: findings.count(),
        checks: findings.into_checks(),
        gaps,
        streams: verified(&books),
        totals,
        seconds,
        rows_per_second: rate(&totals, seconds),
    };
    report.not_recorded = record::record(connection, &report, &sums).await?;
    Ok(report)
}

async fn scans(connection: &mut PgConnection) -> Result<[Scan; 3], VerifyError> {
    let [events, conflicts, postings] = Table::ALL;
    Ok([
        Scan::whole(connection, events).await?,
        Scan::whole(connection, conflicts).await?,
        Scan::whole(connection, postings).await?,
    ])
}

fn verified(books: &Books) -> Vec<VerifiedStream> {
    let stream = |stream: &snapshot::Stream| VerifiedStream {
        stream: stream.stream,
        topic: stream.topic.clone(),
        partition: stream.partition,
        cluster_id: stream.cluster_id.clone(),
        topic_id: stream.topic_id.clone(),
        replay: stream.replay,
        from_offset: stream.first_offset,
        next_offset: stream.next_offset,
        batches: stream.batch_seq,
        message_chain: stream.message_chain,
        batch_chain: stream.batch_chain,
        topic_from: None,
        topic_not_read: None,
    };
    let mut streams: Vec<VerifiedStream> = books.streams.values().map(stream).collect();
    streams.sort_by(|a, b| (&a.topic, &a.topic_id, a.partition).cmp(&(&b.topic, &b.topic_id, b.partition)));
    streams
}

fn rate(totals: &Totals, seconds: f64) -> f64 {
    let rows = [totals.batches, totals.events, totals.conflicts, totals.postings, totals.resources, totals.messages];
    let rows: u64 = rows.into_iter().fold(0, u64::saturating_add);
    // Exact to a dozen digits: for a person to read.
    let rows = f64::from(u32::try_from(rows / 1000).unwrap_or(u32::MAX)) * 1000.0;
    if seconds > 0.0 { rows / seconds } else { 0.0 }
}

/// By the database's clock.
async fn now(connection: &mut PgConnection) -> Result<Timestamp, VerifyError> {
    let When(now) = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        .fetch_one(connection)
        .await?;
    Ok(now)
}
