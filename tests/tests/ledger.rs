//! Stories of one resource each: what the books say at their end. Each is told twice,
//! one message in a transaction and all in one, so that what is settled in memory and
//! what is settled through the tables must agree.

use std::time::Duration;

use anyhow::{Result, ensure};
use postonce_tests::model::{Balances, SHIPPED, books};
use postonce_tests::{
    Flow, Ledger, Message, PrivatePostgres, Trial, kafka, payments, postgres, postgres_18, trials, unique,
};

pub fn tests() -> Vec<Trial> {
    trials![
        ten_identical_deliveries_post_once,
        a_late_failure_does_not_undo_a_success,
        a_success_after_a_failure_is_posted,
        reversed_and_captured_again,
        a_dispute_lost_and_won_again,
        a_restated_amount_posts_the_difference,
        a_change_of_currency_moves_everything,
        conflicts_end_alike_in_both_orders,
        a_conflict_about_a_state_that_is_past_moves_nothing,
        a_zero_amount_and_a_circle_move_nothing,
        a_balance_beyond_64_bits,
        the_stories_on_postgres_18,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// How a story ends.
#[derive(Debug, PartialEq, Eq)]
struct End {
    /// One letter for each message.
    outcomes: String,
    state: String,
    /// Account, amount in minor units of EUR or of the asset behind it.
    balances: Balances,
    incidents: Vec<(String, i64)>,
}

fn end(outcomes: &str, state: &str, balances: &[(&str, &str, i128)], incidents: &[(&str, i64)]) -> End {
    End {
        outcomes: outcomes.to_owned(),
        state: state.to_owned(),
        balances: balances.iter().map(|(path, asset, amount)| (account(path, asset), *amount)).collect(),
        incidents: incidents.iter().map(|(code, count)| ((*code).to_owned(), *count)).collect(),
    }
}

fn account(path: &str, asset: &str) -> (String, String) {
    (path.to_owned(), asset.to_owned())
}

/// Tells a story to two ledgers, and checks that both have understood the same.
fn tell(story: &[String]) -> Result<End> {
    Ok(tell_all(&postgres(), &[story.to_vec()])?.remove(0))
}

/// Each of these stories ends as it says.
fn expect<const N: usize>(stories: [(&[&String], End); N]) -> Result<()> {
    let texts = stories.each_ref().map(|(story, _)| story.iter().map(|text| (*text).clone()).collect());
    let told = tell_all(&postgres(), &texts)?;
    for ((story, expected), told) in stories.into_iter().zip(told) {
        ensure!(told == expected, "expected {expected:?}\n   found {told:?}\n   after {story:#?}");
    }
    Ok(())
}

/// Several stories at once, each of a resource of its own.
fn tell_all(server: &PrivatePostgres, stories: &[Vec<String>]) -> Result<Vec<End>> {
    let kafka = kafka();
    let mut flow = Flow::new(&kafka, Ledger::fresh_in(server, "story")?, "story", 1)?;
    let own = |(n, story): (usize, &Vec<String>)| {
        let message = |text: &String| Message::new(text.replace("/x\"", &format!("/x{n}\""))).key("r");
        story.iter().map(message).collect::<Vec<_>>()
    };
    flow.send(stories.iter().enumerate().flat_map(own))?;
    let mut told = Vec::new();
    for batch in ["1", "1000"] {
        let consumer = flow.consume(&["--workers", "1", "--batch", batch])?;
        flow.wait_done(LIMIT)?;
        consumer.finish()?;
        flow.check()?;
        told.push(ends(&flow.ledger, stories)?);
        flow.ledger = Ledger::fresh_in(server, "story")?;
        flow.group = unique("story");
    }
    let (last, first) = (told.pop().unwrap(), told.pop().unwrap());
    ensure!(first == last, "one by one: {first:#?}\nall at once: {last:#?}");
    Ok(first)
}

fn ends(ledger: &Ledger, stories: &[Vec<String>]) -> Result<Vec<End>> {
    let outcomes = ledger.outcomes()?;
    let books = ledger.model_books()?;
    let incidents: Vec<(String, String, i64)> =
        ledger.db.rows("SELECT resource, code, count(*) FROM incidents_open GROUP BY 1, 2 ORDER BY 1, 2")?;
    let (mut ends, mut told) = (Vec::new(), outcomes.as_str());
    for (n, story) in stories.iter().enumerate() {
        let (own, rest) = told.split_at(story.len());
        told = rest;
        let path = format!("/x{n}");
        let mut end = end(own, "", &[], &[]);
        for (_, resource) in books.resources.iter().filter(|((_, of), _)| of.ends_with(&path)) {
            end.state = [end.state.as_str(), &resource.state].join(" ").trim().to_owned();
            end.balances.extend(resource.position.clone());
        }
        let own = incidents.iter().filter(|(of, _, _)| of.ends_with(&path));
        end.incidents = own.map(|(_, code, count)| (code.clone(), *count)).collect();
        ends.push(end);
    }
    Ok(ends)
}

fn event(type_: &str, time: &str, data: &str) -> String {
    format!(
        r#"{{"type":"{type_}","resource":"stripe/acct_1/x","updatedAt":"2026-01-{time}Z","data":{{"provider":"stripe","merchant":"m"{data}}}}}"#
    )
}

fn payment(state: &str, time: &str, amount: u64, fee: u64, currency: &str) -> String {
    event(&format!("payment.{state}"), time, &format!(r#","amount":{amount},"fee":{fee},"currency":"{currency}""#))
}

const PSP: &str = "assets:psp:stripe";
const MERCHANT: &str = "liabilities:merchant:m";
const FEES: &str = "income:fees";
const PAID: [(&str, &str, i128); 3] = [(PSP, "EUR", 1000), (MERCHANT, "EUR", -971), (FEES, "EUR", -29)];

fn paid(time: &str) -> String {
    payment("succeeded", time, 1000, 29, "EUR")
}

fn ten_identical_deliveries_post_once() -> Result<()> {
    let told = tell(&vec![paid("02T03:04:05"); 10])?;
    assert_eq!(told, end("PDDDDDDDDD", "succeeded", &PAID, &[]));
    Ok(())
}

fn a_late_failure_does_not_undo_a_success() -> Result<()> {
    let (paid, failed) = (paid("02T00:00:00"), event("payment.failed", "03T00:00:00", ""));
    expect([
        (&[&paid, &failed], end("PS", "succeeded", &PAID, &[("regression", 1)])),
        (&[&failed, &paid], end("NP", "succeeded", &PAID, &[("regression", 1)])),
    ])
}

fn a_success_after_a_failure_is_posted() -> Result<()> {
    let (failed, paid) = (event("payment.failed", "02T00:00:00", ""), paid("03T00:00:00"));
    expect([
        (&[&failed, &paid], end("NP", "succeeded", &PAID, &[])),
        (&[&paid, &failed], end("PS", "succeeded", &PAID, &[])),
    ])
}

fn reversed_and_captured_again() -> Result<()> {
    let first = &paid("02T00:00:00");
    let reversed = &event("payment.reversed", "03T00:00:00", "");
    let again = &paid("04T00:00:00");
    expect([
        (&[first, reversed], end("PP", "reversed", &[], &[])),
        (&[first, reversed, again, reversed], end("PPPD", "succeeded", &PAID, &[])),
        // The last comes first: nothing after it moves money.
        (&[again, reversed, first], end("PSS", "succeeded", &PAID, &[])),
        (&[reversed, first, again], end("NSP", "succeeded", &PAID, &[])),
    ])
}

fn a_dispute_lost_and_won_again() -> Result<()> {
    let money = r#","amount":1999,"fee":1500,"currency":"EUR""#;
    let inquiry = &event("dispute.inquiry", "01T00:00:00", "");
    let opened = &event("dispute.opened", "02T00:00:00", money);
    let lost = &event("dispute.lost", "03T00:00:00", money);
    let won = &event("dispute.won", "04T00:00:00", r#","fee":1500,"currency":"EUR""#);
    let cost: (&str, &str, i128) = ("expenses:dispute_fees", "EUR", 1500);
    let held = [cost, ("assets:disputes:stripe", "EUR", 1999), (PSP, "EUR", -3499)];
    let gone = [cost, (MERCHANT, "EUR", 1999), (PSP, "EUR", -3499)];
    let back = [cost, (PSP, "EUR", -1500)];
    expect([
        (&[inquiry, opened], end("NP", "opened", &held, &[])),
        (&[inquiry, opened, lost], end("NPP", "lost", &gone, &[])),
        (&[inquiry, opened, lost, won], end("NPPP", "won", &back, &[])),
        (&[won, lost, inquiry, opened], end("PSSS", "won", &back, &[])),
    ])
}

fn a_restated_amount_posts_the_difference() -> Result<()> {
    let first = &payment("succeeded", "02T00:00:00", 100, 10, "EUR");
    let more = &payment("succeeded", "03T00:00:00", 120, 10, "EUR");
    let less = &payment("succeeded", "04T00:00:00", 70, 0, "EUR");
    let raised = [(PSP, "EUR", 120), (MERCHANT, "EUR", -110), (FEES, "EUR", -10)];
    let lowered = [(PSP, "EUR", 70), (MERCHANT, "EUR", -70)];
    expect([
        (&[first, more], end("PP", "succeeded", &raised, &[("restatement", 1)])),
        (&[first, more, less], end("PPP", "succeeded", &lowered, &[("restatement", 2)])),
        (&[less, first, more], end("PSS", "succeeded", &lowered, &[])),
    ])
}

fn a_change_of_currency_moves_everything() -> Result<()> {
    let euros = &payment("succeeded", "02T00:00:00", 100, 10, "EUR");
    let yen = &payment("succeeded", "03T00:00:00", 16_250, 0, "JPY");
    let held = [(PSP, "JPY", 16_250), (MERCHANT, "JPY", -16_250)];
    expect([
        (&[euros, yen], end("PP", "succeeded", &held, &[("restatement", 1)])),
        (&[yen, euros], end("PS", "succeeded", &held, &[])),
    ])
}

fn conflicts_end_alike_in_both_orders() -> Result<()> {
    let contents = [100, 200, 300].map(|amount| payment("succeeded", "02T00:00:00", amount, 0, "EUR"));
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let stories = orders.map(|order| {
        // And each content once more: it is known by then.
        order.iter().chain(&[0, 1, 2]).map(|which: &usize| contents[*which].clone()).collect()
    });
    let told = tell_all(&postgres(), &stories)?;
    for end in &told {
        assert_eq!((end.outcomes.as_str(), end.incidents.as_slice()), ("PCCDDD", &[("conflict".to_owned(), 2)][..]));
        assert_eq!((end.balances.len(), &end.state), (2, &"succeeded".to_owned()));
    }
    // The resource is part of the fingerprint, which decides: the model says which stands.
    for (n, end) in told.iter().enumerate() {
        assert_eq!(end.balances, books_of(&contents, n), "order {:?}", orders[n]);
    }
    Ok(())
}

/// What the model says of the contents when they are about the resource of story `n`.
fn books_of(contents: &[String], n: usize) -> Balances {
    let texts: Vec<String> = contents.iter().map(|text| text.replace("/x\"", &format!("/x{n}\""))).collect();
    books(const { &[SHIPPED] }, texts.iter().map(String::as_str)).balances
}

/// Also where the conflict comes before the state that leaves it behind.
fn a_conflict_about_a_state_that_is_past_moves_nothing() -> Result<()> {
    let money = |amount: u64| format!(r#","amount":{amount},"currency":"EUR""#);
    let one = &event("payout.created", "02T00:00:00", &money(1));
    let other = &event("payout.created", "02T00:00:00", &money(2));
    let paid = &event("payout.paid", "03T00:00:00", &money(500));
    let held = [(MERCHANT, "EUR", 500), (PSP, "EUR", -500)];
    let conflict = [("conflict", 1)];
    expect([
        (&[one, other, paid], end("PCP", "paid", &held, &conflict)),
        (&[other, one, paid], end("PCP", "paid", &held, &conflict)),
        (&[one, paid, other], end("PPC", "paid", &held, &conflict)),
        (&[other, paid, one], end("PPC", "paid", &held, &conflict)),
        (&[paid, one, other], end("PSC", "paid", &held, &conflict)),
    ])
}

fn a_zero_amount_and_a_circle_move_nothing() -> Result<()> {
    let nothing = &payment("succeeded", "02T00:00:00", 0, 0, "EUR");
    let circle = r#"{"type":"transfer.succeeded","resource":"w/m/x","updatedAt":"2026-01-02T00:00:00Z","data":{"from":"c_7","to":"c_7","amount":5,"currency":"EUR"}}"#;
    expect([(&[nothing, &circle.to_owned()], end("NN", "succeeded succeeded", &[], &[]))])
}

/// 1,100 of the largest amounts: more than 2^63 minor units on one account.
fn a_balance_beyond_64_bits() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("large")?, "large", 2)?;
    let largest = |message: Message| {
        let text = String::from_utf8(message.value.unwrap()).unwrap();
        Message { value: Some(text.replace("\"amount\":100,", "\"amount\":9007199254740991,").into_bytes()), ..message }
    };
    flow.send(payments("large", 1_100).into_iter().map(largest))?;
    let consumer = flow.consume(&["--workers", "2"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    let total = 1_100 * 9_007_199_254_740_991_i128;
    assert!(total > i128::from(i64::MAX));
    let expected = [(account(PSP, "EUR"), total), (account("liabilities:merchant:m_1", "EUR"), -total)];
    assert_eq!(flow.ledger.balances()?, Balances::from(expected));
    let told: String =
        flow.ledger.db.one("SELECT sum(amount)::text FROM entries WHERE account = 'assets:psp:stripe'")?;
    assert_eq!(told, total.to_string());
    Ok(())
}

fn the_stories_on_postgres_18() -> Result<()> {
    let Some(server) = postgres_18() else {
        eprintln!("skipped: there are no binaries of Postgres 18 for this machine");
        return Ok(());
    };
    let story = [
        paid("03T00:00:00"),
        paid("03T00:00:00"),
        event("payment.failed", "04T00:00:00", ""),
        payment("succeeded", "03T00:00:00", 1, 0, "EUR"),
        event("payment.reversed", "05T00:00:00", ""),
        paid("06T00:00:00"),
        "no event".to_owned(),
    ];
    let told = tell_all(&server, &[story.to_vec()])?.remove(0);
    assert_eq!((told.outcomes.as_str(), told.balances), ("PDSCPPR", end("", "", &PAID, &[]).balances));
    Ok(())
}
