//! The replay that acts: the same range through the real transaction, under a lineage
//! of its own. What the ledger knows leaves batch rows and nothing else; what it did
//! not know is posted.

use super::ReplayError;
use super::crew::{Job, share_out};
use super::difference::{Difference, Differences, NamedEvent, What};
use super::plan::Plan;
use super::post::{Posted, Posting};
use super::run::{Counts, Replay};
use crate::claim::Lineage;
use crate::message::Outcome;
use crate::registry;
use sqlx::FromRow;
use sqlx::postgres::PgConnection;
use tokio::runtime::Runtime;

pub fn execute(
    run: &Replay,
    plan: &Plan,
    lineage: &Lineage,
    connection: &mut PgConnection,
    runtime: &Runtime,
    watch: &dyn Fn(u64, u64) -> bool,
) -> Result<(Counts, Differences), ReplayError> {
    runtime.block_on(registry::register(connection, &run.decoder.rules))?;
    let (job, ranges) = (Job::default(), plan.ranges());
    let total = ranges.left();
    let Replay { database, kafka, decoder, .. } = run;
    let posting = Posting { database, kafka, decoder, topic: &plan.lineage, lineage, job: &job };
    let watch = |done| watch(done, total);
    let mut posted = Posted::default();
    for part in share_out(ranges.split(run.workers), &job, &watch, |share| posting.post(share))? {
        posted.add(part);
    }
    let differences = runtime.block_on(differences(connection, lineage, run.differences))?;
    Ok((counts(&posted), differences))
}

fn counts(posted: &Posted) -> Counts {
    let of = |outcome| posted.count(outcome);
    Counts {
        read: posted.messages(),
        duplicates: of(Outcome::Duplicate),
        superseded: of(Outcome::Superseded),
        conflicts: of(Outcome::Conflict),
        rejected: of(Outcome::Rejected),
        accepted_now: 0,
        new: of(Outcome::Posted) + of(Outcome::Noted) + of(Outcome::Superseded),
        holes: posted.offsets.saturating_sub(posted.messages()),
    }
}

#[derive(FromRow)]
struct Row {
    what: String,
    partition: i32,
    message_offset: i64,
    event_id: Option<String>,
    type_name: String,
    resource: String,
    updated_at: String,
    outcome: String,
    total: i64,
}

/// What the replay has brought to the ledger: rows that name one of its streams.
async fn differences(
    connection: &mut PgConnection,
    lineage: &Lineage,
    most: usize,
) -> Result<Differences, sqlx::Error> {
    // Each kind is counted as a whole, and its first rows are named.
    let rows: Vec<Row> = sqlx::query_as(
        "WITH own AS (SELECT stream, partition FROM streams WHERE cluster_id = $1 AND topic = $2 AND topic_id = $3),
              found (what, stream, message_offset, event_id, resource_id, updated_at, outcome, state) AS (
                  SELECT 'new', stream, message_offset, event_id, resource_id, updated_at, outcome::text, state
                  FROM events WHERE stream IN (SELECT stream FROM own)
                  UNION ALL
                  SELECT 'conflict', stream, message_offset, event_id, resource_id, updated_at, 'C', ''
                  FROM conflicts WHERE stream IN (SELECT stream FROM own)
                  UNION ALL
                  SELECT 'not_in_quarantine', first_stream, first_offset, NULL, NULL, NULL, code, ''
                  FROM quarantine WHERE first_stream IN (SELECT stream FROM own))
         SELECT * FROM (
             SELECT f.what, o.partition, f.message_offset, 'evt_' || encode(f.event_id, 'hex') AS event_id,
                    coalesce(r.kind || CASE f.state WHEN '' THEN '' ELSE '.' || f.state END, '') AS type_name,
                    coalesce(r.path, '') AS resource,
                    coalesce(to_char(f.updated_at, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '') AS updated_at,
                    f.outcome, count(*) OVER (PARTITION BY f.what) AS total,
                    row_number() OVER (PARTITION BY f.what ORDER BY o.partition, f.message_offset) AS nth
             FROM found f JOIN own o USING (stream) LEFT JOIN resources r USING (resource_id)) first
         WHERE nth <= greatest($4, 1) ORDER BY partition, message_offset",
    )
    .bind(&lineage.cluster_id)
    .bind(&lineage.topic)
    .bind(&lineage.topic_id)
    .bind(i64::try_from(most).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    let mut differences = Differences::at_most(most);
    for row in rows {
        let total = u64::try_from(row.total).unwrap_or(0);
        let difference = named(row);
        differences.counts.insert(difference.what, total);
        differences.note(difference, 0);
    }
    Ok(differences)
}

fn named(row: Row) -> Difference {
    let (what, detail) = match row.what.as_str() {
        "conflict" => (What::Conflict, "kept as a conflict".to_owned()),
        "not_in_quarantine" => (What::NotInQuarantine, format!("refused as {} and quarantined", row.outcome)),
        _ => {
            let outcome = Outcome::ALL.into_iter().find(|outcome| row.outcome.as_bytes() == [outcome.byte()]);
            (What::New, outcome.map_or("accepted", Outcome::name).to_owned())
        }
    };
    let (type_name, resource, updated_at) = (row.type_name, row.resource, row.updated_at);
    let event = row.event_id.map(|event_id| NamedEvent { event_id, type_name, resource, updated_at });
    Difference { what, partition: row.partition, offset: row.message_offset, event, detail }
}
