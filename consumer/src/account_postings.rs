//! Which offsets an account's postings stand at: what a batch writes so that `statement`
//! finds them, instead of two indexes over all postings.
//!
//! A row is for one account in one stream, for one hour of effect, and for at most
//! [`MOST_OFFSETS`] offsets, in the order of their effect. Migration 0006 says what
//! `statement` makes of each of these. The rows follow from the batch's postings and from
//! nothing else, so `verify` computes them anew.

use crate::rows::Posted;
use postonce_schema::AccountId;

/// So many offsets one row holds at most.
pub const MOST_OFFSETS: usize = 64;
/// No row reaches over the border of an hour of effect.
pub const PERIOD_MICROS: i64 = 3_600_000_000;
/// Nor over the border of 2^30 offsets: their differences fit into 32 bits, however long
/// the holes between them.
const BLOCK_BITS: u32 = 30;

/// A row of `account_postings`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccountPostings {
    pub account: AccountId,
    /// Microseconds since 1970.
    pub last_effective_at: i64,
    pub stream: i64,
    pub base_offset: i64,
    /// Each less `base_offset`, which is the first of them.
    pub offsets: Vec<i32>,
}

/// One side of a posting. Its order is that of the rows and of the offsets in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    account: AccountId,
    effective_at: i64,
    offset: i64,
}

impl Side {
    fn of(posted: &Posted) -> [Self; 2] {
        let Posted { offset, effective_at, .. } = *posted;
        [posted.debit, posted.credit].map(|account| Self { account, effective_at, offset })
    }

    fn shares_a_row_with(&self, other: &Self) -> bool {
        let part = |side: &Self| (side.account, side.effective_at.div_euclid(PERIOD_MICROS), side.offset >> BLOCK_BITS);
        part(self) == part(other)
    }
}

/// The rows of what one batch has posted in one stream.
pub fn account_postings(stream: i64, postings: impl Iterator<Item = Posted>) -> Vec<AccountPostings> {
    let mut sides: Vec<Side> = postings.flat_map(|posted| Side::of(&posted)).collect();
    sides.sort_unstable();
    // An account may stand in several lines at one offset.
    sides.dedup();
    let shared = sides.chunk_by(Side::shares_a_row_with).flat_map(|shared| shared.chunks(MOST_OFFSETS));
    shared.filter_map(|sides| row(stream, sides)).collect()
}

fn row(stream: i64, sides: &[Side]) -> Option<AccountPostings> {
    let (first, last) = (sides.first()?, sides.last()?);
    // Within a block the difference fits.
    let past = |side: &Side| i32::try_from(side.offset - first.offset).unwrap_or(i32::MAX);
    Some(AccountPostings {
        account: first.account,
        last_effective_at: last.effective_at,
        stream,
        base_offset: first.offset,
        offsets: sides.iter().map(past).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(byte: u8) -> AccountId {
        AccountId::from_bytes([byte; 16])
    }

    fn posted(offset: i64, (debit, credit): (u8, u8), effective_at: i64) -> Posted {
        Posted { offset, line: 0, debit: account(debit), credit: account(credit), amount: 1, effective_at }
    }

    /// (account, last, base, offsets)
    fn told(postings: Vec<Posted>) -> Vec<(u8, i64, i64, Vec<i32>)> {
        let told = |row: AccountPostings| {
            assert_eq!(row.stream, 7);
            (row.account.as_bytes()[0], row.last_effective_at, row.base_offset, row.offsets)
        };
        account_postings(7, postings.into_iter()).into_iter().map(told).collect()
    }

    #[test]
    fn an_offset_stands_once_in_the_order_of_its_effect() {
        let rows = told(vec![posted(100, (1, 2), 50), posted(100, (2, 3), 50), posted(90, (1, 2), 60)]);
        assert_eq!(rows, [(1, 60, 100, vec![0, -10]), (2, 60, 100, vec![0, -10]), (3, 50, 100, vec![0])]);
    }

    #[test]
    fn a_row_ends_at_the_hour_at_its_length_and_before_its_differences_overflow() {
        let hour = told(vec![posted(1, (1, 2), PERIOD_MICROS - 1), posted(2, (1, 2), PERIOD_MICROS)]);
        assert_eq!(hour.len(), 4);
        let before_1970 = told(vec![posted(1, (1, 2), -1), posted(2, (1, 2), 0)]);
        assert_eq!(before_1970.len(), 4);
        let far = told(vec![posted(0, (1, 2), 0), posted(1 << 40, (1, 2), 0)]);
        assert_eq!(far.len(), 4);
        let most = i64::try_from(MOST_OFFSETS).unwrap();
        let long = told((0..=most).map(|offset| posted(offset, (1, 2), offset)).collect());
        assert_eq!(long[0].3.len(), MOST_OFFSETS);
        assert_eq!(long[1], (1, most, most, vec![0]));
    }
}
