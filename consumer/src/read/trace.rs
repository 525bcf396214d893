//! `trace`: everything known of a resource, the answer to "why is this balance so?".

use super::reasons::{Contender, Ranks};
use super::{MinorUnits, When, events_of, look_up_only, snapshot};
use crate::error::DatabaseError;
use postonce_schema::{EventId, ResourceId, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;
use std::collections::HashMap;
use uuid::Uuid;

/// A resource with every event seen for it. Duplicates have no row of their own: they
/// are counted in the batch that brought them.
#[derive(Debug, Serialize)]
pub struct ResourceTrace {
    pub kind: String,
    pub resource: String,
    pub resource_id: String,
    pub state: String,
    pub updated_at: When,
    /// How often the state has changed.
    pub revision: i64,
    pub rules_version: i32,
    pub facts: Box<RawValue>,
    /// In the order in which they were recorded.
    pub events: Vec<TracedEvent>,
    pub incidents: Vec<TracedIncident>,
}

/// One event, where it came from and what became of it.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct TracedEvent {
    pub event_id: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub updated_at: When,
    /// posted, noted, superseded or conflict
    pub outcome: String,
    #[sqlx(skip)]
    pub why: String,
    /// Whether this event is the resource's state.
    #[sqlx(skip)]
    pub stands: bool,
    pub topic: Option<String>,
    pub partition: Option<i32>,
    pub offset: i64,
    pub message_time: Option<When>,
    pub source: Option<String>,
    pub recorded_at: Option<When>,
    /// Tells two contents of one event id apart.
    pub fingerprint: String,
    #[sqlx(skip)]
    pub postings: Vec<TracedPosting>,
    #[serde(skip)]
    stream: i64,
}

/// Money from `credit` to `debit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct TracedPosting {
    pub debit: Option<String>,
    pub credit: Option<String>,
    pub amount: MinorUnits,
    pub asset: Option<String>,
    #[serde(skip)]
    stream: i64,
    #[serde(skip)]
    message_offset: i64,
}

/// What a person should look at, or has.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct TracedIncident {
    pub code: String,
    pub event_id: String,
    pub updated_at: When,
    pub detail: String,
    pub opened_at: When,
    pub closed_at: Option<When>,
}

#[derive(sqlx::FromRow)]
struct Resource {
    resource_id: Uuid,
    kind: String,
    path: String,
    state: String,
    updated_at: When,
    revision: i64,
    rules_version: i32,
    facts: String,
}

/// The resources with a path: one at most for each kind. Only `kind`, if it is given.
pub async fn trace(
    connection: &mut PgConnection,
    path: &str,
    kind: Option<&str>,
) -> Result<Vec<ResourceTrace>, DatabaseError> {
    let mut transaction = snapshot(connection).await?;
    let ranks = ranks(&mut transaction).await?;
    let kinds = kind.map_or_else(|| ranks.kinds(), |kind| vec![kind]);
    let ids = kinds.iter().map(|kind| Uuid::from_bytes(*ResourceId::new(kind, path).as_bytes())).collect();
    let traces = of_resources(&mut transaction, ids, &ranks).await?;
    transaction.commit().await?;
    Ok(traces)
}

/// The resource of an event. With the event's updatedAt it is one look at the primary
/// key; without it all events are read, for their ids alone have no index: they are
/// random, and an index on them would cost more than all of the rest.
pub async fn trace_event(
    connection: &mut PgConnection,
    id: EventId,
    updated_at: Option<Timestamp>,
) -> Result<Option<ResourceTrace>, DatabaseError> {
    let mut transaction = snapshot(connection).await?;
    let found: Option<Uuid> = match updated_at {
        Some(time) => {
            let sql = "SELECT resource_id FROM events WHERE event_id = $1 AND updated_at = $2::text::timestamptz";
            let query = sqlx::query_scalar(sql).bind(id.as_bytes().as_slice()).bind(time.to_string());
            query.fetch_optional(&mut *transaction).await?
        }
        None => {
            let sql = "SELECT resource_id FROM events WHERE event_id = $1 LIMIT 1";
            sqlx::query_scalar(sql).bind(id.as_bytes().as_slice()).fetch_optional(&mut *transaction).await?
        }
    };
    let ranks = ranks(&mut transaction).await?;
    let traces = of_resources(&mut transaction, found.into_iter().collect(), &ranks).await?;
    transaction.commit().await?;
    Ok(traces.into_iter().next())
}

