//! The postings that a resource holds, and the difference between two states.
//!
//! The state decides, the difference is posted: when a resource moves from
//! event a to event b, the ledger posts position(b) − position(a). The sum over
//! all events telescopes to the position of the last state, so net balances do
//! not depend on the order in which events arrive.

use crate::rules::Line;
use crate::{Account, Accounts, Asset, Fact, Facts, State};
use std::cmp::Ordering;
use std::sync::Arc;

/// What a resource holds in one state, as if it had come there at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// One for each pair of accounts, none of them zero, sorted by the pair.
    holdings: Vec<Holding>,
}

/// A signed amount between two accounts of one asset. The account with the lesser
/// id stands first, so that a pair has one name whichever way its money went.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holding {
    low: Arc<Account>,
    high: Arc<Account>,
    /// Minor units debited to `low` and credited to `high`; negative the other way.
    /// At most 200 lines of 2^53 each, or twice that in a difference: far from 2^63.
    amount: i64,
}

/// One posting: `amount` > 0 minor units from `credit` to `debit`, both in the
/// same asset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostingAmount {
    pub debit: Arc<Account>,
    pub credit: Arc<Account>,
    pub amount: i64,
}

impl Position {
    /// The position of a resource in `state` with `facts`.
    pub fn of(state: &State, facts: &Facts<'_>) -> Self {
        Self::with(&mut Accounts::default(), state, facts)
    }

    /// The same, with accounts that others may have named already.
    pub fn with(accounts: &mut Accounts, state: &State, facts: &Facts<'_>) -> Self {
        let mut holdings = Vec::with_capacity(state.lines.len());
        for line in &state.lines {
            if let Some((asset, amount)) = unit_and_amount(line, facts) {
                let debit = accounts.get(asset, |path| line.debit.fill(facts, path));
                let credit = accounts.get(asset, |path| line.credit.fill(facts, path));
                push(&mut holdings, debit, credit, amount);
            }
        }
        if let Some(Fact::Lines(lines)) = state.own_lines.map(|index| facts.get(index)) {
            for line in lines {
                let debit = accounts.get(line.asset, |path| path.push_str(line.debit.as_str()));
                let credit = accounts.get(line.asset, |path| path.push_str(line.credit.as_str()));
                push(&mut holdings, debit, credit, line.amount.minor_units());
            }
        }
        Self { holdings: sum(holdings) }
    }

    /// The postings that lead from `before` to `self`: for each pair of accounts
    /// one at most. A decrease has the accounts swapped.
    pub fn minus(self, before: Self) -> Vec<PostingAmount> {
        let mut holdings = self.holdings;
        if !before.holdings.is_empty() {
            holdings.extend(before.holdings.into_iter().map(|held| Holding { amount: -held.amount, ..held }));
            holdings = sum(holdings);
        }
        holdings.into_iter().map(Holding::posting).collect()
    }
}

impl Holding {
    fn posting(self) -> PostingAmount {
        let amount = self.amount.abs();
        match self.amount {
            0.. => PostingAmount { debit: self.low, credit: self.high, amount },
            _ => PostingAmount { debit: self.high, credit: self.low, amount },
        }
    }

    fn pair(&self, other: &Self) -> Ordering {
        // The asset is part of each account's id.
        (self.low.id, self.high.id).cmp(&(other.low.id, other.high.id))
    }
}

fn unit_and_amount(line: &Line, facts: &Facts<'_>) -> Option<(Asset, i64)> {
    match (facts.get(line.unit), facts.get(line.amount)) {
        (Fact::Unit(asset), Fact::Amount(amount)) => Some((*asset, amount.minor_units())),
        _ => {
            // Reading refuses an event whose state needs a field that is absent.
            debug_assert!(false, "a line's amount or unit is absent");
            None
        }
    }
}

/// Money from an account to itself has not moved.
fn push(holdings: &mut Vec<Holding>, debit: Arc<Account>, credit: Arc<Account>, amount: i64) {
    match debit.id.cmp(&credit.id) {
        Ordering::Less => holdings.push(Holding { low: debit, high: credit, amount }),
        Ordering::Greater => holdings.push(Holding { low: credit, high: debit, amount: -amount }),
        Ordering::Equal => {}
    }
}

/// One holding for each pair, and none that is zero.
fn sum(mut holdings: Vec<Holding>) -> Vec<Holding> {
    holdings.sort_by(Holding::pair);
    holdings.dedup_by(|next, sum| {
        let same = next.pair(sum) == Ordering::Equal;
        if same {
            sum.amount += next.amount;
        }
        same
    });
    holdings.retain(|holding| holding.amount != 0);
    holdings
}

#[cfg(test)]
#[path = "position_tests.rs"]
mod tests;
