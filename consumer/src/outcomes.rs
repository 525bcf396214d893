//! One byte for each offset: what became of it.

use crate::message::Outcome;

/// A shorter hole costs less as single bytes.
const LONG_HOLE: i64 = 9;

/// The outcomes of a stream's offsets from one on, without a gap.
///
/// Encoding: `P N D S C R` by [`Outcome::byte`]; `.` for an offset that holds no
/// message (a transaction marker, an aborted or compacted message); a hole of nine
/// and more as `H` and its length in 8 bytes, big-endian; offsets that were lost to
/// retention before they were read, and that a person has accepted as lost, as `L` and
/// their number in 8 bytes, big-endian.
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

    /// The messages before `offset` are lost, however few: a loss is never a hole.
    pub fn lose_to(&mut self, offset: i64) -> Result<(), OffsetGoneBack> {
        let lost = offset - self.next_offset;
        if lost <= 0 {
            return Err(OffsetGoneBack { offset, next_offset: self.next_offset });
        }
        self.bytes.push(b'L');
        self.bytes.extend_from_slice(&lost.to_be_bytes());
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

/// Consecutive offsets of a batch, read back from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// One offset and what became of its message.
    Message { offset: i64, outcome: Outcome },
    /// Offsets without a message, the end exclusive.
    Hole { from: i64, to: i64 },
    /// Offsets that retention had deleted before they were read, and a person has
    /// accepted it: `L` and their number in 8 bytes.
    Lost { from: i64, to: i64 },
}

/// A byte that no consumer writes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("byte {at} of the outcomes is no outcome (offset {offset})")]
pub struct UnknownOutcome {
    pub at: usize,
    pub offset: i64,
}

/// Reads the bytes of a batch that begins at `from`.
pub fn runs(from: i64, bytes: &[u8]) -> impl Iterator<Item = Result<Run, UnknownOutcome>> + '_ {
    let (mut offset, mut rest) = (from, bytes);
    std::iter::from_fn(move || {
        let (&byte, after) = rest.split_first()?;
        let unknown = UnknownOutcome { at: bytes.len() - rest.len(), offset };
        let run = match byte {
            b'.' => Some((Run::Hole { from: offset, to: offset.saturating_add(1) }, after)),
            b'H' | b'L' => after.split_first_chunk::<8>().and_then(|(length, after)| {
                let length = i64::from_be_bytes(*length);
                let (from, to) = (offset, offset.checked_add(length).filter(|to| *to > offset)?);
                Some((if byte == b'H' { Run::Hole { from, to } } else { Run::Lost { from, to } }, after))
            }),
            byte => Outcome::of_byte(byte).map(|outcome| (Run::Message { offset, outcome }, after)),
        };
        let Some((run, after)) = run else {
            rest = &[];
            return Some(Err(unknown));
        };
        (offset, rest) = (run.next_offset(), after);
        Some(Ok(run))
    })
}

impl Run {
    /// The first offset behind it.
    pub fn next_offset(self) -> i64 {
        match self {
            Self::Message { offset, .. } => offset.saturating_add(1),
            Self::Hole { to, .. } | Self::Lost { to, .. } => to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let mut outcomes = Outcomes::from_offset(10);
        for (offset, outcome) in [(10, Outcome::Posted), (12, Outcome::Duplicate), (1012, Outcome::Rejected)] {
            outcomes.push(offset, outcome).expect("forward");
        }
        let mut bytes = outcomes.bytes().to_vec();
        bytes.extend_from_slice(b"L\0\0\0\0\0\0\0\x07N");
        let read: Vec<Run> = runs(10, &bytes).collect::<Result<_, _>>().expect("known bytes");
        let message = |offset, outcome| Run::Message { offset, outcome };
        let expected = [
            message(10, Outcome::Posted),
            Run::Hole { from: 11, to: 12 },
            message(12, Outcome::Duplicate),
            Run::Hole { from: 13, to: 1012 },
            message(1012, Outcome::Rejected),
            Run::Lost { from: 1013, to: 1020 },
            message(1020, Outcome::Noted),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn damage_is_named_and_ends_the_reading() {
        let read = |bytes| runs(5, bytes).collect::<Vec<_>>();
        assert_eq!(read(b"Px")[1..], [Err(UnknownOutcome { at: 1, offset: 6 })]);
        assert_eq!(read(b"H\0\0\0"), [Err(UnknownOutcome { at: 0, offset: 5 })]);
        assert_eq!(read(b"H\xff\xff\xff\xff\xff\xff\xff\xffP"), [Err(UnknownOutcome { at: 0, offset: 5 })]);
    }

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

    #[test]
    fn a_loss_is_never_a_hole() {
        let mut outcomes = Outcomes::from_offset(10);
        outcomes.lose_to(13).expect("forward");
        assert_eq!(outcomes.bytes(), [b"L".as_slice(), &3i64.to_be_bytes()].concat());
        assert_eq!(outcomes.next_offset(), 13);
        assert!(outcomes.lose_to(13).is_err(), "nothing is lost");
    }
}
