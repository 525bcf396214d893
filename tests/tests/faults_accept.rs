//! Going on where a consumer has stopped: what a person accepts, is written down, and is
//! accepted once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{Consumer, Flow, Kafka, Ledger, Said, Trial, delete_before, kafka, payments, trials, unique};

use crate::faults_traps::{lineage, made_again, stopped, ten_payments};

const LIMIT: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Trial> {
    trials![
        an_accepted_lineage_is_read_from_its_start,
        a_lineage_that_changes_under_load_is_accepted,
        an_accepted_gap_is_recorded_as_lost,
        a_gap_on_one_of_two_partitions_is_accepted_there,
        a_replay_is_no_other_lineage,
    ]
}

/// Action, person, from and next offset.
type Action = (String, String, Option<i64>, Option<i64>);

/// What `actions` says.
fn actions(flow: &Flow) -> Result<Vec<Action>> {
    flow.ledger.db.rows("SELECT action, person, from_offset, next_offset FROM actions ORDER BY acted_at")
}

/// The flag that the consumer's last words ask for, and its value.
fn flag(said: &str, name: &str) -> Result<String> {
    let (_, rest) = said.rsplit_once(&format!("`{name} ")).with_context(|| format!("no `{name} in:\n{said}"))?;
    Ok(rest.split_once('`').context("no end of the flag")?.0.to_owned())
}

fn end(mut consumer: Consumer, code: i32) -> Result<String> {
    let ended = consumer.exit_code(LIMIT)?;
    ensure!(ended == code, "exit code {ended} instead of {code}:\n{}", consumer.stderr());
    Ok(consumer.stderr())
}

fn euros(flow: &Flow) -> Result<i64> {
    flow.ledger.balance("assets:psp:stripe", "EUR")
}

fn an_accepted_lineage_is_read_from_its_start() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "accepted")?;
    let (before, after) = made_again(&kafka, &flow)?;
    // What was posted of the old one comes again in the new one.
    flow.send(payments("first", 10))?;
    let said = end(flow.consume(&[])?, 10)?;
    let id = flag(&said, "--accept-lineage")?;
    ensure!(id == after.topic_id, "{id} is not the topic's id");
    let wrong = flow.consume(&["--accept-lineage", &before.topic_id])?;
    stopped(&flow, wrong, 10, LIMIT, &["is not this topic", &after.topic_id])?;
    ensure!(actions(&flow)?.is_empty(), "something was accepted");

    let consumer = flow.consume(&["--accept-lineage", &id, "--person", "ada", "--workers", "2"])?;
    flow.wait_offsets(10 + 30, LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    ensure!(euros(&flow)? == 3_000, "{} instead of 30 payments", euros(&flow)?);
    let outcomes: String = flow.ledger.db.one(
        "SELECT convert_from(string_agg(outcomes, '' ORDER BY created_at, seq), 'UTF8')
                            FROM batches JOIN streams USING (stream)",
    )?;
    ensure!(outcomes == format!("{}{}{}", "P".repeat(10), "P".repeat(20), "D".repeat(10)), "{outcomes}");
    ensure!(actions(&flow)? == [("accept_lineage".to_owned(), "ada".to_owned(), None, None)]);
    let named: String = flow.ledger.db.one("SELECT topic_id FROM streams JOIN actions USING (stream)")?;
    ensure!(named == after.topic_id, "the decision is about {named}");
    // The old topic cannot be read again, and that is no finding.
    let verified = Said::by(&flow, &["verify", "--deep"])?;
    verified.complaint(0, &[])?;
    ensure!(verified.stdout.contains("was not read again"), "{}", verified.stdout);

    // It needs no flag again, and a flag that was left behind does no harm.
    flow.send(payments("later", 5))?;
    for (more, offsets) in [(&[][..], 45), (&["--accept-lineage", &before.topic_id][..], 50)] {
        let consumer = flow.consume(more)?;
        flow.wait_offsets(offsets, LIMIT)?;
        consumer.finish()?;
        flow.send(payments(&unique("again"), 5))?;
    }
    ensure!(actions(&flow)?.len() == 1, "it was accepted again");
    flow.check()
}