/// The resource of this id, within the caller's snapshot.
pub(crate) async fn trace_resource(
    connection: &mut PgConnection,
    id: Uuid,
) -> Result<Option<ResourceTrace>, DatabaseError> {
    let ranks = ranks(connection).await?;
    Ok(of_resources(connection, vec![id], &ranks).await?.into_iter().next())
}

async fn ranks(connection: &mut PgConnection) -> Result<Ranks, DatabaseError> {
    let versions: Vec<(When, String)> = sqlx::query_as(
        "SELECT (extract(epoch FROM valid_from) * 1000000)::bigint, definition FROM rules ORDER BY valid_from",
    )
    .fetch_all(connection)
    .await?;
    let mut ranks = Ranks::default();
    versions.iter().for_each(|(from, definition)| ranks.add(from.0, definition));
    Ok(ranks)
}

async fn of_resources(
    connection: &mut PgConnection,
    ids: Vec<Uuid>,
    ranks: &Ranks,
) -> Result<Vec<ResourceTrace>, DatabaseError> {
    let resources: Vec<Resource> = sqlx::query_as(
        "SELECT resource_id, kind, path, state, (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at,
                revision, rules_version, facts::text AS facts
         FROM resources WHERE resource_id = ANY($1) ORDER BY kind, path",
    )
    .bind(ids)
    .fetch_all(&mut *connection)
    .await?;
    look_up_only(connection).await?;
    let mut traces = Vec::with_capacity(resources.len());
    for resource in resources {
        let events = sqlx::query_as(AssertSqlSafe(events())).bind(resource.resource_id).bind(&resource.kind);
        let mut events: Vec<TracedEvent> = events.fetch_all(&mut *connection).await?;
        attach_postings(connection, &mut events).await?;
        explain(&resource, &mut events, ranks);
        let incidents = sqlx::query_as(INCIDENTS).bind(resource.resource_id).fetch_all(&mut *connection).await?;
        let facts = RawValue::from_string(resource.facts).map_err(|error| sqlx::Error::Decode(error.into()))?;
        traces.push(ResourceTrace {
            kind: resource.kind,
            resource: resource.path,
            resource_id: resource.resource_id.simple().to_string(),
            state: resource.state,
            updated_at: resource.updated_at,
            revision: resource.revision,
            rules_version: resource.rules_version,
            facts,
            events,
            incidents,
        });
    }
    Ok(traces)
}

fn events() -> String {
    let columns = "event_id, state, updated_at, outcome, stream, message_offset, message_time, source, fingerprint";
    format!("WITH seen AS (({}) {CONFLICTS_AND_PLACES}", events_of(columns, "resource_id = $1"))
}

// The state of a conflict stands in the row of its id's first arrival: the id fixes it.
const CONFLICTS_AND_PLACES: &str = "
    UNION ALL
    SELECT c.event_id, first.state, c.updated_at, 'C', c.stream, c.message_offset, c.message_time, c.source, c.fingerprint
    FROM conflicts c JOIN events first USING (updated_at, event_id) WHERE c.resource_id = $1
)
SELECT 'evt_' || encode(e.event_id, 'hex') AS event_id, $2::text || '.' || e.state AS event_type,
       (extract(epoch FROM e.updated_at) * 1000000)::bigint AS updated_at,
       CASE e.outcome WHEN 'P' THEN 'posted' WHEN 'N' THEN 'noted' WHEN 'S' THEN 'superseded'
                      ELSE 'conflict' END AS outcome,
       s.topic, s.partition, e.message_offset AS offset,
       (extract(epoch FROM e.message_time) * 1000000)::bigint AS message_time, e.source,
       (extract(epoch FROM b.recorded_at) * 1000000)::bigint AS recorded_at,
       replace(e.fingerprint::text, '-', '') AS fingerprint, e.stream
