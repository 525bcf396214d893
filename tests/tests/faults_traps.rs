//! What a consumer must not go on with by itself: it stops with an exit code of its
//! own and a sentence that a person can act on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_consumer::claim::Lineage;
use postonce_tests::{Consumer, Flow, Kafka, Ledger, Trial, delete_before, kafka, payments, trials, wait_until};
use rdkafka::consumer::{BaseConsumer, Consumer as _};

const LIMIT: Duration = Duration::from_secs(30);

pub fn tests() -> Vec<Trial> {
    trials![
        a_topic_made_again_stops_a_restart,
        a_topic_made_again_stops_a_running_consumer,
        a_gap_stops,
        a_gap_that_opens_while_running_stops,
        a_ledger_ahead_of_the_log_stops,
        a_compacted_topic_is_refused,
        a_promise_cannot_be_set_away,
    ]
}

pub fn lineage(kafka: &Kafka, topic: &str) -> Result<Lineage> {
    let client: BaseConsumer = kafka.client().create()?;
    postonce_consumer::topic::lineage(client.client(), topic, false).context("no lineage")
}

/// It has ended with this code, has said all of this, and what it has posted is right.
pub fn stopped(flow: &Flow, consumer: Consumer, code: i32, limit: Duration, says: &[&str]) -> Result<()> {
    ended(consumer, code, limit, says)?;
    flow.check()
}

/// It has ended with this code, and has said all of this.
pub fn ended(mut consumer: Consumer, code: i32, limit: Duration, says: &[&str]) -> Result<()> {
    let ended = consumer.exit_code(limit)?;
    let said = consumer.stderr();
    ensure!(ended == code, "exit code {ended} instead of {code}:\n{said}");
    // A sentence may be wrapped, and begins after the log's own fields.
    let last = said.lines().rev().take(10).collect::<Vec<_>>().join("\n");
    for text in says {
        ensure!(last.contains(text), "{text:?} is not said at the end:\n{said}");
    }
    Ok(())
}

/// A ledger that has ten payments of a topic, one partition.
pub fn ten_payments(kafka: &Kafka, label: &str) -> Result<Flow> {
    let flow = Flow::new(kafka, Ledger::fresh(label)?, label, 1)?;
    flow.send(payments("first", 10))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    Ok(flow)
}

/// The topic is deleted and made again, with other messages at the same offsets.
pub fn made_again(kafka: &Kafka, flow: &Flow) -> Result<(Lineage, Lineage)> {
    let before = lineage(kafka, &flow.topic)?;
    kafka.delete_topic(&flow.topic)?;
    kafka.create_topic(&flow.topic, 1, &[])?;
    flow.send(payments("second", 20))?;
    let after = lineage(kafka, &flow.topic)?;
    ensure!(before.topic_id != after.topic_id, "the new topic has the old id");
    Ok((before, after))
}

fn a_topic_made_again_stops_a_restart() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "again")?;
    let (before, after) = made_again(&kafka, &flow)?;
    let says = [before.topic_id.as_str(), &after.topic_id, &after.cluster_id, "10 offsets", "deleted and made again"];
    stopped(&flow, flow.consume(&[])?, 10, LIMIT, &says)?;
    ensure!(flow.ledger.offsets()? == 10, "something of the new topic was read");
    Ok(())
}

/// librdkafka goes on at its old offset, in the middle of other messages, and says nothing.
/// What it brings until somebody asks is posted, but once.
fn a_topic_made_again_stops_a_running_consumer() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "running")?;
    let consumer = flow.consume(&[])?;
    wait_claimed_again(&flow)?;
    let (before, after) = made_again(&kafka, &flow)?;
    stopped(&flow, consumer, 10, LIMIT, &[&before.topic_id, &after.topic_id])?;
    let balance = flow.ledger.balance("assets:psp:stripe", "EUR")?;
    ensure!(balance == 100 * flow.ledger.offsets()?, "{balance} was posted");
    Ok(())
}

fn a_gap_stops() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "gap")?;
    flow.send(payments("lost", 5))?;
    delete_before(&kafka, &flow.topic, 0, 13)?;
    let says = [flow.topic.as_str(), "begins at offset 13", "goes on at 10", "offsets 10 to 12 were deleted"];
    stopped(&flow, flow.consume(&[])?, 11, LIMIT, &says)
}

/// The second consumer of the ledger's life has taken over.
pub fn wait_claimed_again(flow: &Flow) -> Result<()> {
    wait_until(LIMIT, "the second claim", || {
        Ok((flow.ledger.db.one::<i64>("SELECT max(epoch) FROM streams")? == 2).then_some(()))
    })
}

/// The messages vanish under a consumer that stands still for a moment.
fn a_gap_that_opens_while_running_stops() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "opens")?;
    let mut consumer = flow.consume(&["-X", "fetch.wait.max.ms=10"])?;
    wait_claimed_again(&flow)?;
    // What it has asked for before it stands still would be answered with the messages.
    consumer.freeze()?;
    std::thread::sleep(Duration::from_millis(200));
    flow.send(payments("lost", 5))?;
    delete_before(&kafka, &flow.topic, 0, 13)?;
    consumer.thaw()?;
    stopped(&flow, consumer, 11, LIMIT, &["begins at offset 13", "goes on at 10"])
}

fn a_ledger_ahead_of_the_log_stops() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "ahead")?;
    // As after an unclean leader election: the log has lost what the ledger has.
    let before = "SELECT next_offset FROM streams";
    flow.ledger.db.execute("UPDATE streams SET next_offset = 17")?;
    let mut consumer = flow.consume(&[])?;
    let code = consumer.exit_code(LIMIT)?;
    let said = consumer.stderr();
    ensure!(code == 12, "exit code {code} instead of 12:\n{said}");
    ensure!(said.contains("ends at offset 10") && said.contains("goes on at 17"), "it said:\n{said}");
    ensure!(flow.ledger.db.one::<i64>(before)? == 17, "it has moved the offset");
    Ok(())
}

fn a_compacted_topic_is_refused() -> Result<()> {
    let kafka = kafka();
    for policy in ["compact", "compact,delete"] {
        let mut flow = Flow::new(&kafka, Ledger::fresh("compact")?, "compact", 1)?;
        flow.topic = postonce_tests::unique("compacted");
        kafka.create_topic(&flow.topic, 1, &[("cleanup.policy", policy)])?;
        let says = [flow.topic.as_str(), "compact", "set cleanup.policy=delete"];
        stopped(&flow, flow.consume(&[])?, 1, LIMIT, &says)?;
        ensure!(flow.ledger.db.one::<i64>("SELECT count(*) FROM streams")? == 0, "it was claimed nevertheless");
    }
    Ok(())
}

fn a_promise_cannot_be_set_away() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("fixed")?, "fixed", 1)?;
    for property in ["enable.auto.commit=true", "isolation.level=read_uncommitted", "auto.offset.reset=latest"] {
        let (name, _) = property.split_once('=').context("no value")?;
        stopped(&flow, flow.consume(&["-X", property])?, 1, LIMIT, &[name, "leave it out"])?;
    }
    // What librdkafka refuses must not be tried again and again.
    let longer = flow.consume(&["-X", "session.timeout.ms=120000"])?;
    stopped(&flow, longer, 1, LIMIT, &["max.poll.interval.ms", "session.timeout.ms"])
}