/// The topic vanishes and comes back while events pour in, and two consumers run.
fn a_lineage_that_changes_under_load_is_accepted() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("replaced")?, "replaced", 2)?;
    let before = lineage(&kafka, &flow.topic)?;
    let consumers = [flow.consume(&["--workers", "1"])?, flow.consume(&["--workers", "1"])?];
    under_load(&flow, || {
        flow.wait_offsets(500, LIMIT)?;
        kafka.delete_topic(&flow.topic)?;
        kafka.create_topic(&flow.topic, 2, &[])
    })?;
    for consumer in consumers {
        let said = end(consumer, 10)?;
        ensure!(said.contains(&before.topic_id), "{said}");
    }
    flow.check()?;
    let after = lineage(&kafka, &flow.topic)?;
    let consumer = flow.consume(&["--accept-lineage", &after.topic_id, "--person", "ada"])?;
    let other = flow.consume(&["--accept-lineage", &after.topic_id, "--person", "ben"])?;
    flow.send(payments("last", 100))?;
    wait_lineage_done(&flow, &kafka, &after.topic_id)?;
    consumer.finish()?;
    other.finish()?;
    flow.check()?;
    ensure!(actions(&flow)?.len() == 1, "accepted more than once: {:?}", actions(&flow)?);
    // Every event of the new topic is known, and nothing is there twice.
    let resources: i64 = flow.ledger.db.one("SELECT count(*) FROM resources")?;
    ensure!(euros(&flow)? == 100 * resources, "{} for {resources} payments", euros(&flow)?);
    let known: i64 = flow.ledger.db.one("SELECT count(*) FROM resources WHERE path LIKE 'stripe/last/%'")?;
    ensure!(known == 100, "{known} of the last 100 payments are known");
    Ok(())
}

/// Runs `happens` while a producer sends payments, each its own resource. What it cannot
/// send while the topic is away is not counted.
fn under_load(flow: &Flow, happens: impl FnOnce() -> Result<()>) -> Result<()> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let label = unique("load");
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let _ = flow.send(payments(&format!("{label}_{n}"), 100));
            }
        });
        let outcome = happens();
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

fn wait_lineage_done(flow: &Flow, kafka: &Kafka, topic_id: &str) -> Result<()> {
    let end: i64 = postonce_tests::end_offsets(&kafka.bootstrap(), &flow.topic)?.iter().sum();
    postonce_tests::wait_until(LIMIT, "the new lineage", || {
        let at: i64 = flow
            .ledger
            .db
            .one(&format!("SELECT coalesce(sum(next_offset), 0)::bigint FROM streams WHERE topic_id = '{topic_id}'"))?;
        Ok((at == end).then_some(()))
    })
}

