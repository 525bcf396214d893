//! Rules that have judged an event are frozen; new ones judge from their time on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_schema::{Kinds, POSITIONS_TOML};
use postonce_tests::model::{Is, Kind, SHIPPED, State, Version};
use postonce_tests::{Consumer, Flow, Ledger, Terms, Trial, kafka, payment, trials, wait_until};
use tempfile::NamedTempFile;

pub fn tests() -> Vec<Trial> {
    trials![
        an_altered_version_in_use_is_refused_with_its_line,
        words_that_change_nothing_are_no_alteration,
        a_new_version_judges_from_its_time_on,
        a_new_version_before_an_accepted_event_is_refused,
        older_rules_are_refused_once_newer_ones_are_in_use,
        a_running_consumer_with_older_rules_posts_nothing_more,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Payments go to other accounts from 2025 on.
const SECOND: &str = r#"
[[version]]
version = 2
from = "2025-01-01T00:00:00Z"

[[version.kind]]
name = "payment"
state = [
  { name = "failed", rank = 4 },
  { name = "succeeded", rank = 5, position = [
    { debit = "assets:cash", credit = "liabilities:merchant:{merchant}", amount = "amount" },
  ] },
]
"#;

/// The same in the words of the model.
const SECOND_KINDS: &[Kind] = &[Kind {
    name: "payment",
    fields: &[("merchant", Is::Account), ("amount", Is::Amount), ("currency", Is::Currency)],
    states: &[
        State { name: "failed", rank: 4, position: &[] },
        State {
            name: "succeeded",
            rank: 5,
            position: &[["assets:cash", "liabilities:merchant:{merchant}", "amount", "currency"]],
        },
    ],
}];

fn file(text: &str) -> Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), text)?;
    Ok(file)
}

fn consume(flow: &Flow, rules: &NamedTempFile) -> Result<Consumer> {
    flow.consume(&["--workers", "1", "--positions", rules.path().to_str().context("a path")?])
}

/// Starts a consumer that must refuse these rules; what it says.
fn refused(flow: &Flow, rules: &str) -> Result<String> {
    let rules = file(rules)?;
    let mut consumer = consume(flow, &rules)?;
    let code = consumer.exit_code(LIMIT)?;
    ensure!(code == 13, "exit code {code}: {}", consumer.stderr());
    Ok(consumer.stderr())
}

/// A ledger that has judged a payment of 2024 by the shipped rules.
fn used(flow: &Flow) -> Result<()> {
    flow.send([payment("stripe/a/1", "succeeded", "2024-06-01T00:00:00Z", 100)])?;
    run(flow, POSITIONS_TOML)
}

fn run(flow: &Flow, text: &str) -> Result<()> {
    let rules = file(text)?;
    let consumer = consume(flow, &rules)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_by(&terms(text)?).map(drop)
}

/// The shipped rules, and the second version if it is among these.
fn terms(rules: &str) -> Result<Terms> {
    let from = rules.find(SECOND.trim_start().split_once("from").context("no from")?.0);
    let Some(at) = from else { return Terms::shipped(Kinds::AllButJournals) };
    let from = rules[at..].split('"').nth(1).context("no time")?.to_owned();
    let second = Version { number: 2, from: Box::leak(from.into_boxed_str()), kinds: SECOND_KINDS };
    Terms::of(Box::leak(Box::new([SHIPPED, second])), rules, Kinds::AllButJournals)
}

fn an_altered_version_in_use_is_refused_with_its_line() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("altered")?, "altered", 1)?;
    used(&flow)?;
    // It must not be read once the rules are refused.
    flow.send([payment("stripe/a/2", "succeeded", "2024-06-02T00:00:00Z", 100)])?;
    for (was, now) in [
        (r#"{ name = "failed", rank = 4 },"#, r#"{ name = "failed", rank = 6 },"#),
        (
            r#"debit = "assets:psp:{provider}", credit = "liabilities:merchant"#,
            r#"debit = "assets:cash:{provider}", credit = "liabilities:merchant"#,
        ),
        (
            r#"credit = "income:fees", amount = "fee""#,
            r#"credit = "income:fees", amount = "fee", currency = "fee_currency""#,
        ),
        (r#"{ name = "reversed", rank = 5 },"#, r#"{ name = "reversed", rank = 5 }, { name = "lost", rank = 5 },"#),
    ] {
        let at = POSITIONS_TOML.find(was).with_context(|| format!("{was} is not in the rules"))?;
        let line = POSITIONS_TOML[..at].matches('\n').count() + 1;
        let altered = POSITIONS_TOML.replacen(was, now, 1);
        let told = refused(&flow, &altered)?;
        ensure!(told.contains("version 1 is in use and frozen"), "{told}");
        let said = told.split("line ").nth(1).and_then(|rest| rest.split(' ').next()).context("no line")?;
        let said: usize = said.parse()?;
        let near = if now.contains("lost") { said == line || said == line + 1 } else { said == line };
        ensure!(near, "it names line {said}, the change is in line {line}: {told}");
    }
    assert_eq!(flow.ledger.outcomes()?, "P");
    run(&flow, POSITIONS_TOML)?;
    assert_eq!(flow.ledger.outcomes()?, "PP");
    Ok(())
}

fn words_that_change_nothing_are_no_alteration() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("words")?, "words", 1)?;
    used(&flow)?;
    flow.send([payment("stripe/a/2", "succeeded", "2024-06-02T00:00:00Z", 100)])?;
    let reworded = POSITIONS_TOML
        .replace("rank = 5", "rank    =  5")
        .replace("from = \"1970-01-01T00:00:00Z\"", "from = \"1970-01-01T02:00:00.000+02:00\" # the beginning")
        .replace("amount = \"fee\" }", "amount = \"fee\", currency = \"currency\" }");
    assert_ne!(reworded, POSITIONS_TOML);
    run(&flow, &reworded)?;
    assert_eq!(flow.ledger.outcomes()?, "PP");
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM rules")?, 1);
    Ok(())
}

