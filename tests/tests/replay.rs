//! `postonce replay`: an equal ledger is equal, also beside a consumer at work, and
//! whatever was done to it is named.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Db, Flow, Kafka, Ledger, Message, PostonceProcess, Said, Transaction, Trial, delete_before, end_offsets, kafka,
    payment, payments, trials, wait_until,
};
use serde_json::{Value, json};

pub fn tests() -> Vec<Trial> {
    trials![
        an_equal_ledger_is_equal_and_nothing_is_written,
        beside_a_consumer_at_work_it_is_exact,
        what_was_done_to_the_ledger_is_named,
        a_range_by_offset_and_by_time,
        a_backlog_is_new_and_a_second_copy_of_it_is_not,
        executed_over_a_known_range_it_leaves_batch_rows_alone,
        executed_beside_a_consumer_at_work_it_takes_nothing_from_it,
        executed_over_a_backlog_it_posts_what_the_consumer_then_finds_known,
        a_signal_ends_it,
        what_cannot_be_replayed_is_told,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// A ledger after a load of everything: duplicates, conflicts, disorder, poison, holes.
fn loaded(kafka: &Kafka, label: &str, events: u64) -> Result<Flow> {
    let flow = Flow::new(kafka, Ledger::fresh(label)?, label, 2)?;
    flow.send_load(events, 5)?;
    for commit in [true, false] {
        let transaction = Transaction::begin(&kafka.bootstrap())?;
        transaction.send(&flow.topic, payments(&format!("{label}_{commit}"), 20))?;
        if commit { transaction.commit()? } else { transaction.abort()? }
    }
    flow.send(payments("last", 10))?;
    let consumer = flow.consume(&["--batch", "500"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    Ok(flow)
}

fn replay(flow: &Flow, more: &[&str]) -> Result<Said> {
    Said::by(flow, &[&["replay", "-o", "json"], more].concat())
}

fn count(report: &Value, name: &str) -> u64 {
    report["counts"][name].as_u64().unwrap_or(u64::MAX)
}

/// Sums over `batches` for each outcome, as the replay must find them.
fn recorded(flow: &Flow, letters: &str) -> Result<u64> {
    let outcomes = flow.ledger.books()?.outcomes;
    let count: i64 = letters.chars().map(|letter| outcomes.get(&letter).copied().unwrap_or(0)).sum();
    Ok(u64::try_from(count)?)
}

/// Changes what nobody may change.
fn tamper(flow: &Flow, sql: &str) -> Result<()> {
    let tables = "events conflicts quarantine batches resources postings balances";
    let off: String = tables.split(' ').map(|table| format!("ALTER TABLE {table} DISABLE TRIGGER USER;")).collect();
    ensure!(flow.ledger.db.execute(&format!("{off}{sql}"))? > 0, "nothing was changed by {sql}");
    Ok(())
}

fn an_equal_ledger_is_equal_and_nothing_is_written() -> Result<()> {
    let kafka = kafka();
    let flow = loaded(&kafka, "equal", 3_000)?;
    let (books, claims) = (flow.ledger.books()?, flow.ledger.db.one::<i64>("SELECT count(*) FROM claims")?);
    let report = replay(&flow, &[])?.json(0)?;
    assert_eq!(report["equal"], json!(true), "{report:#}");
    assert_eq!(count(&report, "read"), recorded(&flow, "PNDSCR")?);
    assert_eq!(count(&report, "duplicates"), recorded(&flow, "PNDSC")?);
    assert_eq!(count(&report, "rejected"), recorded(&flow, "R")?);
    for none in ["superseded", "conflicts", "accepted_now", "new"] {
        assert_eq!(count(&report, none), 0, "{none}: {report:#}");
    }
    ensure!(count(&report, "rejected") > 0 && recorded(&flow, "C")? > 0, "the load has too little in it");
    let holes = u64::try_from(flow.ledger.offsets()?)? - count(&report, "read");
    assert_eq!(count(&report, "holes"), holes);
    ensure!(holes > 20, "the aborted messages are no holes: {holes}");
    let digest = &report["digest"];
    ensure!(digest["before"]["sha256"].is_string() && digest["before"] == digest["after"], "{digest}");
    assert_eq!(flow.ledger.books()?, books);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM claims")?, claims);
    Ok(())
}

fn beside_a_consumer_at_work_it_is_exact() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("beside")?, "beside", 2)?;
    flow.send_load(6_000, 9)?;
    flow.ledger.slow_down(0.1)?;
    let consumer = flow.consume(&["--batch", "100"])?;
    flow.wait_offsets(500, LIMIT)?;
    let mut moved = 0;
    for _ in 0..4 {
        let before = flow.ledger.offsets()?;
        let report = replay(&flow, &[])?.json(0)?;
        ensure!(count(&report, "new") == 0 && report["equal"] == json!(true), "{report:#}");
        let read = count(&report, "read") + count(&report, "holes");
        ensure!(read >= u64::try_from(before)?, "{read} offsets read, the ledger had {before}");
        moved += i32::from(flow.ledger.offsets()? > before);
    }
    ensure!(moved > 0, "the consumer was done before it could disturb anything");
    flow.ledger.slow_down(0.0)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()
}

/// The one difference that was found.
fn only(report: &Value) -> Result<&Value> {
    let found = report["differences"]["first"].as_array().context("no differences")?;
    ensure!(found.len() == 1 && report["differences"]["total"] == json!(1), "{report:#}");
    Ok(&found[0])
}

fn what_was_done_to_the_ledger_is_named() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("tampered")?, "tampered", 1)?;
    flow.send(payments("p", 10))?;
    flow.send([Message::new("no json"), payment("stripe/c/1", "succeeded", "2026-01-02T03:04:05Z", 5)])?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    replay(&flow, &[])?.json(0)?;
    let id = |offset: i64| {
        flow.ledger.db.one::<String>(&format!(
            "SELECT 'evt_' || encode(event_id, 'hex') FROM events WHERE message_offset = {offset}"
        ))
    };

    let fourth = id(4)?;
    tamper(&flow, "UPDATE events SET fingerprint = gen_random_uuid() WHERE message_offset = 4")?;
    let report = replay(&flow, &[])?.json(3)?;
    let found = only(&report)?;
    assert_eq!((&found["what"], &found["offset"], &found["event_id"]), (&json!("conflict"), &json!(4), &json!(fourth)));
    assert_eq!((count(&report, "conflicts"), count(&report, "new")), (1, 0));

    tamper(&flow, "DELETE FROM events WHERE message_offset = 4")?;
    let said = replay(&flow, &[])?;
    let report = said.json(3)?;
    let found = only(&report)?;
    assert_eq!((&found["what"], &found["offset"], &found["event_id"]), (&json!("new"), &json!(4), &json!(fourth)));
    assert_eq!((&found["type"], &found["resource"]), (&json!("payment.succeeded"), &json!("stripe/p/pi_4")));
    assert_eq!((count(&report, "new"), count(&report, "duplicates")), (1, 10));
    let text = Said::by(&flow, &["replay"])?;
    ensure!(text.code == 3 && text.stdout.contains(&fourth) && text.stdout.contains("DIFFERENT"), "{}", text.stdout);
    // What lies outside the range is not looked at.
    replay(&flow, &["--from", "5"])?.json(0)?;

    tamper(&flow, "DELETE FROM quarantine")?;
    let report = replay(&flow, &["--from", "5"])?.json(3)?;
    assert_eq!((&only(&report)?["what"], &only(&report)?["offset"]), (&json!("not_in_quarantine"), &json!(10)));

    // What the ledger says of an offset, and what the topic has there.
    let outcome = |offset: i64, letter: char| {
        tamper(
            &flow,
            &format!(
                "UPDATE batches SET outcomes = set_byte(outcomes, ({offset} - from_offset)::int, ascii('{letter}'))
                 WHERE from_offset <= {offset} AND {offset} < next_offset"
            ),
        )
    };
    for (letter, from, what) in [('R', "4", "accepted_now"), ('.', "4", "skipped"), ('P', "10", "refused_now")] {
        let offset: i64 = from.parse()?;
        outcome(offset, letter)?;
        let report = replay(&flow, &["--from", from, "--to", &(offset + 1).to_string()])?.json(3)?;
        assert_eq!((&only(&report)?["what"], &only(&report)?["offset"]), (&json!(what), &json!(offset)));
    }
    Ok(())
}

