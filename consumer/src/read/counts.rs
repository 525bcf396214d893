//! How many messages had which outcome, counted from the bytes of `batches.outcomes`.

use serde::Serialize;
use std::ops::AddAssign;

/// Messages by outcome, and the offsets that held none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub posted: u64,
    pub noted: u64,
    pub duplicate: u64,
    pub superseded: u64,
    pub conflict: u64,
    pub rejected: u64,
    /// Offsets without a message: transaction markers, compacted or aborted records.
    pub holes: u64,
    /// Offsets that retention deleted before they were read, and a person accepted as lost.
    pub lost: u64,
}

/// Bytes that no consumer writes: the row is damaged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("byte {at} of the outcomes is no outcome")]
pub struct UnknownOutcome {
    pub at: usize,
}

impl Counts {
    /// Counts one batch's outcomes; the encoding is that of
    /// [`Outcomes`](crate::outcomes::Outcomes).
    pub fn of(outcomes: &[u8]) -> Result<Self, UnknownOutcome> {
        let mut counts = Self::default();
        let mut rest = outcomes;
        while let Some((&byte, after)) = rest.split_first() {
            let unknown = UnknownOutcome { at: outcomes.len() - rest.len() };
            rest = after;
            match byte {
                b'P' => counts.posted += 1,
                b'N' => counts.noted += 1,
                b'D' => counts.duplicate += 1,
                b'S' => counts.superseded += 1,
                b'C' => counts.conflict += 1,
                b'R' => counts.rejected += 1,
                b'.' => counts.holes += 1,
                b'H' | b'L' => {
                    let (length, after) = rest.split_first_chunk::<8>().ok_or(unknown)?;
                    let run = if byte == b'H' { &mut counts.holes } else { &mut counts.lost };
                    *run = run.saturating_add(u64::from_be_bytes(*length));
                    rest = after;
                }
                _ => return Err(unknown),
            }
        }
        Ok(counts)
    }

    /// Messages, which is all offsets but the holes and what was lost.
    pub fn messages(&self) -> u64 {
        self.posted + self.noted + self.duplicate + self.superseded + self.conflict + self.rejected
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.posted += other.posted;
        self.noted += other.noted;
        self.duplicate += other.duplicate;
        self.superseded += other.superseded;
        self.conflict += other.conflict;
        self.rejected += other.rejected;
        self.holes = self.holes.saturating_add(other.holes);
        self.lost = self.lost.saturating_add(other.lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts_once_and_a_run_by_its_length() {
        let mut outcomes = b"PPNDDDSCR..H".to_vec();
        // A length whose bytes look like outcomes is not mistaken for them.
        outcomes.extend_from_slice(&u64::from_be_bytes(*b"\0\0\0\0\0\0PP").to_be_bytes());
        outcomes.extend_from_slice(b"PL");
        outcomes.extend_from_slice(&7u64.to_be_bytes());
        let counts = Counts::of(&outcomes).unwrap();
        let expected = Counts {
            posted: 3,
            noted: 1,
            duplicate: 3,
            superseded: 1,
            conflict: 1,
            rejected: 1,
            holes: 2 + 0x5050,
            lost: 7,
        };
        assert_eq!(counts, expected);
        assert_eq!(counts.messages(), 10);
    }

    #[test]
    fn damage_is_named() {
        assert_eq!(Counts::of(b"PPx"), Err(UnknownOutcome { at: 2 }));
        assert_eq!(Counts::of(b"PH\0\0\0"), Err(UnknownOutcome { at: 1 }));
        assert_eq!(Counts::of(b""), Ok(Counts::default()));
    }

    #[test]
    fn what_the_consumer_writes_is_read_back() {
        use crate::message::Outcome;
        let mut outcomes = crate::outcomes::Outcomes::from_offset(5);
        for (offset, outcome) in [5, 6, 8, 20, 21, 22].into_iter().zip(Outcome::ALL) {
            outcomes.push(offset, outcome).unwrap();
        }
        let one_each = Counts {
            posted: 1,
            noted: 1,
            duplicate: 1,
            superseded: 1,
            conflict: 1,
            rejected: 1,
            holes: 1 + 11,
            lost: 0,
        };
        assert_eq!(Counts::of(outcomes.bytes()), Ok(one_each));
    }
}
