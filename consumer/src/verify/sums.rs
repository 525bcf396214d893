//! What is added up, and how two sums are compared without holding every row.
//!
//! By account: debits and credits of the postings beside those of the balance, and the
//! net of the postings beside the net of the positions. By *bucket* of resources: the
//! same money once more, each amount multiplied by a hash of its resource and account,
//! so that two wrongs that cancel each other out on an account are still seen. In the same
//! way, how often a resource has changed, and when, by its events and by what points to
//! them: the resource to its last change, each event to the one before it. The hash
//! has a random key for each run: nobody can make a wrong that it hides.

use crate::account_postings::AccountPostings;
use postonce_schema::{AccountId, ResourceId};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Resources are told apart by the first 12 bits of their id.
pub const BUCKETS: usize = 4096;

/// Which bucket a resource is in.
pub fn bucket(resource: ResourceId) -> usize {
    let [first, second, ..] = *resource.as_bytes();
    usize::from(first) << 4 | usize::from(second >> 4)
}

/// An account's sums, in minor units. Wrapping: a sum cannot pass 2^127 before there are
/// 2^64 postings, and if damage makes it, both sides still differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccountSums {
    pub debits: i128,
    pub credits: i128,
    /// debits − credits of the postings that the positions below have seen.
    pub posted: i128,
    /// debits − credits of the positions of all resources.
    pub held: i128,
    /// The rows of `account_postings` as they follow from the postings, and as they stand.
    pub expected_rows: u128,
    pub found_rows: u128,
}

/// What is known of an account.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Which asset, by its place in [`Sums::assets`]; none where `accounts` has no such row.
    pub asset: Option<usize>,
    /// debits and credits of `balances`.
    pub balance: Option<(i128, i128)>,
    /// The same when this run's postings began: nothing, unless it goes on from another.
    pub before: (i128, i128),
    pub sums: AccountSums,
}

/// A bucket's sums of both sides, equal where all is well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    posted: u128,
    held: u128,
    changes: u128,
    revisions: u128,
    change_times: u128,
    pointed_to: u128,
}

impl Bucket {
    pub fn money_differs(&self) -> bool {
        self.posted != self.held
    }

    pub fn changes_differ(&self) -> bool {
        self.changes != self.revisions
    }

    pub fn chains_differ(&self) -> bool {
        self.change_times != self.pointed_to
    }
}

/// All sums of a run.
pub struct Sums {
    accounts: HashMap<AccountId, Account>,
    pub assets: Vec<String>,
    buckets: Vec<Bucket>,
    key: RandomState,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            accounts: HashMap::new(),
            assets: Vec::new(),
            buckets: vec![Bucket::default(); BUCKETS],
            key: RandomState::new(),
        }
    }
}

impl Sums {
    pub fn account(&mut self, id: AccountId) -> &mut Account {
        self.accounts.entry(id).or_default()
    }

    pub fn accounts(&self) -> impl Iterator<Item = (AccountId, &Account)> {
        self.accounts.iter().map(|(id, account)| (*id, account))
    }

    /// The asset's place in the list.
    pub fn asset(&mut self, name: &str) -> usize {
        self.assets.iter().position(|known| known == name).unwrap_or_else(|| {
            self.assets.push(name.to_owned());
            self.assets.len() - 1
        })
    }

    /// The assets of two accounts; none where the account is not known.
    pub fn assets_of(&self, one: AccountId, other: AccountId) -> [Option<usize>; 2] {
        [one, other].map(|id| self.accounts.get(&id).and_then(|account| account.asset))
    }

    /// A posting, for the balances.
    pub fn post(&mut self, debit: AccountId, credit: AccountId, amount: i64) {
        let sums = &mut self.account(debit).sums;
        sums.debits = sums.debits.wrapping_add(i128::from(amount));
        let sums = &mut self.account(credit).sums;
        sums.credits = sums.credits.wrapping_add(i128::from(amount));
    }

    /// A posting of a resource that the resource's position has seen.
    pub fn posted(&mut self, resource: ResourceId, debit: AccountId, credit: AccountId, amount: i64) {
        for (account, amount) in [(debit, i128::from(amount)), (credit, -i128::from(amount))] {
            let sums = &mut self.account(account).sums;
            sums.posted = sums.posted.wrapping_add(amount);
            let weighted = self.weigh(resource, account, amount);
            let bucket = &mut self.buckets[bucket(resource)];
            bucket.posted = bucket.posted.wrapping_add(weighted);
        }
    }

    /// A line of a resource's position.
    pub fn held(&mut self, resource: ResourceId, debit: AccountId, credit: AccountId, amount: i64) {
        for (account, amount) in [(debit, i128::from(amount)), (credit, -i128::from(amount))] {
            let sums = &mut self.account(account).sums;
            sums.held = sums.held.wrapping_add(amount);
            let weighted = self.weigh(resource, account, amount);
            let bucket = &mut self.buckets[bucket(resource)];
            bucket.held = bucket.held.wrapping_add(weighted);
        }
    }