fn a_range_by_offset_and_by_time() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("range")?, "range", 2)?;
    let at = |n: i64| 1_767_000_000_000 + n * 1000;
    let messages = payments("r", 40).into_iter().enumerate().map(|(n, message)| {
        let n = i64::try_from(n).unwrap_or(0);
        message.partition(i32::from(n % 2 == 1)).timestamp(at(n))
    });
    flow.send(messages)?;
    let consumer = flow.consume(&["--max-ahead-hours", "1000000"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let ranges = |more: &[&str]| {
        let report = replay(&flow, &[&["--max-ahead-hours", "1000000"], more].concat())?.json(0)?;
        let spans = report["partitions"].as_array().context("no partitions")?;
        let spans: Vec<_> = spans.iter().map(|span| (span["from"].as_i64(), span["to"].as_i64())).collect();
        anyhow::Ok((count(&report, "read"), spans))
    };
    let span = |from, to| (Some(from), Some(to));
    assert_eq!(ranges(&[])?, (40, vec![span(0, 20), span(0, 20)]));
    assert_eq!(ranges(&["--from", "5", "--to", "7"])?, (4, vec![span(5, 7), span(5, 7)]));
    assert_eq!(ranges(&["--from", "1:15", "--to", "0:2", "--to", "end"])?, (7, vec![span(0, 2), span(15, 20)]));
    // Partition 0 has the even seconds.
    let from = "2025-12-29T09:20:05Z";
    assert_eq!(at(5), 1_767_000_005_000);
    assert_eq!(ranges(&["--from", from])?, (35, vec![span(3, 20), span(2, 20)]));
    assert_eq!(ranges(&["--to", from])?, (5, vec![span(0, 3), span(0, 2)]));
    assert_eq!(ranges(&["--from", "2100-01-01"])?, (0, vec![span(20, 20), span(20, 20)]));
    // Retention has deleted the beginning.
    delete_before(&kafka, &flow.topic, 0, 12)?;
    assert_eq!(ranges(&[])?, (28, vec![span(12, 20), span(0, 20)]));
    let text = Said::by(&flow, &["replay", "--max-ahead-hours", "1000000"])?;
    ensure!(text.stdout.contains("partition 0: retention has deleted 12 offsets"), "{}", text.stdout);
    Ok(())
}

fn a_backlog_is_new_and_a_second_copy_of_it_is_not() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("backlog")?, "backlog", 1)?;
    flow.send(payments("known", 5))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.send(payments("unknown", 3))?;
    flow.send(payments("unknown", 3))?;
    flow.send([payment("stripe/unknown/pi_0", "authorized", "2026-01-02T03:04:04Z", 100), Message::new("[]")])?;
    let report = replay(&flow, &[])?.json(0)?;
    assert_eq!((count(&report, "read"), &report["not_read_yet"]), (5, &json!(8)));
    let report = replay(&flow, &["--to", "end"])?.json(3)?;
    let counts = ["read", "duplicates", "new", "rejected", "conflicts"].map(|name| count(&report, name));
    assert_eq!(counts, [13, 8, 4, 1, 0], "{report:#}");
    assert_eq!(report["differences"]["by_kind"], json!({"new": 4, "not_in_quarantine": 1}));
    Ok(())
}

