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

/// The sides of postings, those of an account together: what each step of the transaction
/// that goes by accounts needs.
#[derive(Debug, Default)]
pub struct Sides(Vec<Side>);

/// One side of a posting. Its order is that of the rows and of the offsets in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    account: AccountId,
    stream: i64,
    /// Microseconds since 1970.
    effective_at: i64,
    offset: i64,
    /// Minor units; one of the two is 0.
    debit: i64,
    credit: i64,
}

/// What an account is debited and credited in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    pub account: AccountId,
    pub debits: i128,
    pub credits: i128,
}

impl Sides {
    /// Of what a batch posts. Each posting with its stream.
    pub fn of(postings: impl Iterator<Item = (i64, Posted)>) -> Self {
        let sides = |(stream, posted): (i64, Posted)| {
            let Posted { offset, effective_at, amount, .. } = posted;
            let side = |account, debit, credit| Side { account, stream, effective_at, offset, debit, credit };
            [side(posted.debit, amount, 0), side(posted.credit, 0, amount)]
        };
        let mut sides: Vec<Side> = postings.flat_map(sides).collect();
        sides.sort_unstable();
        Self(sides)
    }

    /// Each account once, in the order of their ids.
    pub fn accounts(&self) -> impl Iterator<Item = AccountId> {
        self.by_account().filter_map(|sides| Some(sides.first()?.account))
    }

    /// One for each account, in the order of their ids.
    pub fn sums(&self) -> impl Iterator<Item = Sum> {
        let sum = |sides: &[Side]| {
            // At most 2^62 for each of a batch's sides: far from 2^127.
            let total = |amount: fn(&Side) -> i64| sides.iter().map(|side| i128::from(amount(side))).sum();
            let (debits, credits) = (total(|side| side.debit), total(|side| side.credit));
            Some(Sum { account: sides.first()?.account, debits, credits })
        };
        self.by_account().filter_map(sum)
    }

    fn by_account(&self) -> impl Iterator<Item = &[Side]> {
        self.0.chunk_by(|one, other| one.account == other.account)
    }

    /// The rows of `account_postings`.
    pub fn rows(&self) -> impl Iterator<Item = AccountPostings> {
        self.0.chunk_by(Side::shares_a_row_with).flat_map(|sides| {
            let mut sides = sides.to_vec();
            // An account may stand in several lines at one offset.
            sides.dedup_by_key(|side| side.offset);
            sides.chunks(MOST_OFFSETS).filter_map(row).collect::<Vec<_>>()
        })
    }
}

impl Side {
    fn shares_a_row_with(&self, other: &Self) -> bool {
        let hour = |side: &Self| side.effective_at.div_euclid(PERIOD_MICROS);
        let part = |side: &Self| (side.account, side.stream, hour(side), side.offset >> BLOCK_BITS);
        part(self) == part(other)
    }
}

fn row(sides: &[Side]) -> Option<AccountPostings> {
    let (first, last) = (sides.first()?, sides.last()?);
    // Within a block the difference fits.
    let past = |side: &Side| i32::try_from(side.offset - first.offset).unwrap_or(i32::MAX);
    Some(AccountPostings {
        account: first.account,
        last_effective_at: last.effective_at,
        stream: first.stream,
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
        Sides::of(postings.into_iter().map(|posted| (7, posted))).rows().map(told).collect()
    }

    #[test]
    fn an_offset_stands_once_in_the_order_of_its_effect() {
        let rows = told(vec![posted(100, (1, 2), 50), posted(100, (2, 3), 50), posted(90, (1, 2), 60)]);
        assert_eq!(rows, [(1, 60, 100, vec![0, -10]), (2, 60, 100, vec![0, -10]), (3, 50, 100, vec![0])]);
    }

    #[test]
    fn an_account_is_summed_over_streams() {
        let postings = [(7, posted(1, (1, 2), 0)), (8, posted(1, (1, 2), 0)), (7, posted(1, (2, 3), 0))];
        let sides = Sides::of(postings.into_iter());
        let sum = |byte, debits, credits| Sum { account: account(byte), debits, credits };
        assert_eq!(sides.sums().collect::<Vec<_>>(), [sum(1, 2, 0), sum(2, 1, 2), sum(3, 0, 1)]);
        assert_eq!(sides.rows().filter(|row| row.offsets == [0]).count(), 5);
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
