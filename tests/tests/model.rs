//! Random sets of events through Kafka and Postgres: the books are those of the naive
//! model, whatever partition, worker and batch each copy met.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_schema::{Kinds, POSITIONS_TOML};
use postonce_tests::model::{LATER_VERSIONS_TOML, SHIPPED, THREE_VERSIONS, Version, books};
use postonce_tests::scenario::{Arriving, Scenario, scenarios};
use postonce_tests::{Flow, Ledger, Message, PrivatePostgres, Terms, Trial, kafka, postgres, postgres_18, trials};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

pub fn tests() -> Vec<Trial> {
    trials![
        random_events_give_the_books_of_the_model,
        random_events_under_three_versions_give_the_books_of_the_model,
        random_events_on_postgres_18,
    ]
}

const PARTITIONS: i32 = 3;
const LIMIT: Duration = Duration::from_secs(60);
const SHIPPED_ALONE: &[Version] = &[SHIPPED];

fn random_events_give_the_books_of_the_model() -> Result<()> {
    compare(&postgres(), SHIPPED_ALONE, 10)
}

fn random_events_under_three_versions_give_the_books_of_the_model() -> Result<()> {
    compare(&postgres(), THREE_VERSIONS, 10)
}

fn random_events_on_postgres_18() -> Result<()> {
    let Some(server) = postgres_18() else {
        eprintln!("skipped: there are no binaries of Postgres 18 for this machine");
        return Ok(());
    };
    compare(&server, THREE_VERSIONS, 2)
}

/// Other cases in each run; with `POSTONCE_TEST_SEED` those of an earlier one.
fn compare(server: &PrivatePostgres, rules: &'static [Version], cases: u64) -> Result<()> {
    let seed = match std::env::var("POSTONCE_TEST_SEED") {
        Ok(given) => given.parse()?,
        Err(_) => rand::random::<u64>(),
    };
    for case in 0..cases {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_be_bytes());
        bytes[8..16].copy_from_slice(&case.to_be_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let scenario = scenarios(rules, 60).new_tree(&mut runner).map_err(anyhow::Error::msg)?.current();
        run(server, rules, &scenario).with_context(|| format!("case {case} of POSTONCE_TEST_SEED={seed}"))?;
    }
    Ok(())
}

fn run(server: &PrivatePostgres, rules: &'static [Version], scenario: &Scenario) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(server, "model")?, "model", PARTITIONS)?;
    let file = tempfile::NamedTempFile::new()?;
    let later = if rules.len() > 1 { LATER_VERSIONS_TOML } else { "" };
    let rules_text = format!("{POSITIONS_TOML}{later}");
    std::fs::write(file.path(), &rules_text)?;
    let rules_file = file.path().to_string_lossy().into_owned();
    let batch = scenario.batches[0].to_string();
    let consumer =
        flow.consume(&["--workers", "2", "--batch", &batch, "--kinds", "all", "--positions", &rules_file])?;
    flow.wait_claimed(PARTITIONS.into())?;
    // Copies of one resource lie on several partitions and meet in different workers.
    flow.send(scenario.one.iter().map(|Arriving { text, partition }| {
        Message::new(text.clone()).key("any").partition(i32::from(*partition) % PARTITIONS)
    }))?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_by(&Terms::of(rules, &rules_text, Kinds::All)?)?;
    flow.ledger.check_message_chain(&kafka.bootstrap(), &flow.topic)?;
    let expected = books(rules, scenario.one.iter().map(|message| message.text.as_str()));
    let found = flow.ledger.model_books()?;
    ensure!(found == expected, "the model:\n{expected:#?}\nthe ledger:\n{found:#?}\nevents:\n{:#?}", scenario.one);
    Ok(())
}