/// Partition, next offset, epoch, batch chain and count of claims of a stream.
type Live = (i32, i64, i64, Vec<u8>, i64);

/// The live streams, as far as a replay could disturb them.
fn live(flow: &Flow) -> Result<Vec<Live>> {
    flow.ledger.db.rows(
        "SELECT partition, next_offset, epoch, batch_chain, (SELECT count(*) FROM claims c WHERE c.stream = s.stream)
         FROM streams s WHERE NOT replay ORDER BY partition",
    )
}

fn executed_over_a_known_range_it_leaves_batch_rows_alone() -> Result<()> {
    let kafka = kafka();
    let flow = loaded(&kafka, "execute", 2_000)?;
    let (before, streams) = (flow.ledger.books()?, live(&flow)?);
    let report = replay(&flow, &["--execute"])?.json(0)?;
    let counts = ["new", "conflicts", "superseded"].map(|name| count(&report, name));
    assert_eq!(counts, [0, 0, 0], "{report:#}");
    ensure!(report["digest"]["before"] == report["digest"]["after"], "{report:#}");
    assert_eq!(live(&flow)?, streams);
    let after = flow.ledger.books()?;
    for same in ["events", "resources", "postings", "balances", "conflicts", "incidents"] {
        assert_eq!(after.tables[same], before.tables[same], "{same}");
    }
    let replays: i64 = flow.ledger.db.one("SELECT count(*) FROM streams WHERE replay AND topic_id LIKE 'replay:%'")?;
    assert_eq!((replays, count(&report, "rejected") > 0), (2, true));
    flow.check()?;
    // A part of it again, from the middle: its stream begins there.
    let part = replay(&flow, &["--execute", "--from", "100", "--to", "200"])?.json(0)?;
    assert_eq!(count(&part, "read") + count(&part, "holes"), 200);
    flow.check()?;
    // Neither a consumer nor a dry run takes its streams for another lineage of the topic.
    replay(&flow, &[])?.json(0)?;
    flow.send(payments("after", 5))?;
    let consumer = flow.consume(&[])?;
    let at: i64 = flow.ledger.db.one("SELECT sum(next_offset)::bigint FROM streams WHERE NOT replay")?;
    let wanted = format!("SELECT sum(next_offset)::bigint >= {} FROM streams WHERE NOT replay", at + 5);
    wait_until(LIMIT, "the live consumer", || Ok(flow.ledger.db.one::<bool>(&wanted)?.then_some(())))?;
    consumer.finish()?;
    flow.check()
}

