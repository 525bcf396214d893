//! The rows that a batch writes: as Postgres reads them (COPY BINARY), and as the
//! batch chain hashes them.
//!
//! Canonical bytes of a row, integers big-endian, times in microseconds since 1970:
//!
//! ```text
//! event     E  offset:8  updated_at:8  event_id:32  resource_id:16  fingerprint:16
//!              message_time:8 (-1 none)  outcome:1  state  source
//! conflict  C  offset:8  updated_at:8  event_id:32  resource_id:16  fingerprint:16
//!              message_time:8 (-1 none)  SHA-256 of value:32  source
//! posting   P  offset:8  line:2  debit:16  credit:16  amount:8  effective_at:8
//! ```
//!
//! A text is its length in 4 bytes and its UTF-8 bytes; an absent one is `FFFFFFFF`.
//! `events.previous_at` stays outside.

use crate::account_postings::AccountPostings;
use crate::chain::{Hash, encode_headers};
use crate::decide::{Arrival, Change, Incident, NewEvent, Posting};
use crate::message::Outcome;
use postonce_schema::{AccountId, Event, Timestamp};
use sha2::{Digest, Sha256};

/// Microseconds from 1970 to 2000, where Postgres begins to count.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// Rows in the binary format of COPY:
/// <https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS>.
pub struct CopyBinary {
    bytes: Vec<u8>,
}

impl CopyBinary {
    pub fn begin() -> Self {
        let mut bytes = b"PGCOPY\n\xff\r\n\0".to_vec();
        // Flags, and the length of the header's extension.
        bytes.extend_from_slice(&[0; 8]);
        Self { bytes }
    }

    /// All rows and the end marker.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&(-1i16).to_be_bytes());
        self.bytes
    }

    pub fn event(&mut self, new: &NewEvent<'_, '_>) {
        let NewEvent { arrival, outcome, previous_at } = new;
        let event = arrival.event;
        self.columns(11);
        self.time(event.updated_at);
        self.field(event.id.as_bytes());
        self.field(event.resource_id.as_bytes());
        self.field(event.fingerprint.as_bytes());
        self.field(&arrival.message.at.stream.as_i64().to_be_bytes());
        self.field(&arrival.message.at.offset.to_be_bytes());
        self.optional_time(arrival.message.time());
        self.field(&[outcome.byte()]);
        self.field(event.state.name.as_bytes());
        self.optional(event.source.as_deref().map(str::as_bytes));
        self.optional_time(*previous_at);
    }

    pub fn resource(&mut self, change: &Change<'_, '_>) {
        let event = change.to.event;
        self.columns(8);
        self.field(event.resource_id.as_bytes());
        self.field(event.kind.name.as_bytes());
        self.field(event.resource.as_bytes());
        self.field(event.state.name.as_bytes());
        self.time(event.updated_at);
        self.field(&change.revision.to_be_bytes());
        self.field(&event.version.number.to_be_bytes());
        self.field(event.facts.to_json(event.kind).as_bytes());
    }

    pub fn posting(&mut self, posting: &Posting) {
        self.columns(7);
        self.field(&posting.at.stream.as_i64().to_be_bytes());
        self.field(&posting.at.offset.to_be_bytes());
        self.field(&posting.line.to_be_bytes());
        self.field(posting.posting.debit.id.as_bytes());
        self.field(posting.posting.credit.id.as_bytes());
        self.field(&posting.posting.amount.to_be_bytes());
        self.time(posting.effective_at);
    }

    pub fn account_postings(&mut self, row: &AccountPostings) {
        self.columns(5);
        self.field(row.account.as_bytes());
        self.field(&(row.last_effective_at - POSTGRES_EPOCH).to_be_bytes());
        self.field(&row.stream.to_be_bytes());
        self.field(&row.base_offset.to_be_bytes());
        self.integers(&row.offsets);
    }

    pub fn conflict(&mut self, arrival: &Arrival<'_, '_>) {
        let (event, message) = (arrival.event, arrival.message);
        self.columns(11);
        self.field(event.id.as_bytes());
        self.field(event.fingerprint.as_bytes());
        self.time(event.updated_at);
        self.field(event.resource_id.as_bytes());
        self.field(&message.at.stream.as_i64().to_be_bytes());
        self.field(&message.at.offset.to_be_bytes());
        self.optional_time(message.time());
        self.optional(event.source.as_deref().map(str::as_bytes));
        self.optional(message.key);
        self.field(message.value.unwrap_or_default());
        self.field(&encode_headers(&message.headers));
    }

    pub fn incident(&mut self, incident: &Incident<'_, '_>) {
        let (event, at) = (incident.arrival.event, incident.arrival.message.at);
        self.columns(7);
        self.field(&at.stream.as_i64().to_be_bytes());
        self.field(&at.offset.to_be_bytes());
        self.field(incident.code.name().as_bytes());
        self.field(event.resource_id.as_bytes());
        self.time(event.updated_at);
        self.field(event.id.as_bytes());
        self.field(incident.detail.as_bytes());
    }

    fn columns(&mut self, count: i16) {
        self.bytes.extend_from_slice(&count.to_be_bytes());
    }

    fn field(&mut self, value: &[u8]) {
        // A message is at most 1 MiB, refused ones go another way: the length fits.
        let length = i32::try_from(value.len()).unwrap_or(i32::MAX);
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(value);
    }

    /// An array of `integer` in one dimension, as `array_send` writes it.
    fn integers(&mut self, integers: &[i32]) {
        const INT4: i32 = 23;
        let count = i32::try_from(integers.len()).unwrap_or(i32::MAX);
        let length = 20 + 8 * count;
        // Dimensions, no nulls, the element's type, how many, from which index on.
        for head in [length, 1, 0, INT4, count, 1] {
            self.bytes.extend_from_slice(&head.to_be_bytes());
        }
        for integer in integers {
            self.field(&integer.to_be_bytes());
        }
    }

    fn optional(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.field(value),
            None => self.bytes.extend_from_slice(&(-1i32).to_be_bytes()),
        }
    }

    fn time(&mut self, time: Timestamp) {
        self.field(&postgres_micros(time).to_be_bytes());
    }

    fn optional_time(&mut self, time: Option<Timestamp>) {
        match time {
            Some(time) => self.time(time),
            None => self.optional(None),
        }
    }
}

