//! What was accepted and should be looked at: which incidents there are, and one with the
//! history of its resource and, for a conflict, every content of the event.

use super::CaseError;
use super::actions::{Action, of_incident};
use super::cursor::Cursor;
use super::key::IncidentKey;
use super::name::Name;
use crate::error::DatabaseError;
use crate::read::trace::{ResourceTrace, trace_resource};
use crate::read::{When, snapshot};
use postonce_schema::Timestamp;
use serde::Serialize;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

/// The most rows that an ambiguous name is answered with.
const MOST_NAMED: i64 = 20;

/// Which incidents.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The closed ones too.
    pub all_states: bool,
    pub code: Option<String>,
    pub kind: Option<String>,
    /// The resource's path.
    pub resource: Option<String>,
    /// When it was opened; inclusive.
    pub since: Option<Timestamp>,
    /// Exclusive.
    pub until: Option<Timestamp>,
}

/// An incident as a list shows it.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct Incident {
    /// Where the event came that opened it, `topic/partition/offset`: its name.
    pub place: String,
    pub code: String,
    pub kind: Option<String>,
    pub resource: Option<String>,
    pub event_id: String,
    pub updated_at: When,
    pub detail: String,
    pub opened_at: When,
    pub closed_at: Option<When>,
    #[serde(skip)]
    stream: i64,
    #[serde(skip)]
    message_offset: i64,
    #[serde(skip)]
    event: Vec<u8>,
    #[serde(skip)]
    resource_id: Uuid,
}

/// One page, newest first.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    pub incidents: Vec<Incident>,
    pub next: Option<Cursor>,
}

/// One content that came under an event's id.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Content {
    pub fingerprint: String,
    /// `topic/partition/offset`
    pub place: String,
    pub message_time: Option<When>,
    pub source: Option<String>,
    /// The bytes; the ledger keeps those of later contents. Those of the first arrival
    /// stand in the topic.
    pub kept: bool,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<u8>,
    pub cluster_id: Option<String>,
    pub topic: Option<String>,
    pub topic_id: Option<String>,
    pub partition: Option<i32>,
    pub offset: i64,
}

/// An incident with what a person needs to judge it.
pub struct Detail {
    pub incident: Incident,
    /// The resource with every event of it; none where its row is gone.
    pub history: Option<ResourceTrace>,
    /// Every content of the event, the first arrival first. One, but for a conflict.
    pub contents: Vec<Content>,
    pub actions: Vec<Action>,
}

impl Incident {
    pub fn key(&self) -> IncidentKey {
        IncidentKey { stream: self.stream, offset: self.message_offset, code: self.code.clone() }
    }

    /// Refuses to close what is closed.
    pub fn check_open(&self) -> Result<(), CaseError> {
        let Some(at) = self.closed_at else { return Ok(()) };
        let how = format!("it was closed at {at}; `postonce incidents show` tells by whom");
        Err(CaseError::NotOpen { name: self.place.clone(), how })
    }
}

macro_rules! incidents {
    ($rest:literal) => {
        concat!(
            "SELECT coalesce(s.topic || '/' || s.partition, i.stream::text) || '/' || i.message_offset AS place, i.code,
       r.kind, r.path AS resource, 'evt_' || encode(i.event_id, 'hex') AS event_id,
       (extract(epoch FROM i.updated_at) * 1000000)::bigint AS updated_at, i.detail,
       (extract(epoch FROM i.opened_at) * 1000000)::bigint AS opened_at,
       (extract(epoch FROM i.closed_at) * 1000000)::bigint AS closed_at,
       i.stream, i.message_offset, i.event_id AS event, i.resource_id
FROM incidents i
LEFT JOIN resources r ON r.resource_id = i.resource_id
LEFT JOIN streams s ON s.stream = i.stream
",
            $rest
        )
    };
}

/// One page of the incidents that fit, newest first by when they were opened.
pub async fn list(
    connection: &mut PgConnection,
    filter: &Filter,
    limit: u16,
    before: Option<&Cursor>,
) -> Result<Page, CaseError> {
    let place = before.map(Cursor::place).transpose()?;
    let rows: Vec<Incident> = sqlx::query_as(incidents!(
        "WHERE ($1 OR i.closed_at IS NULL) AND ($2::text IS NULL OR i.code = $2) AND ($3::text IS NULL OR r.kind = $3)
           AND ($4::text IS NULL OR r.path = $4)
           AND ($5::text IS NULL OR i.opened_at >= $5::text::timestamptz)
           AND ($6::text IS NULL OR i.opened_at < $6::text::timestamptz)
           AND ($7::text IS NULL
                OR (i.opened_at, i.stream, i.message_offset, i.code) < ($7::text::timestamptz, $8::bigint, $9::bigint, $10::text))
         ORDER BY i.opened_at DESC, i.stream DESC, i.message_offset DESC, i.code DESC LIMIT $11"
    ))
    .bind(filter.all_states)
    .bind(&filter.code)
    .bind(&filter.kind)
    .bind(&filter.resource)
    .bind(filter.since.map(|time| time.to_string()))
    .bind(filter.until.map(|time| time.to_string()))
    .bind(before.map(|cursor| cursor.time.to_string()))
    .bind(place.map(|(stream, _)| stream))
    .bind(place.map(|(_, offset)| offset))
    .bind(before.map(|cursor| &cursor.code))
    .bind(i64::from(limit) + 1)
    .fetch_all(connection)
    .await?;
    let more = rows.len() > usize::from(limit);
    let incidents: Vec<Incident> = rows.into_iter().take(usize::from(limit)).collect();
    let cursor = |last: &Incident| Cursor {
        time: last.opened_at.0,
        key: format!("{}-{}", last.stream, last.message_offset),
        code: last.code.clone(),
    };
    let next = incidents.last().filter(|_| more).map(cursor);
    Ok(Page { incidents, next })
}

