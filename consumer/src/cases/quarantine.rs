//! Refused messages: which there are, and one with all that is kept of it.

use super::CaseError;
use super::actions::{Action, of_message};
use super::cursor::Cursor;
use super::key::MessageKey;
use super::name::Name;
use crate::chain::Hash;
use crate::error::DatabaseError;
use crate::read::{When, snapshot};
use postonce_schema::Timestamp;
use serde::Serialize;
use sqlx::postgres::PgConnection;

/// The most rows that an ambiguous name is answered with.
const MOST_NAMED: i64 = 20;

/// Which rows.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The closed ones too.
    pub all_states: bool,
    pub code: Option<String>,
    /// Of the place where it was first refused.
    pub topic: Option<String>,
    /// When it was first refused; inclusive.
    pub since: Option<Timestamp>,
    /// Exclusive.
    pub until: Option<Timestamp>,
}

/// What has become of a refused message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Open,
    /// Sent again, and nothing was heard of it since.
    Retried,
    /// Sent again, and the same bytes were refused after that.
    RefusedAgain,
    /// By a person.
    Dismissed,
    /// A copy of it was accepted.
    Accepted,
}

/// A refused message without its bytes.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct Refused {
    /// Its hash.
    pub id: String,
    pub code: String,
    #[sqlx(skip)]
    pub state: Option<State>,
    /// Where in the event: a JSON pointer, or `header:NAME`.
    pub place: String,
    pub reason: String,
    /// Where it was first refused, `topic/partition/offset`.
    pub first: String,
    /// Where it was last refused.
    pub last: String,
    pub times_seen: i64,
    /// The Kafka timestamp of the first.
    pub message_time: Option<When>,
    pub first_seen: When,
    pub last_seen: When,
    pub retried_at: Option<When>,
    pub closed_at: Option<When>,
    /// The copy that was accepted, `topic/partition/offset`.
    pub accepted: Option<String>,
    #[serde(skip)]
    hash: Hash,
}

/// One page, newest first.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    pub messages: Vec<Refused>,
    pub next: Option<Cursor>,
}

/// A message as it came.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Original {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// In the form of [`decode_headers`](crate::chain::decode_headers).
    pub headers: Vec<u8>,
    /// Where it was first refused; none where its stream is not known any more.
    pub cluster_id: Option<String>,
    pub topic: Option<String>,
    pub partition: Option<i32>,
    pub offset: i64,
}

impl Refused {
    pub fn key(&self) -> MessageKey {
        MessageKey { hash: self.hash, code: self.code.clone() }
    }

    pub fn state(&self) -> State {
        match (&self.accepted, self.closed_at, self.retried_at) {
            (Some(_), _, _) => State::Accepted,
            (None, Some(_), _) => State::Dismissed,
            (None, None, None) => State::Open,
            (None, None, Some(retried)) if self.last_seen > retried => State::RefusedAgain,
            (None, None, Some(_)) => State::Retried,
        }
    }

    /// Refuses to decide what is decided.
    pub fn check_open(&self) -> Result<(), CaseError> {
        let how = match (self.state(), &self.accepted, self.closed_at) {
            (State::Accepted, Some(place), _) => format!("a copy of it was accepted at {place}"),
            (State::Dismissed, _, Some(at)) => format!("it was dismissed at {at}"),
            _ => return Ok(()),
        };
        Err(CaseError::NotOpen {
            name: self.id.clone(),
            how: format!("{how}; `postonce quarantine show` tells by whom"),
        })
    }
}

macro_rules! refused {
    ($rest:literal) => {
        concat!(
            "SELECT encode(q.message_hash, 'hex') AS id, q.message_hash AS hash, q.code, q.place, q.reason, q.times_seen,
       coalesce(f.topic || '/' || f.partition, q.first_stream::text) || '/' || q.first_offset AS first,
       coalesce(l.topic || '/' || l.partition, q.last_stream::text) || '/' || q.last_offset AS last,
       coalesce(c.topic || '/' || c.partition, q.closed_stream::text) || '/' || q.closed_offset AS accepted,
       (extract(epoch FROM q.message_time) * 1000000)::bigint AS message_time,
       (extract(epoch FROM q.first_seen) * 1000000)::bigint AS first_seen,
       (extract(epoch FROM q.last_seen) * 1000000)::bigint AS last_seen,
       (extract(epoch FROM q.closed_at) * 1000000)::bigint AS closed_at,
       (SELECT (extract(epoch FROM max(a.acted_at)) * 1000000)::bigint FROM actions a
        WHERE a.message_hash = q.message_hash AND a.code = q.code AND a.action = 'quarantine_retry') AS retried_at
FROM quarantine q
LEFT JOIN streams f ON f.stream = q.first_stream
LEFT JOIN streams l ON l.stream = q.last_stream
LEFT JOIN streams c ON c.stream = q.closed_stream
",
            $rest
        )
    };
}