    /// A row that `account_postings` must have.
    pub fn expected_row(&mut self, row: &AccountPostings) {
        let weight = u128::from(self.key.hash_one(row));
        let sums = &mut self.account(row.account).sums;
        sums.expected_rows = sums.expected_rows.wrapping_add(weight);
    }

    /// A row that it has.
    pub fn found_row(&mut self, row: &AccountPostings) {
        let weight = u128::from(self.key.hash_one(row));
        let sums = &mut self.account(row.account).sums;
        sums.found_rows = sums.found_rows.wrapping_add(weight);
    }

    /// An event that became its resource's state.
    pub fn changed(&mut self, resource: ResourceId) {
        let weight = u128::from(self.key.hash_one(resource));
        let bucket = &mut self.buckets[bucket(resource)];
        bucket.changes = bucket.changes.wrapping_add(weight);
    }

    /// A resource that says how often it has changed.
    pub fn revised(&mut self, resource: ResourceId, revision: i64) {
        let weight = u128::from(self.key.hash_one(resource));
        let bucket = &mut self.buckets[bucket(resource)];
        bucket.revisions = bucket.revisions.wrapping_add(weight.wrapping_mul(u128::from(revision.unsigned_abs())));
    }

    /// When an event became its resource's state.
    pub fn changed_at(&mut self, resource: ResourceId, updated_at: i64) {
        let weight = u128::from(self.key.hash_one((resource, updated_at)));
        let bucket = &mut self.buckets[bucket(resource)];
        bucket.change_times = bucket.change_times.wrapping_add(weight);
    }

    /// When a resource, or one of its events, says that there was such a change.
    pub fn points_to(&mut self, resource: ResourceId, time: i64) {
        let weight = u128::from(self.key.hash_one((resource, time)));
        let bucket = &mut self.buckets[bucket(resource)];
        bucket.pointed_to = bucket.pointed_to.wrapping_add(weight);
    }

    /// The buckets whose sides differ.
    pub fn wrong_buckets(&self) -> impl Iterator<Item = (usize, &Bucket)> {
        let differs = |bucket: &Bucket| bucket.money_differs() || bucket.changes_differ() || bucket.chains_differ();
        self.buckets.iter().enumerate().filter(move |(_, bucket)| differs(bucket))
    }

    fn weigh(&self, resource: ResourceId, account: AccountId, amount: i128) -> u128 {
        let weight = u128::from(self.key.hash_one((resource, account)));
        weight.wrapping_mul(amount.cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(byte: u8) -> ResourceId {
        ResourceId::from_bytes([byte; 16])
    }

    fn account(byte: u8) -> AccountId {
        AccountId::from_bytes([byte; 16])
    }

    #[test]
    fn two_wrongs_that_cancel_out_are_seen() {
        let mut sums = Sums::default();
        // Both resources are in one bucket, and the accounts' sums agree.
        let (one, other) = (resource(1), ResourceId::from_bytes(std::array::from_fn(|i| u8::from(i < 8))));
        assert_eq!(bucket(one), bucket(other));
        for (resource, posted, held) in [(one, 100, 101), (other, 100, 99)] {
            sums.posted(resource, account(1), account(2), posted);
            sums.held(resource, account(1), account(2), held);
        }
        assert!(sums.accounts().all(|(_, account)| account.sums.posted == account.sums.held));
        assert_eq!(sums.wrong_buckets().count(), 1);
    }

    #[test]
    fn the_way_to_a_position_does_not_matter() {
        let mut sums = Sums::default();
        for amount in [100, 30] {
            sums.posted(resource(1), account(1), account(2), amount);
        }
        sums.posted(resource(1), account(2), account(1), 50);
        sums.held(resource(1), account(1), account(2), 80);
        (0..3).for_each(|_| sums.changed(resource(1)));
        sums.revised(resource(1), 3);
        assert_eq!(sums.wrong_buckets().count(), 0);
        sums.changed(resource(9));
        assert!(sums.wrong_buckets().all(|(_, bucket)| bucket.changes_differ() && !bucket.money_differs()));
    }

    #[test]
    fn each_change_is_pointed_to_as_often_as_there_are_changes_then() {
        let mut sums = Sums::default();
        // The last change was at 9; two are at 5.
        [9, 5, 5, 2].into_iter().for_each(|time| sums.changed_at(resource(1), time));
        [9, 5, 5].into_iter().for_each(|time| sums.points_to(resource(1), time));
        assert_eq!(sums.wrong_buckets().count(), 1, "nothing points to the first");
        sums.points_to(resource(1), 2);
        assert_eq!(sums.wrong_buckets().count(), 0);
        sums.changed_at(resource(1), 7);
        sums.points_to(resource(2), 7);
        assert!(sums.wrong_buckets().all(|(_, bucket)| bucket.chains_differ() && !bucket.changes_differ()));
        assert_eq!(sums.wrong_buckets().count(), 2, "another resource's change is none of its own");
    }
}