FROM seen e
LEFT JOIN streams s ON s.stream = e.stream
LEFT JOIN LATERAL (
    SELECT recorded_at FROM batches WHERE stream = e.stream AND from_offset <= e.message_offset
    ORDER BY from_offset DESC LIMIT 1
) b ON true
ORDER BY b.recorded_at, e.stream, e.message_offset";

const INCIDENTS: &str = "
SELECT code, 'evt_' || encode(event_id, 'hex') AS event_id,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at, detail,
       (extract(epoch FROM opened_at) * 1000000)::bigint AS opened_at,
       (extract(epoch FROM closed_at) * 1000000)::bigint AS closed_at
FROM incidents WHERE resource_id = $1 ORDER BY opened_at, stream, message_offset, code";

async fn attach_postings(connection: &mut PgConnection, events: &mut [TracedEvent]) -> Result<(), DatabaseError> {
    let places: HashMap<(i64, i64), usize> =
        events.iter().enumerate().map(|(i, event)| ((event.stream, event.offset), i)).collect();
    // Only these have posted, and each look costs a range of the table.
    let posted: Vec<&TracedEvent> =
        events.iter().filter(|event| matches!(event.outcome.as_str(), "posted" | "conflict")).collect();
    let (streams, offsets): (Vec<i64>, Vec<i64>) = posted.iter().map(|event| (event.stream, event.offset)).unzip();
    let postings: Vec<TracedPosting> =
        sqlx::query_as(POSTINGS).bind(streams).bind(offsets).fetch_all(connection).await?;
    for posting in postings {
        if let Some(event) = places.get(&(posting.stream, posting.message_offset)).and_then(|i| events.get_mut(*i)) {
            event.postings.push(posting);
        }
    }
    Ok(())
}

// LATERAL with OFFSET 0: one look through the range index for each event. As a plain
// join it may become a scan of all postings.
const POSTINGS: &str = "
SELECT d.path AS debit, c.path AS credit, p.amount::text AS amount, coalesce(d.asset, c.asset) AS asset,
       p.stream, p.message_offset
FROM unnest($1::bigint[], $2::bigint[]) AS e(stream, message_offset)
CROSS JOIN LATERAL (
    SELECT * FROM postings WHERE stream = e.stream AND message_offset = e.message_offset OFFSET 0
) p
LEFT JOIN accounts d ON d.account_id = p.debit
LEFT JOIN accounts c ON c.account_id = p.credit
ORDER BY p.stream, p.message_offset, p.line";

/// Says of each event why it stands or does not.
fn explain(resource: &Resource, events: &mut [TracedEvent], ranks: &Ranks) {
    let state_id = EventId::new(&resource.kind, &resource.state, &resource.path, resource.updated_at.0).to_string();
    let type_name = format!("{}.{}", resource.kind, resource.state);
    let state = Contender { type_name: &type_name, updated_at: resource.updated_at.0 };
    // Of several contents of one id the greatest fingerprint stands.
    let standing =
        events.iter().filter(|event| event.event_id == state_id).map(|event| event.fingerprint.clone()).max();
    for event in events {
        let is_state = event.event_id == state_id;
        event.stands = is_state && standing.as_ref() == Some(&event.fingerprint);
        let did = match event.outcome.as_str() {
            "posted" => "the resource moved to it and posted the difference",
            "noted" => "the resource moved to it, which moved no money",
            "conflict" => "its id was known with another content",
            _ => "not greater than the state, so it posts nothing",
        };
        event.why = if event.stands {
            format!("{did}; it is the state")
        } else if is_state {
            format!("{did}; of the contents of this id another one stands (the greatest fingerprint)")
        } else {
            let loser = Contender { type_name: &event.event_type, updated_at: event.updated_at.0 };
            format!("{did}; {}", ranks.why(state, loser))
        };
    }
}
