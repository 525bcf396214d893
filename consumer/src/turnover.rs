//! What a batch posts, by kind of event and asset, for the counters: pure, no I/O.

use postonce_schema::{Asset, Kind, PostingAmount};

/// How a unit that is no currency is counted: a company may have thousands of them, and
/// each label is a series for ever.
pub const OTHER: &str = "other";

/// The postings of a batch, summed up as they are made. A batch has a handful of kinds and
/// currencies, and mostly the same again and again: a short list is faster than a map.
#[derive(Debug, Default)]
pub struct Turnover<'a> {
    sums: Vec<Sum<'a>>,
    /// Where the last posting was counted.
    last: usize,
}

/// The postings of one kind and asset.
#[derive(Debug, Clone, Copy)]
pub struct Sum<'a> {
    kind: &'a Kind,
    /// `None` for every unit that is no currency.
    currency: Option<Asset>,
    pub postings: u64,
    pub minor_units: u64,
}

impl<'a> Turnover<'a> {
    /// Counts a posting of an event of this kind.
    pub fn add(&mut self, kind: &'a Kind, posting: &PostingAmount) {
        let asset = posting.debit.asset;
        if !self.sums.get(self.last).is_some_and(|sum| sum.is_of(kind, &asset)) {
            self.last = self.find(kind, asset);
        }
        if let Some(sum) = self.sums.get_mut(self.last) {
            sum.postings = sum.postings.saturating_add(1);
            sum.minor_units = sum.minor_units.saturating_add(posting.amount.unsigned_abs());
        }
    }

    fn find(&mut self, kind: &'a Kind, asset: Asset) -> usize {
        let currency = Asset::currency(asset.as_str());
        let known = self.sums.iter().position(|sum| std::ptr::eq(sum.kind, kind) && sum.currency == currency);
        known.unwrap_or_else(|| {
            self.sums.push(Sum { kind, currency, postings: 0, minor_units: 0 });
            self.sums.len() - 1
        })
    }

    pub fn sums(&self) -> &[Sum<'a>] {
        &self.sums
    }
}

impl Sum<'_> {
    fn is_of(&self, kind: &Kind, asset: &Asset) -> bool {
        std::ptr::eq(self.kind, kind) && self.currency.as_ref() == Some(asset)
    }

    pub fn kind(&self) -> &str {
        &self.kind.name
    }

    /// The ISO 4217 code, if it is one.
    pub fn currency(&self) -> Option<&str> {
        self.currency.as_ref().map(Asset::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postonce_schema::{Account, AccountPath, POSITIONS_TOML, Rules};
    use std::sync::Arc;

    fn posting(asset: Asset, amount: i64) -> PostingAmount {
        let account = |path| Arc::new(Account::new(AccountPath::parse(path).expect("a path"), asset));
        PostingAmount { debit: account("assets:a"), credit: account("income:b"), amount }
    }

    #[test]
    fn each_kind_and_currency_is_summed_and_all_other_units_are_one() {
        let rules = Rules::parse(POSITIONS_TOML).expect("the shipped rules");
        let kind = |name| rules.versions()[0].kind(name).expect("a kind");
        let (payment, refund) = (kind("payment"), kind("refund"));
        let currency = |code| Asset::currency(code).expect("a currency");
        let unit = |name| Asset::unit(name).expect("a unit");
        let mut turnover = Turnover::default();
        turnover.add(payment, &posting(currency("EUR"), 100));
        turnover.add(payment, &posting(currency("USD"), 7));
        turnover.add(payment, &posting(currency("EUR"), 20));
        turnover.add(refund, &posting(currency("EUR"), 3));
        turnover.add(refund, &posting(unit("POINTS"), 5));
        turnover.add(refund, &posting(unit("SKU-1"), 5));
        turnover.add(refund, &posting(currency("EUR"), i64::MAX));
        let told: Vec<_> =
            turnover.sums().iter().map(|sum| (sum.kind(), sum.currency(), sum.postings, sum.minor_units)).collect();
        let expected = [
            ("payment", Some("EUR"), 2, 120),
            ("payment", Some("USD"), 1, 7),
            ("refund", Some("EUR"), 2, 3 + i64::MAX.unsigned_abs()),
            ("refund", None, 2, 10),
        ];
        assert_eq!(told, expected);
    }
}
