//! One byte for each offset: what became of it.

use crate::message::Outcome;

/// A shorter hole costs less as single bytes.
const LONG_HOLE: i64 = 9;

/// The outcomes of a stream's offsets from one on, without a gap.
///
/// Encoding: `P N D S C R` by [`Outcome::byte`]; `.` for an offset that holds no
/// message (a transaction marker, an aborted or compacted message); a hole of nine
/// and more as `H` and its length in 8 bytes, big-endian.
#[derive(Debug, Clone)]
pub struct Outcomes {
    next_offset: i64,
    bytes: Vec<u8>,
}

/// An offset that lies before one that has an outcome already.
#[derive(Debug, thiserror::Error)]
#[error("offset {offset} has come although {next_offset} was expected next")]
pub struct OffsetGoneBack {
    offset: i64,
    next_offset: i64,
}

impl Outcomes {
    /// Nothing yet; the first offset to come is `next_offset` or later.
    pub fn from_offset(next_offset: i64) -> Self {
        Self { next_offset, bytes: Vec::new() }
    }

    /// The outcome of the message at `offset`; the offsets before it are a hole.
    pub fn push(&mut self, offset: i64, outcome: Outcome) -> Result<(), OffsetGoneBack> {
        self.skip_to(offset)?;
        self.bytes.push(outcome.byte());
        self.next_offset = offset + 1;
        Ok(())
    }

    /// No messages before `offset`.
    pub fn skip_to(&mut self, offset: i64) -> Result<(), OffsetGoneBack> {
        match offset - self.next_offset {
            ..0 => return Err(OffsetGoneBack { offset, next_offset: self.next_offset }),
            hole @ 0..LONG_HOLE => (0..hole).for_each(|_| self.bytes.push(b'.')),
            hole => {
                self.bytes.push(b'H');
                self.bytes.extend_from_slice(&hole.to_be_bytes());
            }
        }
        self.next_offset = offset;
        Ok(())
    }

    /// The first offset without an outcome.
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_has_its_byte() {
        let mut outcomes = Outcomes::from_offset(10);
        for (offset, outcome) in [(10, Outcome::Posted), (13, Outcome::Duplicate), (1013, Outcome::Rejected)] {
            outcomes.push(offset, outcome).expect("forward");
        }
        outcomes.skip_to(1015).expect("forward");
        let mut expected = b"P..DH".to_vec();
        expected.extend_from_slice(&999i64.to_be_bytes());
        expected.extend_from_slice(b"R.");
        assert_eq!(outcomes.bytes(), expected);
        assert_eq!(outcomes.next_offset(), 1015);
        assert!(outcomes.push(1014, Outcome::Posted).is_err(), "an offset has one outcome");
    }
}