fn an_accepted_gap_is_recorded_as_lost() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "lost")?;
    flow.send(payments("lost", 5))?;
    delete_before(&kafka, &flow.topic, 0, 13)?;
    let said = end(flow.consume(&[])?, 11)?;
    let gap = flag(&said, "--accept-gap")?;
    ensure!(gap == "0:10-12", "{gap}");
    for wrong in ["0:10-11", "0:9-12", "0:11-12", "1:10-12"] {
        let consumer = flow.consume(&["--accept-gap", wrong])?;
        stopped(&flow, consumer, 11, LIMIT, &["offsets 10 to 12 were deleted", "--accept-gap 0:10-12"])?;
    }
    ensure!(flow.ledger.offsets()? == 10 && actions(&flow)?.is_empty(), "something was accepted");

    let consumer = flow.consume(&["--accept-gap", &gap, "--person", "ada"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    let outcomes: Vec<u8> = flow.ledger.db.one("SELECT string_agg(outcomes, '' ORDER BY seq) FROM batches")?;
    let expected = [b"PPPPPPPPPPL".as_slice(), &3_i64.to_be_bytes(), b"PP"].concat();
    ensure!(outcomes == expected, "{}", String::from_utf8_lossy(&outcomes));
    ensure!(actions(&flow)? == [("accept_gap".to_owned(), "ada".to_owned(), Some(10), Some(13))]);
    ensure!(euros(&flow)? == 1_200, "{} instead of 12 payments", euros(&flow)?);
    let shown = postonce_tests::PostonceProcess::run(
        &["status", "--output", "json"],
        &[("DATABASE_URL", &flow.ledger.url)],
        LIMIT,
    )?;
    ensure!(shown.contains("\"lost\": 3"), "{shown}");
    let verified = Said::by(&flow, &["verify", "--deep", "--output", "json"])?.json(0)?;
    let shown = &verified["gaps"][0];
    let [from, next, by] = ["from_offset", "next_offset", "accepted_by"].map(|name| &shown[name]);
    ensure!(*from == 10 && *next == 13 && by == "ada", "{verified:#}");

    // The flag may stay: the next life finds no gap.
    flow.send(payments("later", 5))?;
    let consumer = flow.consume(&["--accept-gap", &gap])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    ensure!(actions(&flow)?.len() == 1, "it was accepted again");
    flow.check()
}

/// Without a partition the range counts for each; a second gap wants a second flag.
fn a_gap_on_one_of_two_partitions_is_accepted_there() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("two_gaps")?, "two_gaps", 2)?;
    let on = |partition: i32, label: &str, many: usize| {
        payments(label, many).into_iter().map(move |message| message.partition(partition)).collect::<Vec<_>>()
    };
    flow.send(on(0, "a", 4).into_iter().chain(on(1, "b", 6)))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.send(on(0, "c", 10).into_iter().chain(on(1, "d", 10)))?;
    delete_before(&kafka, &flow.topic, 0, 6)?;
    delete_before(&kafka, &flow.topic, 1, 9)?;
    let said = end(flow.consume(&["--workers", "1", "--accept-gap", "4-100"])?, 11)?;
    ensure!(flag(&said, "--accept-gap")? == "1:6-8", "{said}");
    let consumer = flow.consume(&["--accept-gap", "4-100", "--accept-gap", "1:6-8"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    ensure!(euros(&flow)? == 100 * (10 + 8 + 7), "{}", euros(&flow)?);
    let lost: Vec<(i32, i64, i64)> = flow.ledger.db.rows(
        "SELECT s.partition, a.from_offset, a.next_offset FROM actions a JOIN streams s USING (stream) ORDER BY 1",
    )?;
    ensure!(lost == [(0, 4, 6), (1, 6, 9)], "{lost:?}");
    Ok(())
}

/// The streams of a replay stand in the ledger, and are no history of the topic.
fn a_replay_is_no_other_lineage() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("replayed")?, "replayed", 1)?;
    let replayed = |number: i32| {
        flow.ledger.db.execute(&format!(
            "INSERT INTO streams (stream, cluster_id, topic, topic_id, partition, first_offset, next_offset,
                                  message_chain, batch_chain, replay)
             VALUES ({number}, '{}', '{}', 'replay:{number}', 0, 0, 0, decode(repeat('00', 32), 'hex'),
                     decode(repeat('00', 32), 'hex'), true)",
            lineage(&kafka, &flow.topic)?.cluster_id,
            flow.topic
        ))
    };
    replayed(1)?;
    flow.send(payments("replayed", 3))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    replayed(2)?;
    let newest: String = postonce_tests::PostonceProcess::run(
        &["status"],
        &[("DATABASE_URL", &flow.ledger.url), ("KAFKA_BROKERS", &kafka.bootstrap())],
        LIMIT,
    )?;
    let own = newest.lines().find(|line| line.contains(&format!("{}/0 ", flow.topic)) && !line.contains("(replay)"));
    ensure!(own.is_some_and(|line| !line.contains("older")), "{newest}");
    ensure!(newest.contains("(replay)"), "{newest}");
    flow.check()
}