/// The keys of all open incidents that fit, in the order of the topic.
pub async fn open_keys(connection: &mut PgConnection, filter: &Filter) -> Result<Vec<IncidentKey>, DatabaseError> {
    let keys = sqlx::query_as(
        "SELECT i.stream, i.message_offset AS \"offset\", i.code
         FROM incidents i LEFT JOIN resources r ON r.resource_id = i.resource_id
         WHERE i.closed_at IS NULL AND ($1::text IS NULL OR i.code = $1) AND ($2::text IS NULL OR r.kind = $2)
           AND ($3::text IS NULL OR r.path = $3)
           AND ($4::text IS NULL OR i.opened_at >= $4::text::timestamptz)
           AND ($5::text IS NULL OR i.opened_at < $5::text::timestamptz)
         ORDER BY i.stream, i.message_offset, i.code",
    );
    Ok(keys
        .bind(&filter.code)
        .bind(&filter.kind)
        .bind(&filter.resource)
        .bind(filter.since.map(|time| time.to_string()))
        .bind(filter.until.map(|time| time.to_string()))
        .fetch_all(connection)
        .await?)
}

/// The one incident of this name, and of this code where one is given.
pub async fn find(connection: &mut PgConnection, name: &Name, code: Option<&str>) -> Result<Incident, CaseError> {
    let mut rows: Vec<Incident> = match name {
        Name::Prefix(prefix) => {
            let rows = sqlx::query_as(incidents!(
                "WHERE i.event_id BETWEEN $1 AND $2 AND ($3::text IS NULL OR i.code = $3)
                 ORDER BY i.opened_at, i.stream, i.message_offset, i.code LIMIT $4"
            ));
            rows.bind(prefix.least.as_slice())
                .bind(prefix.greatest.as_slice())
                .bind(code)
                .bind(MOST_NAMED)
                .fetch_all(connection)
                .await?
        }
        Name::Place(place) => {
            let rows = sqlx::query_as(incidents!(
                "WHERE s.topic = $1 AND s.partition = $2 AND i.message_offset = $3 AND ($4::text IS NULL OR i.code = $4)
                 ORDER BY i.opened_at, i.stream, i.message_offset, i.code LIMIT $5"
            ));
            let rows = rows.bind(&place.topic).bind(place.partition).bind(place.offset).bind(code).bind(MOST_NAMED);
            rows.fetch_all(connection).await?
        }
    };
    match (rows.pop(), rows.as_slice()) {
        (Some(only), []) => Ok(only),
        (None, _) => {
            let (what, list) = ("incident", "postonce incidents list");
            Err(CaseError::NotFound { what, name: name.to_string(), list })
        }
        (Some(last), others) => {
            let told = |one: &Incident| format!("{} --code {} ({})", one.place, one.code, one.event_id);
            let found = others.iter().chain([&last]).map(told).collect();
            Err(CaseError::Ambiguous { what: "incidents", name: name.to_string(), found })
        }
    }
}

/// An incident with its resource's history and the contents of its event, all of one moment.
pub async fn show(connection: &mut PgConnection, name: &Name, code: Option<&str>) -> Result<Detail, CaseError> {
    let mut snapshot = snapshot(connection).await?;
    let incident = find(&mut snapshot, name, code).await?;
    let history = trace_resource(&mut snapshot, incident.resource_id).await?;
    let contents = sqlx::query_as(CONTENTS)
        .bind(&incident.event)
        .bind(incident.updated_at.to_string())
        .fetch_all(&mut *snapshot)
        .await?;
    let actions = of_incident(&mut snapshot, &incident.key()).await?;
    snapshot.commit().await?;
    Ok(Detail { incident, history, contents, actions })
}

const CONTENTS: &str = "
WITH seen AS (
    SELECT stream, message_offset, fingerprint, message_time, source, false AS kept,
           NULL::bytea AS key, NULL::bytea AS value, ''::bytea AS headers
    FROM events WHERE updated_at = $2::text::timestamptz AND event_id = $1
    UNION ALL
    SELECT stream, message_offset, fingerprint, message_time, source, true, key, value, headers
    FROM conflicts WHERE event_id = $1
)
SELECT replace(e.fingerprint::text, '-', '') AS fingerprint,
       coalesce(s.topic || '/' || s.partition, e.stream::text) || '/' || e.message_offset AS place,
       (extract(epoch FROM e.message_time) * 1000000)::bigint AS message_time, e.source, e.kept, e.key, e.value, e.headers,
       s.cluster_id, s.topic, s.topic_id, s.partition, e.message_offset AS \"offset\"
FROM seen e LEFT JOIN streams s ON s.stream = e.stream
ORDER BY e.kept, e.stream, e.message_offset";