fn executed_beside_a_consumer_at_work_it_takes_nothing_from_it() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("both")?, "both", 2)?;
    flow.send_load(4_000, 12)?;
    flow.ledger.slow_down(0.05)?;
    let consumer = flow.consume(&["--batch", "100"])?;
    flow.wait_offsets(300, LIMIT)?;
    // To the end: both post the same events, and each event is posted once.
    replay(&flow, &["--execute", "--to", "end"])?;
    flow.ledger.slow_down(0.0)?;
    let end: i64 = end_offsets(&kafka.bootstrap(), &flow.topic)?.iter().sum();
    let wanted = format!("SELECT sum(next_offset)::bigint = {end} FROM streams WHERE NOT replay");
    wait_until(LIMIT, "the live consumer", || Ok(flow.ledger.db.one::<bool>(&wanted)?.then_some(())))?;
    // How often its own workers claim is the group's business: one may join late.
    let lost = consumer.metric("postonce_fence_losses_total", &[])?;
    ensure!(lost == 0.0, "somebody else has claimed its streams {lost} times");
    consumer.finish()?;
    flow.check()?;
    replay(&flow, &[])?.json(0)?;
    let alone = Flow::new(&kafka, Ledger::fresh("alone")?, "alone", 2)?;
    alone.send_load(4_000, 12)?;
    let consumer = alone.consume(&[])?;
    alone.wait_done(LIMIT)?;
    consumer.finish()?;
    assert_eq!(flow.ledger.balances()?, alone.ledger.balances()?);
    Ok(())
}

fn executed_over_a_backlog_it_posts_what_the_consumer_then_finds_known() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("posts")?, "posts", 1)?;
    flow.send(payments("first", 5))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.send(payments("second", 3))?;
    let streams = live(&flow)?;
    let report = replay(&flow, &["--execute", "--from", "2", "--to", "end"])?.json(3)?;
    assert_eq!((count(&report, "duplicates"), count(&report, "new")), (3, 3), "{report:#}");
    let first = &report["differences"]["first"][0];
    assert_eq!((&first["offset"], &first["resource"]), (&json!(5), &json!("stripe/second/pi_0")), "{report:#}");
    assert_eq!(live(&flow)?, streams);
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 800);
    flow.check()?;
    let consumer = flow.consume(&[])?;
    wait_until(LIMIT, "the live consumer", || {
        let at: i64 = flow.ledger.db.one("SELECT next_offset FROM streams WHERE NOT replay")?;
        Ok((at == 8).then_some(()))
    })?;
    consumer.finish()?;
    let outcomes: String = flow.ledger.db.one(
        "SELECT string_agg(encode(outcomes, 'escape'), '' ORDER BY seq) FROM batches JOIN streams USING (stream) WHERE NOT replay",
    )?;
    assert_eq!(outcomes, "PPPPPDDD");
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 800);
    flow.check()
}

/// While the books are hashed, and while the topic is read: more than one stretch of it.
fn a_signal_ends_it() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("signal")?, "signal", 1)?;
    flow.send(payments("s", 45_000))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let holder = Db::new(&flow.ledger.url);
    let env =
        [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", &flow.ledger.url), ("POSTONCE_TOPIC", &flow.topic)];
    for table in ["resources", "batches"] {
        holder.execute(&format!("BEGIN; LOCK TABLE postonce.{table} IN ACCESS EXCLUSIVE MODE"))?;
        let mut process = PostonceProcess::start(&["replay"], &env)?;
        let waiting =
            format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'postonce.{table}'::regclass");
        wait_until(LIMIT, "the replay to wait", || Ok((flow.ledger.db.one::<i64>(&waiting)? > 0).then_some(())))?;
        process.terminate()?;
        if table == "batches" {
            holder.execute("ROLLBACK")?;
        }
        ensure!(process.wait(LIMIT)?.code() == Some(143) && process.stdout().is_empty(), "{}", process.stderr());
        holder.execute("ROLLBACK")?;
    }
    Ok(())
}

fn what_cannot_be_replayed_is_told() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("cannot")?, "cannot", 1)?;
    flow.send(payments("c", 3))?;
    replay(&flow, &[])?.complaint(1, &["has read nothing of topic", "--to end"])?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    replay(&flow, &["--from", "7:0"])?.complaint(1, &["has no partition 7"])?;
    replay(&flow, &["--from", "yesterday"])?.complaint(2, &["PARTITION:OFFSET"])?;
    replay(&flow, &["--topic", "no-such-topic"])?.complaint(1, &["no-such-topic"])?;
    replay(&flow, &["--database-url", "postgres://x@127.0.0.1:1/x"])?.complaint(1, &["no connection to Postgres"])?;
    kafka.delete_topic(&flow.topic)?;
    kafka.create_topic(&flow.topic, 1, &[])?;
    replay(&flow, &[])?.complaint(1, &["has read nothing of topic", "it has read 3 offsets of a topic of that name"])
}
