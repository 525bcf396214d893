use super::*;
use crate::{POSITIONS_TOML, Rules, Timestamp};
use std::collections::BTreeMap;

fn position(type_: &str, data: &str) -> Position {
    let rules = Rules::parse(POSITIONS_TOML).expect("rules");
    let (kind, state) = type_.split_once('.').expect("a type");
    let kind = rules.at(Timestamp::EPOCH).kind(kind).expect("a kind");
    let state = kind.state(state).expect("a state");
    Position::of(state, &Facts::read(kind, state, data, "/data").expect("facts"))
}

/// debit <- credit amount, in words.
fn lines(postings: &[PostingAmount]) -> Vec<String> {
    let line = |p: &PostingAmount| {
        format!("{} <- {} {} {}", p.debit.path.as_str(), p.credit.path.as_str(), p.amount, p.debit.asset)
    };
    let mut lines: Vec<String> = postings.iter().map(line).collect();
    lines.sort();
    lines
}

const PAID: &str = r#"{"provider":"stripe","merchant":"m 1","amount":1000,"fee":29,"currency":"EUR"}"#;

#[test]
fn a_payment_posts_its_amount_and_its_fee() {
    let postings = position("payment.succeeded", PAID).minus(Position::default());
    assert_eq!(
        lines(&postings),
        [
            "assets:psp:stripe <- liabilities:merchant:m%201 1000 EUR",
            "liabilities:merchant:m%201 <- income:fees 29 EUR"
        ]
    );
}

#[test]
fn accounts_that_were_named_before_are_the_same_accounts() {
    let rules = Rules::parse(POSITIONS_TOML).expect("rules");
    let kind = rules.at(Timestamp::EPOCH).kind("payment").expect("a kind");
    let state = kind.state("succeeded").expect("a state");
    let mut accounts = Accounts::default();
    for (merchant, currency) in [("m", "EUR"), ("m", "USD"), ("n", "EUR"), ("m", "EUR")] {
        let data = format!(r#"{{"provider":"p","merchant":"{merchant}","amount":5,"fee":1,"currency":"{currency}"}}"#);
        let facts = Facts::read(kind, state, &data, "/data").expect("facts");
        assert_eq!(Position::with(&mut accounts, state, &facts), Position::of(state, &facts), "{data}");
    }
}

#[test]
fn a_reversal_is_the_same_with_the_accounts_swapped() {
    let postings = position("payment.reversed", PAID).minus(position("payment.succeeded", PAID));
    assert_eq!(
        lines(&postings),
        [
            "income:fees <- liabilities:merchant:m%201 29 EUR",
            "liabilities:merchant:m%201 <- assets:psp:stripe 1000 EUR"
        ]
    );
}

#[test]
fn a_restated_amount_posts_the_difference_alone() {
    let more = PAID.replace("1000", "1200");
    let postings = position("payment.succeeded", &more).minus(position("payment.succeeded", PAID));
    assert_eq!(lines(&postings), ["assets:psp:stripe <- liabilities:merchant:m%201 200 EUR"]);
    assert!(position("payment.succeeded", PAID).minus(position("payment.succeeded", PAID)).is_empty());
}

#[test]
fn another_currency_undoes_the_one_and_posts_the_other() {
    let postings =
        position("payment.succeeded", &PAID.replace("EUR", "USD")).minus(position("payment.succeeded", PAID));
    assert_eq!(postings.len(), 4);
    let mut net: BTreeMap<String, i64> = BTreeMap::new();
    for p in &postings {
        *net.entry(p.debit.path.as_str().to_owned() + p.debit.asset.as_str()).or_default() += p.amount;
        *net.entry(p.credit.path.as_str().to_owned() + p.credit.asset.as_str()).or_default() -= p.amount;
    }
    assert_eq!(net["assets:psp:stripeEUR"], -1000);
    assert_eq!(net["assets:psp:stripeUSD"], 1000);
}

#[test]
fn nothing_moves_for_nothing_or_to_oneself() {
    let free = PAID.replace("29", "0");
    assert_eq!(position("payment.succeeded", &free).minus(Position::default()).len(), 1);
    let own = r#"{"from":"c1","to":"c1","amount":5,"currency":"EUR"}"#;
    assert!(position("transfer.succeeded", own).minus(Position::default()).is_empty());
}

#[test]
fn a_lost_dispute_takes_the_money_from_the_merchant() {
    let data = r#"{"provider":"stripe","merchant":"m1","amount":500,"fee":15,"currency":"EUR"}"#;
    assert_eq!(
        lines(&position("dispute.lost", data).minus(position("dispute.opened", data))),
        ["liabilities:merchant:m1 <- assets:disputes:stripe 500 EUR"]
    );
    assert_eq!(
        lines(&position("dispute.won", data).minus(position("dispute.lost", data))),
        [
            "assets:disputes:stripe <- liabilities:merchant:m1 500 EUR",
            "assets:psp:stripe <- assets:disputes:stripe 500 EUR"
        ]
    );
}

#[test]
fn two_hundred_largest_lines_on_one_pair_do_not_overflow() {
    let line = r#"{"debit":"assets:a","credit":"assets:b","amount":9007199254740991}"#;
    let data = |line: &str| {
        format!(r#"{{"author":"a","reason":"r","currency":"EUR","postings":[{}]}}"#, vec![line; 200].join(","))
    };
    let there = position("journal.posted", &data(line));
    let back = position("journal.posted", &data(&line.replace(":a", ":c").replace(":b", ":a").replace(":c", ":b")));
    let postings = back.minus(there);
    assert_eq!(postings.len(), 1);
    assert_eq!(postings[0].amount, 400 * 9_007_199_254_740_991);
}
