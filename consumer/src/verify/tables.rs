//! The big tables that are only ever added to. A row of theirs keeps its place, so they
//! are read page by page, each page once, each chunk of pages in a snapshot of its own.

use super::VerifyError;
use super::copy::{Row, copy_out};
use crate::rows::{Accepted, Kept, Posted};
use postonce_schema::{AccountId, EventId, Fingerprint, ResourceId};
use sqlx::postgres::PgConnection;
use std::collections::VecDeque;

/// About 16 MB.
const PAGES: i64 = 2048;

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Events,
    Conflicts,
    Postings,
}

/// A row of `events` or `conflicts`, kept until its batch is complete.
#[derive(Debug)]
pub struct Event {
    pub offset: i64,
    pub updated_at: i64,
    pub id: EventId,
    pub resource: ResourceId,
    pub fingerprint: Fingerprint,
    /// `C` for a conflict.
    pub outcome: u8,
    /// Of an event that became the state: when the state before it was.
    pub previous_at: Option<i64>,
    /// What the batch chain hashes.
    pub canonical: Box<[u8]>,
}

/// A table's rows, chunk by chunk.
pub struct Scan {
    table: &'static str,
    columns: &'static str,
    chunks: Chunks,
    /// The file that holds the table: another one means that its rows have moved.
    file: Option<i64>,
}

enum Chunks {
    Pages { next: i64, end: i64 },
    Offsets(VecDeque<String>),
}

/// What a chunk brought.
pub enum Read {
    Event(i64, Event),
    Posting(i64, Posted),
}

impl Table {
    pub const ALL: [Self; 3] = [Self::Events, Self::Conflicts, Self::Postings];

    pub fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Conflicts => "conflicts",
            Self::Postings => "postings",
        }
    }

    /// All columns that are checked.
    pub fn columns(self) -> &'static str {
        match self {
            Self::Events => {
                "stream, message_offset, updated_at, event_id, resource_id, fingerprint, message_time, source,
                 outcome, state, previous_at"
            }
            // The bytes themselves stay where they are.
            Self::Conflicts => {
                "stream, message_offset, updated_at, event_id, resource_id, fingerprint, message_time, source,
                 sha256(value)"
            }
            Self::Postings => "stream, message_offset, line, debit, credit, amount, effective_at",
        }
    }

    /// All of them, and no condition yet.
    pub fn select(self) -> String {
        format!("SELECT {} FROM {}", self.columns(), self.name())
    }

    /// All of it.
    pub async fn whole(self, connection: &mut PgConnection) -> Result<Scan, VerifyError> {
        Scan::whole(connection, self.name(), self.columns()).await
    }

    /// Only the rows of these ranges of offsets.
    pub fn offsets(self, conditions: impl IntoIterator<Item = String>) -> Scan {
        Scan::offsets(self.name(), self.columns(), conditions)
    }

    pub fn read(self, row: &mut Row<'_>) -> Result<Read, VerifyError> {
        match self {
            Self::Events => self.event(row),
            Self::Conflicts => self.event(row),
            Self::Postings => {
                let (stream, posting) = posting(row)?;
                Ok(Read::Posting(stream, posting))
            }
        }
    }

    fn event(self, row: &mut Row<'_>) -> Result<Read, VerifyError> {
        let (stream, offset, updated_at) = (row.i64()?, row.i64()?, row.time()?);
        let (id, resource, fingerprint): ([u8; 32], [u8; 16], [u8; 16]) = (row.array()?, row.array()?, row.array()?);
        let (message_time, source) = (row.optional_time()?, row.optional_text()?);
        let kept = match self {
            Self::Conflicts => Kept::Conflict { value: row.array::<32>()? },
            _ => Kept::Event { outcome: row.byte()?, state: row.text()? },
        };
        let previous_at = if self == Self::Events { row.optional_time()? } else { None };
        let mut canonical = Vec::with_capacity(160);
        Accepted {
            offset,
            updated_at,
            event_id: &id,
            resource_id: &resource,
            fingerprint: &fingerprint,
            message_time,
            source,
            kept,
        }
        .canonical(&mut canonical);
        let outcome = match kept {
            Kept::Event { outcome, .. } => outcome,
            Kept::Conflict { .. } => b'C',
        };
        let event = Event {
            offset,
            updated_at,
            id: EventId::from_bytes(id),
            resource: ResourceId::from_bytes(resource),
            fingerprint: Fingerprint::from_bytes(fingerprint),
            outcome,
            previous_at,
            canonical: canonical.into(),
        };
        Ok(Read::Event(stream, event))
    }
}

