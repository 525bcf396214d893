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

use crate::chain::encode_headers;
use crate::decide::{Arrival, Change, Incident, Posting};
use crate::message::Outcome;
use postonce_schema::{Event, Timestamp};
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

    pub fn event(&mut self, arrival: &Arrival<'_, '_>, outcome: Outcome) {
        let event = arrival.event;
        self.columns(10);
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

/// Back from timestamptz; `None` outside the years 1970 to 9999.
pub fn from_postgres_micros(micros: i64) -> Option<Timestamp> {
    Timestamp::from_micros(micros.checked_add(POSTGRES_EPOCH)?)
}

/// An event's row as the batch chain sees it.
pub fn canonical_event(arrival: &Arrival<'_, '_>, outcome: Outcome, out: &mut Vec<u8>) {
    common(b'E', arrival, out);
    out.push(outcome.byte());
    text(Some(&arrival.event.state.name), out);
    text(arrival.event.source.as_deref(), out);
}

/// A conflict's row as the batch chain sees it.
pub fn canonical_conflict(arrival: &Arrival<'_, '_>, out: &mut Vec<u8>) {
    common(b'C', arrival, out);
    out.extend_from_slice(&Sha256::digest(arrival.message.value.unwrap_or_default()));
    text(arrival.event.source.as_deref(), out);
}

/// A posting's row as the batch chain sees it.
pub fn canonical_posting(posting: &Posting, out: &mut Vec<u8>) {
    out.push(b'P');
    out.extend_from_slice(&posting.at.offset.to_be_bytes());
    out.extend_from_slice(&posting.line.to_be_bytes());
    out.extend_from_slice(posting.posting.debit.id.as_bytes());
    out.extend_from_slice(posting.posting.credit.id.as_bytes());
    out.extend_from_slice(&posting.posting.amount.to_be_bytes());
    out.extend_from_slice(&posting.effective_at.micros().to_be_bytes());
}

fn common(tag: u8, arrival: &Arrival<'_, '_>, out: &mut Vec<u8>) {
    let event: &Event<'_> = arrival.event;
    out.push(tag);
    out.extend_from_slice(&arrival.message.at.offset.to_be_bytes());
    out.extend_from_slice(&event.updated_at.micros().to_be_bytes());
    out.extend_from_slice(event.id.as_bytes());
    out.extend_from_slice(event.resource_id.as_bytes());
    out.extend_from_slice(event.fingerprint.as_bytes());
    out.extend_from_slice(&arrival.message.time().map_or(-1, Timestamp::micros).to_be_bytes());
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