fn a_new_version_judges_from_its_time_on() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("versions")?, "versions", 1)?;
    used(&flow)?;
    flow.send([
        payment("stripe/a/2", "succeeded", "2024-12-31T23:59:59.999999Z", 20),
        payment("stripe/a/3", "succeeded", "2025-01-01T00:00:00Z", 3),
        // Held under the old rules, restated under the new: old accounts out, new ones in.
        payment("stripe/a/1", "succeeded", "2025-02-01T00:00:00Z", 100),
        // A state that only the old rules know, at a time when the new ones judge.
        payment("stripe/a/4", "authorized", "2025-02-01T00:00:00Z", 7),
        payment("stripe/a/4", "authorized", "2024-02-01T00:00:00Z", 7),
    ])?;
    run(&flow, &format!("{POSITIONS_TOML}{SECOND}"))?;
    assert_eq!(flow.ledger.outcomes()?, "PPPPRN");
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 20);
    assert_eq!(flow.ledger.balance("assets:cash", "EUR")?, 103);
    let versions: Vec<(String, i32)> =
        flow.ledger.db.rows("SELECT path, rules_version FROM resources ORDER BY path")?;
    let versions: Vec<(&str, i32)> = versions.iter().map(|(path, version)| (path.as_str(), *version)).collect();
    assert_eq!(versions, [("stripe/a/1", 2), ("stripe/a/2", 1), ("stripe/a/3", 2), ("stripe/a/4", 1)]);
    // A replay of old events finds their old fingerprints.
    flow.send([payment("stripe/a/1", "succeeded", "2024-06-01T00:00:00Z", 100)])?;
    run(&flow, &format!("{POSITIONS_TOML}{SECOND}"))?;
    assert_eq!(flow.ledger.outcomes()?, "PPPPRND");
    Ok(())
}

fn a_new_version_before_an_accepted_event_is_refused() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("early")?, "early", 1)?;
    used(&flow)?;
    for from in ["2024-06-01T00:00:00Z", "2020-01-01T00:00:00Z"] {
        let early = SECOND.replace("2025-01-01T00:00:00Z", from);
        let told = refused(&flow, &format!("{POSITIONS_TOML}{early}"))?;
        ensure!(told.contains("version 2") && told.contains("2024-06-01T00:00:00.000000Z"), "{told}");
        assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM rules")?, 1);
    }
    // A microsecond later is late enough.
    let later = SECOND.replace("2025-01-01T00:00:00Z", "2024-06-01T00:00:00.000001Z");
    run(&flow, &format!("{POSITIONS_TOML}{later}"))
}

fn older_rules_are_refused_once_newer_ones_are_in_use() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("older")?, "older", 1)?;
    run(&flow, &format!("{POSITIONS_TOML}{SECOND}"))?;
    flow.send([payment("stripe/a/1", "succeeded", "2025-06-01T00:00:00Z", 100)])?;
    let told = refused(&flow, POSITIONS_TOML)?;
    ensure!(told.contains("version 2 is in use"), "{told}");
    assert_eq!(flow.ledger.offsets()?, 0);
    run(&flow, &format!("{POSITIONS_TOML}{SECOND}"))?;
    assert_eq!(flow.ledger.balance("assets:cash", "EUR")?, 100);
    Ok(())
}

/// It has checked its rules at its start, and others come into force afterwards.
fn a_running_consumer_with_older_rules_posts_nothing_more() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("running")?, "running", 1)?;
    let (old, new) = (file(POSITIONS_TOML)?, file(&format!("{POSITIONS_TOML}{SECOND}"))?);
    let mut older = consume(&flow, &old)?;
    flow.send([payment("stripe/a/1", "succeeded", "2024-06-01T00:00:00Z", 100)])?;
    flow.wait_done(LIMIT)?;
    // The other group reads another topic into the same ledger.
    let other = Flow::new(&kafka, Ledger::fresh("unused")?, "other", 1)?;
    let newer = Consumer::start(
        &kafka,
        &other.topic,
        &other.group,
        &flow.ledger.url,
        &["--positions", new.path().to_str().context("a path")?],
    )?;
    wait_until(LIMIT, "the new rules", || {
        Ok((flow.ledger.db.one::<i64>("SELECT count(*) FROM rules")? == 2).then_some(()))
    })?;
    newer.finish()?;
    flow.send([payment("stripe/a/2", "succeeded", "2025-06-01T00:00:00Z", 100)])?;
    assert_eq!(older.exit_code(LIMIT)?, 13, "{}", older.stderr());
    assert_eq!(flow.ledger.outcomes()?, "P");
    run(&flow, &format!("{POSITIONS_TOML}{SECOND}"))?;
    assert_eq!(flow.ledger.balance("assets:cash", "EUR")?, 100);
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 100);
    Ok(())
}
