//! Where a page of a list ended, so that the next one can go on from there. Opaque to
//! everybody else.

use crate::chain::{Hash, hex};
use postonce_schema::Timestamp;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The last row of a page: when it was first seen, and the rest of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub(super) time: Timestamp,
    /// Hex digits for quarantine; `STREAM-OFFSET` for incidents.
    pub(super) key: String,
    pub(super) code: String,
}

/// A text that no list has handed out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("this is no cursor of this list; take `next` as the page before gave it")]
pub struct BadCursor;

impl Cursor {
    /// The hash of a refused message.
    pub(super) fn hash(&self) -> Result<Hash, BadCursor> {
        hex::parse(&self.key).ok_or(BadCursor)
    }

    /// The stream and offset of an incident.
    pub(super) fn place(&self) -> Result<(i64, i64), BadCursor> {
        let (stream, offset) = self.key.split_once('-').ok_or(BadCursor)?;
        Ok((stream.parse().map_err(|_| BadCursor)?, offset.parse().map_err(|_| BadCursor)?))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}.{}", self.time.micros(), self.key, self.code)
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let mut parts = text.splitn(4, '.');
        if parts.next() != Some("1") {
            return Err(BadCursor);
        }
        let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or(BadCursor);
        let time = part()?.parse().ok().and_then(Timestamp::from_micros).ok_or(BadCursor)?;
        let (key, code) = (part()?.to_owned(), part()?.to_owned());
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !key.bytes().chain(code.bytes()).all(known) {
            return Err(BadCursor);
        }
        Ok(Self { time, key, code })
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_being_text() {
        let time = Timestamp::parse("2026-01-02T03:04:05.123456Z").unwrap();
        let quarantine = Cursor { time, key: "0f".repeat(32), code: "bad_json".to_owned() };
        assert_eq!(quarantine.to_string().parse(), Ok(quarantine.clone()));
        assert_eq!(quarantine.hash().unwrap(), [0x0f; 32]);
        let incident = Cursor { time, key: format!("{}-0", i64::MAX), code: "conflict".to_owned() };
        assert_eq!(incident.to_string().parse(), Ok(incident.clone()));
        assert_eq!(incident.place(), Ok((i64::MAX, 0)));
        assert!(quarantine.place().is_err() && incident.hash().is_err(), "a cursor of the other list");
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "1", "1.5.ab", "2.5.ab.c", "1.x.ab.c", "1.-1.ab.c", "1.5..c", "1.5.é.c", "1.5.ab.c\0"] {
            assert_eq!(text.parse::<Cursor>(), Err(BadCursor), "{text}");
        }
    }
}
