//! After a disaster: another cluster holds a copy of the messages, in another order, on
//! other partitions, at other offsets. It is read from its beginning.

use std::time::Duration;

use anyhow::{Result, ensure};
use postonce_schema::Kinds;
use postonce_tests::{Flow, Kafka, Ledger, Message, Terms, Trial, audit, kafka, payments, read_all, trials};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

const LIMIT: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Trial> {
    trials![every_event_of_a_mirror_is_a_duplicate]
}

/// Everything that a copy must not change.
const BOOKS: &str = "
    SELECT concat_ws(' ',
        (SELECT count(*) FROM events), (SELECT count(*) FROM resources), (SELECT sum(revision) FROM resources),
        (SELECT count(*) FROM accounts), (SELECT count(*) FROM postings), (SELECT count(*) FROM conflicts),
        (SELECT count(*) FROM quarantine), (SELECT count(*) FROM incidents),
        (SELECT string_agg(concat_ws(' ', account_id, debits, credits), ',' ORDER BY account_id) FROM balances))";

fn every_event_of_a_mirror_is_a_duplicate() -> Result<()> {
    let lost = kafka();
    let flow = Flow::new(&lost, Ledger::fresh("mirror")?, "mirror", 3)?;
    flow.send_load(8_000, 5)?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let original = flow.topic.clone();
    let before: String = flow.ledger.db.one(BOOKS)?;

    // Key, value, headers and time are those of the original, as of any mirror.
    let mirror = Kafka::start()?;
    let mut copies: Vec<Message> = read_all(&lost.bootstrap(), &flow.topic)?
        .into_iter()
        .map(|message| Message { partition: None, offset: None, ..message })
        .collect();
    copies.shuffle(&mut ChaCha8Rng::seed_from_u64(5));
    let topic = mirror.topic("mirrored", 5)?;
    let flow = Flow::on(&mirror, &topic, Ledger::at(&flow.ledger.url))?;
    flow.send(copies)?;
    let consumer = flow.consume(&[])?;
    wait_done(&flow, &topic)?;
    let outcomes: Vec<(String,)> = flow.ledger.db.rows(&format!(
        "SELECT DISTINCT regexp_split_to_table(encode(outcomes, 'escape'), '') FROM batches
         JOIN streams USING (stream) WHERE topic = '{topic}' ORDER BY 1"
    ))?;
    let outcomes: String = outcomes.into_iter().map(|(letter,)| letter).collect();
    ensure!(outcomes == "DR", "the copies have ended as {outcomes}");
    ensure!(flow.ledger.db.one::<String>(BOOKS)? == before, "a copy has changed the books");

    // The rest continues there.
    let balance = flow.ledger.balance("assets:psp:stripe", "EUR")?;
    flow.send(payments("after", 100))?;
    wait_done(&flow, &topic)?;
    consumer.finish()?;
    let posted = flow.ledger.balance("assets:psp:stripe", "EUR")? - balance;
    ensure!(posted == 100 * 100, "100 payments of 100 stand in the books as {posted}");
    flow.ledger.check()?;
    // Why is it a duplicate? Because of the original, in the other cluster.
    let topics = [(&*lost.bootstrap(), &*original), (&*mirror.bootstrap(), &*topic)];
    let seen = audit(&flow.ledger, &topics, &Terms::shipped(Kinds::AllButJournals)?)?;
    ensure!((seen.gone, seen.internal) == (0, 0), "{seen:?}");
    flow.ledger.check_message_chain(&mirror.bootstrap(), &topic)
}

/// Until every offset of this topic has an outcome; the ledger has another topic's, too.
fn wait_done(flow: &Flow, topic: &str) -> Result<()> {
    let other: i64 = flow.ledger.db.one(&format!(
        "SELECT coalesce(sum(next_offset - first_offset), 0)::bigint FROM streams WHERE topic <> '{topic}'"
    ))?;
    flow.wait_offsets(other + flow.end()?, LIMIT)
}
