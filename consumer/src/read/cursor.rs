//! Where a page of a statement ended, so that the next one can go on from there.

use postonce_schema::{AccountId, Timestamp};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Opaque to everybody else. It carries the balance, so that a page need not add up
/// all newer postings again; and how far each stream was when the first page was
/// read: postings that have come since belong to no page, else one with an early
/// effective_at would stand in a later page and be missing in its balances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The first 4 bytes of the account id: a cursor is worthless for another account.
    pub(super) account: u32,
    pub(super) last: Place,
    /// After the posting that comes next.
    pub(super) balance: i128,
    /// (stream, next_offset)
    pub(super) seen: Vec<(i64, i64)>,
}

/// A posting's place in a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) effective_at: Timestamp,
    pub(super) stream: i64,
    pub(super) message_offset: i64,
    pub(super) line: i16,
}

/// A text that no statement has handed out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("this is no cursor; take `next` as the page before gave it")]
pub struct BadCursor;

impl Cursor {
    pub(super) fn account_mark(id: AccountId) -> u32 {
        let [a, b, c, d, ..] = *id.as_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { effective_at, stream, message_offset, line } = self.last;
        write!(
            f,
            "1.{:x}.{:x}.{stream:x}.{message_offset:x}.{line:x}.{}",
            self.account,
            effective_at.micros(),
            self.balance
        )?;
        self.seen.iter().try_for_each(|(stream, next)| write!(f, ".{stream:x}_{next:x}"))
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let mut parts = text.split('.');
        if parts.next() != Some("1") {
            return Err(BadCursor);
        }
        let mut part = || parts.next().ok_or(BadCursor);
        let account = u32::from_str_radix(part()?, 16).map_err(|_| BadCursor)?;
        let last = Place {
            effective_at: Timestamp::from_micros(hex(part()?)?).ok_or(BadCursor)?,
            stream: hex(part()?)?,
            message_offset: hex(part()?)?,
            line: i16::from_str_radix(part()?, 16).map_err(|_| BadCursor)?,
        };
        let balance = part()?.parse().map_err(|_| BadCursor)?;
        let seen = parts.map(|pair| {
            let (stream, next) = pair.split_once('_').ok_or(BadCursor)?;
            Ok((hex(stream)?, hex(next)?))
        });
        Ok(Self { account, last, balance, seen: seen.collect::<Result<_, _>>()? })
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn hex(text: &str) -> Result<i64, BadCursor> {
    i64::from_str_radix(text, 16).map_err(|_| BadCursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_being_text() {
        let cursor = Cursor {
            account: 0xfedc_ba98,
            last: Place {
                effective_at: Timestamp::parse("2026-01-02T03:04:05.123456Z").unwrap(),
                stream: i64::MAX,
                message_offset: 1 << 40,
                line: 199,
            },
            balance: -i128::from(i64::MAX) * 1000,
            seen: vec![(0, 0), (i64::MAX, i64::MAX)],
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor.clone()));
        let alone = Cursor { seen: Vec::new(), ..cursor };
        assert_eq!(alone.to_string().parse(), Ok(alone));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "1",
            "2.0.0.0.0.0.0",
            "1.0.0.0.0.0",
            "1.0.0.0.0.0.x",
            "1.0.0.0.0.0.0.5",
            "1.0.-1.0.0.0.0",
            "1.g.0.0.0.0.0",
        ] {
            assert_eq!(text.parse::<Cursor>(), Err(BadCursor), "{text}");
        }
    }
}