/// The stream of a posting, and the posting.
pub fn posting(row: &mut Row<'_>) -> Result<(i64, Posted), VerifyError> {
    let (stream, offset, line) = (row.i64()?, row.i64()?, row.i16()?);
    let (debit, credit) = (AccountId::from_bytes(row.array()?), AccountId::from_bytes(row.array()?));
    let (amount, effective_at) = (row.i64()?, row.time()?);
    Ok((stream, Posted { offset, line, debit, credit, amount, effective_at }))
}

impl Scan {
    /// All of the table. Every row that is committed now will come; of later ones some.
    pub async fn whole(
        connection: &mut PgConnection,
        table: &'static str,
        columns: &'static str,
    ) -> Result<Self, VerifyError> {
        let end: i64 =
            sqlx::query_scalar("SELECT pg_relation_size($1::regclass) / current_setting('block_size')::bigint")
                .bind(table)
                .fetch_one(&mut *connection)
                .await?;
        let file = Some(file(connection, table).await?);
        Ok(Self { table, columns, chunks: Chunks::Pages { next: 0, end }, file })
    }

    /// Only the rows of these ranges of offsets, each a condition of its own.
    pub fn offsets(table: &'static str, columns: &'static str, conditions: impl IntoIterator<Item = String>) -> Self {
        Self { table, columns, chunks: Chunks::Offsets(conditions.into_iter().collect()), file: None }
    }

    /// How many are left; none where it goes by offsets.
    pub fn pages(&self) -> usize {
        match self.chunks {
            Chunks::Pages { next, end } => usize::try_from(end.saturating_sub(next)).unwrap_or_default(),
            Chunks::Offsets(_) => 0,
        }
    }

    pub fn is_done(&self) -> bool {
        match &self.chunks {
            Chunks::Pages { next, end } => next >= end,
            Chunks::Offsets(left) => left.is_empty(),
        }
    }

    /// The statement for the next chunk.
    pub fn next_select(&mut self) -> Option<String> {
        let condition = match &mut self.chunks {
            Chunks::Pages { next, end } => {
                let from = *next;
                *next = from.saturating_add(PAGES);
                if from >= *end {
                    return None;
                }
                pages(from, *next)
            }
            Chunks::Offsets(left) => left.pop_front()?,
        };
        Some(format!("SELECT {} FROM {} WHERE {condition}", self.columns, self.table))
    }

    /// Reads the next chunk, if there is one.
    pub async fn read(
        &mut self,
        connection: &mut PgConnection,
        each: impl FnMut(Row<'_>) -> Result<(), VerifyError>,
    ) -> Result<(), VerifyError> {
        let Some(select) = self.next_select() else { return Ok(()) };
        copy_out(connection, &select, each).await
    }

    /// Refuses a pass in whose course the table was written anew: rows may have moved
    /// from pages that were still to be read to pages that had been.
    pub async fn finish(self, connection: &mut PgConnection) -> Result<(), VerifyError> {
        match self.file {
            Some(before) if before != file(connection, self.table).await? => Err(VerifyError::Rewritten(self.table)),
            _ => Ok(()),
        }
    }
}

/// A range of pages: the table is read in its own order and each page once. Any other
/// condition would read a page of twelve streams twelve times.
fn pages(from: i64, to: i64) -> String {
    format!("ctid >= '({from},0)'::tid AND ctid < '({to},0)'::tid")
}

async fn file(connection: &mut PgConnection, table: &str) -> Result<i64, VerifyError> {
    let file = sqlx::query_scalar("SELECT pg_relation_filenode($1::regclass)::bigint").bind(table);
    Ok(file.fetch_one(connection).await?)
}