/// One page of the rows that fit, newest first by when they were first refused.
pub async fn list(
    connection: &mut PgConnection,
    filter: &Filter,
    limit: u16,
    before: Option<&Cursor>,
) -> Result<Page, CaseError> {
    let hash = before.map(Cursor::hash).transpose()?;
    let rows: Vec<Refused> = sqlx::query_as(refused!(
        "WHERE ($1 OR q.closed_at IS NULL) AND ($2::text IS NULL OR q.code = $2) AND ($3::text IS NULL OR f.topic = $3)
           AND ($4::text IS NULL OR q.first_seen >= $4::text::timestamptz)
           AND ($5::text IS NULL OR q.first_seen < $5::text::timestamptz)
           AND ($6::text IS NULL OR (q.first_seen, q.message_hash, q.code) < ($6::text::timestamptz, $7::bytea, $8::text))
         ORDER BY q.first_seen DESC, q.message_hash DESC, q.code DESC LIMIT $9"
    ))
    .bind(filter.all_states)
    .bind(&filter.code)
    .bind(&filter.topic)
    .bind(filter.since.map(|time| time.to_string()))
    .bind(filter.until.map(|time| time.to_string()))
    .bind(before.map(|cursor| cursor.time.to_string()))
    .bind(hash.as_ref().map(|hash| hash.as_slice()))
    .bind(before.map(|cursor| &cursor.code))
    .bind(i64::from(limit) + 1)
    .fetch_all(connection)
    .await?;
    let more = rows.len() > usize::from(limit);
    let messages: Vec<Refused> = rows.into_iter().take(usize::from(limit)).map(with_state).collect();
    let cursor = |last: &Refused| Cursor { time: last.first_seen.0, key: last.id.clone(), code: last.code.clone() };
    let next = messages.last().filter(|_| more).map(cursor);
    Ok(Page { messages, next })
}

fn with_state(mut refused: Refused) -> Refused {
    refused.state = Some(refused.state());
    refused
}

/// The keys of all open rows that fit, in the order of the topic.
pub async fn open_keys(connection: &mut PgConnection, filter: &Filter) -> Result<Vec<MessageKey>, DatabaseError> {
    let keys = sqlx::query_as(
        "SELECT q.message_hash AS hash, q.code
         FROM quarantine q LEFT JOIN streams f ON f.stream = q.first_stream
         WHERE q.closed_at IS NULL AND ($1::text IS NULL OR q.code = $1) AND ($2::text IS NULL OR f.topic = $2)
           AND ($3::text IS NULL OR q.first_seen >= $3::text::timestamptz)
           AND ($4::text IS NULL OR q.first_seen < $4::text::timestamptz)
         ORDER BY q.first_stream, q.first_offset, q.message_hash, q.code",
    );
    Ok(keys
        .bind(&filter.code)
        .bind(&filter.topic)
        .bind(filter.since.map(|time| time.to_string()))
        .bind(filter.until.map(|time| time.to_string()))
        .fetch_all(connection)
        .await?)
}

/// The rows of one message: one for each code under which it was refused, or the one of
/// `code`.
pub async fn find(connection: &mut PgConnection, name: &Name, code: Option<&str>) -> Result<Vec<Refused>, CaseError> {
    let rows: Vec<Refused> = match name {
        Name::Prefix(prefix) => {
            let rows = sqlx::query_as(refused!(
                "WHERE q.message_hash BETWEEN $1 AND $2 AND ($3::text IS NULL OR q.code = $3)
                 ORDER BY q.message_hash, q.code LIMIT $4"
            ));
            rows.bind(prefix.least.as_slice())
                .bind(prefix.greatest.as_slice())
                .bind(code)
                .bind(MOST_NAMED)
                .fetch_all(connection)
                .await?
        }
        Name::Place(place) => {
            let rows = sqlx::query_as(refused!(
                "WHERE ($4::text IS NULL OR q.code = $4)
                   AND ((f.topic = $1 AND f.partition = $2 AND q.first_offset = $3)
                     OR (l.topic = $1 AND l.partition = $2 AND q.last_offset = $3)
                     OR (c.topic = $1 AND c.partition = $2 AND q.closed_offset = $3))
                 ORDER BY q.message_hash, q.code LIMIT $5"
            ));
            let rows = rows.bind(&place.topic).bind(place.partition).bind(place.offset).bind(code).bind(MOST_NAMED);
            rows.fetch_all(connection).await?
        }
    };
    let Some(first) = rows.first() else {
        let (what, list) = ("refused message", "postonce quarantine list");
        return Err(CaseError::NotFound { what, name: name.to_string(), list });
    };
    if rows.iter().any(|row| row.hash != first.hash) {
        let mut found: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
        found.dedup();
        return Err(CaseError::Ambiguous { what: "refused messages", name: name.to_string(), found });
    }
    Ok(rows.into_iter().map(with_state).collect())
}

/// The bytes of a message, and where it was first refused.
pub async fn original(connection: &mut PgConnection, key: &MessageKey) -> Result<Option<Original>, DatabaseError> {
    let original = sqlx::query_as(
        "SELECT q.key, q.value, q.headers, f.cluster_id, f.topic, f.partition, q.first_offset AS \"offset\"
         FROM quarantine q LEFT JOIN streams f ON f.stream = q.first_stream
         WHERE q.message_hash = $1 AND q.code = $2",
    );
    Ok(original.bind(key.hash.as_slice()).bind(&key.code).fetch_optional(connection).await?)
}

/// One message with everything that is kept of it.
pub struct Detail {
    /// One for each code.
    pub rows: Vec<Refused>,
    pub original: Original,
    pub actions: Vec<Action>,
}

/// A message with its bytes and what people have decided, all of one moment.
pub async fn show(connection: &mut PgConnection, name: &Name, code: Option<&str>) -> Result<Detail, CaseError> {
    let mut snapshot = snapshot(connection).await?;
    let rows = find(&mut snapshot, name, code).await?;
    let key = rows.first().map(Refused::key).ok_or_else(|| CaseError::Changed(name.to_string()))?;
    let original = original(&mut snapshot, &key).await?.ok_or_else(|| CaseError::Changed(name.to_string()))?;
    let actions = of_message(&mut snapshot, &key.hash).await?;
    snapshot.commit().await?;
    Ok(Detail { rows, original, actions })
}