/// Microseconds since 2000, as timestamptz is sent.
pub fn postgres_micros(time: Timestamp) -> i64 {
    time.micros() - POSTGRES_EPOCH
}

/// Microseconds since 1970 of any timestamptz; where the database holds one that no
/// event can have, such as infinity, the last that there is.
pub fn unix_micros(postgres_micros: i64) -> i64 {
    postgres_micros.saturating_add(POSTGRES_EPOCH)
}

/// Back from timestamptz; `None` outside the years 1970 to 9999.
pub fn from_postgres_micros(micros: i64) -> Option<Timestamp> {
    Timestamp::from_micros(micros.checked_add(POSTGRES_EPOCH)?)
}

/// A row of `events` or `conflicts` as the batch chain sees it, whoever has read it:
/// the writer from the message, `verify` from the table.
#[derive(Clone, Copy, Debug)]
pub struct Accepted<'a> {
    pub offset: i64,
    /// Microseconds since 1970, as all times here.
    pub updated_at: i64,
    pub event_id: &'a [u8],
    pub resource_id: &'a [u8],
    pub fingerprint: &'a [u8],
    pub message_time: Option<i64>,
    pub source: Option<&'a str>,
    pub kept: Kept<'a>,
}

/// What the two tables keep beside that.
#[derive(Clone, Copy, Debug)]
pub enum Kept<'a> {
    Event { outcome: u8, state: &'a str },
    Conflict { value: Hash },
}

/// A row of `postings` as the batch chain sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    pub offset: i64,
    pub line: i16,
    pub debit: AccountId,
    pub credit: AccountId,
    pub amount: i64,
    pub effective_at: i64,
}

impl<'a> Accepted<'a> {
    pub fn event(arrival: &'a Arrival<'_, '_>, outcome: Outcome) -> Self {
        let state = arrival.event.state.name.as_str();
        Self::of(arrival, Kept::Event { outcome: outcome.byte(), state })
    }

    pub fn conflict(arrival: &'a Arrival<'_, '_>) -> Self {
        Self::of(arrival, Kept::Conflict { value: Sha256::digest(arrival.message.value.unwrap_or_default()).into() })
    }

    fn of(arrival: &'a Arrival<'_, '_>, kept: Kept<'a>) -> Self {
        let event: &'a Event<'_> = arrival.event;
        Self {
            offset: arrival.message.at.offset,
            updated_at: event.updated_at.micros(),
            event_id: event.id.as_bytes(),
            resource_id: event.resource_id.as_bytes(),
            fingerprint: event.fingerprint.as_bytes(),
            message_time: arrival.message.time().map(Timestamp::micros),
            source: event.source.as_deref(),
            kept,
        }
    }

    /// Its canonical bytes.
    pub fn canonical(&self, out: &mut Vec<u8>) {
        out.push(match self.kept {
            Kept::Event { .. } => b'E',
            Kept::Conflict { .. } => b'C',
        });
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.updated_at.to_be_bytes());
        out.extend_from_slice(self.event_id);
        out.extend_from_slice(self.resource_id);
        out.extend_from_slice(self.fingerprint);
        out.extend_from_slice(&self.message_time.unwrap_or(-1).to_be_bytes());
        match self.kept {
            Kept::Event { outcome, state } => {
                out.push(outcome);
                text(Some(state), out);
            }
            Kept::Conflict { value } => out.extend_from_slice(&value),
        }
        text(self.source, out);
    }
}

impl Posted {
    pub fn of(posting: &Posting) -> Self {
        Self {
            offset: posting.at.offset,
            line: posting.line,
            debit: posting.posting.debit.id,
            credit: posting.posting.credit.id,
            amount: posting.posting.amount,
            effective_at: posting.effective_at.micros(),
        }
    }

    /// Its canonical bytes.
    pub fn canonical(&self, out: &mut Vec<u8>) {
        out.push(b'P');
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.line.to_be_bytes());
        out.extend_from_slice(self.debit.as_bytes());
        out.extend_from_slice(self.credit.as_bytes());
        out.extend_from_slice(&self.amount.to_be_bytes());
        out.extend_from_slice(&self.effective_at.to_be_bytes());
    }
}

fn text(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => {
            out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        None => out.extend_from_slice(&u32::MAX.to_be_bytes()),
    }
}
