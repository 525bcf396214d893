//! `postonce verify --deep` and `--against`: the tables held against the topic, and the
//! topic against what was signed off.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::recovery::{put_back, snapshot};
use postonce_tests::{
    Db, Flow, Ledger, PostonceProcess, Said, Transaction, Trial, delete_before, kafka, payments, read_all,
    start_postgres, trials,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::verify::{Copies, fill};
use crate::verify_since::tells;

const LIMIT: Duration = Duration::from_secs(90);

pub fn tests() -> Vec<Trial> {
    trials![
        a_right_ledger_says_what_the_topic_says,
        what_retention_took_is_told,
        a_rewritten_history_is_found_in_the_topic,
        a_topic_made_again_is_told,
        an_accepted_gap_is_shown,
        a_checkpoint_holds_after_a_restore,
        what_retention_took_of_a_checkpoint,
        another_checkpoint_is_refused,
    ]
}

fn verify(flow: &Flow, more: &[&str]) -> Result<Said> {
    Said::by(flow, &[&["verify", "-o", "json"], more].concat())
}

fn consumed(flow: &Flow, more: &[&str]) -> Result<()> {
    let consumer = flow.consume(more)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()
}

fn messages(report: &Value) -> i64 {
    report["totals"]["messages"].as_i64().unwrap_or_default()
}

/// Of each partition what was read again: from and to.
fn ranges(report: &Value) -> Vec<(Option<i64>, Option<i64>)> {
    let streams = report["streams"].as_array().into_iter().flatten();
    streams.map(|stream| (stream["topic_from"].as_i64(), stream["topic_to"].as_i64())).collect()
}

/// With every outcome, holes, markers and aborted messages.
fn a_right_ledger_says_what_the_topic_says() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("deep")?, "deep", 2)?;
    fill(&kafka, &flow)?;
    let report = verify(&flow, &["--deep"])?.json(0)?;
    let all = read_all(&kafka.bootstrap(), &flow.topic)?.len();
    ensure!(report["deep"] == true && messages(&report) == i64::try_from(all)?, "{all} messages: {report:#}");
    let ends: Vec<i64> = flow
        .ledger
        .db
        .rows("SELECT next_offset FROM streams ORDER BY partition")?
        .into_iter()
        .map(|(end,)| end)
        .collect();
    assert_eq!(ranges(&report), ends.iter().map(|end| (Some(0), Some(*end))).collect::<Vec<_>>());
    ensure!(ends.iter().sum::<i64>() > i64::try_from(all)?, "there is no hole");
    let checked = report["checks"].as_array().into_iter().flatten().find(|one| one["check"] == "topic").cloned();
    ensure!(checked.is_some_and(|one| one["compared"] == all && one["findings"] == 0), "{report:#}");
    let said = Said::by(&flow, &["verify", "--deep"])?;
    ensure!(said.code == 0 && said.stdout.contains("the topic says the same"), "{}{}", said.stdout, said.stderr);
    // Without brokers there is no topic.
    let env = [("DATABASE_URL", flow.ledger.url.as_str())];
    for flags in [&["verify", "--deep"][..], &["verify", "--against", "x.json"]] {
        assert_eq!(PostonceProcess::start(flags, &env)?.wait(LIMIT)?.code(), Some(2), "{flags:?}");
    }
    Ok(())
}

fn what_retention_took_is_told() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("retention")?, "retention", 2)?;
    for label in ["a", "b", "c"] {
        let on = |partition| {
            payments(&format!("{label}{partition}"), 10).into_iter().map(move |one| one.partition(partition))
        };
        flow.send(on(0).chain(on(1)))?;
        consumed(&flow, &[])?;
    }
    // In the middle of a batch; and all of the other partition.
    delete_before(&kafka, &flow.topic, 0, 13)?;
    delete_before(&kafka, &flow.topic, 1, 30)?;
    let report = verify(&flow, &["--deep"])?.json(0)?;
    let (from, to) = ranges(&report)[0];
    ensure!(to == Some(30) && from.is_some_and(|from| (13..=20).contains(&from)), "{report:#}");
    assert_eq!((ranges(&report)[1], messages(&report)), ((None, None), 30 - from.unwrap_or_default()));
    let said = Said::by(&flow, &["verify", "--deep"])?;
    let told = "/1 was not read again: retention has deleted all of it: the log begins at 30";
    ensure!(said.code == 0 && said.stdout.contains(told), "{}{}", said.stdout, said.stderr);
    Ok(())
}

/// Makes a ledger of one stream agree with itself again, as somebody would who knows how
/// its chain is made: every batch is hashed anew, one after the other.
const FORGE: &str = r"
CREATE FUNCTION text_bytes(t text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(int4send(octet_length(convert_to(t, 'UTF8'))) || convert_to(t, 'UTF8'), '\xffffffff'::bytea) $$;
CREATE FUNCTION micros(t timestamptz) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT int8send(coalesce((extract(epoch FROM t) * 1000000)::bigint, -1)) $$;
CREATE PROCEDURE forge() LANGUAGE plpgsql AS $$
DECLARE b record; previous bytea := decode(repeat('00', 32), 'hex'); facts bytea; moved bytea;
BEGIN
    FOR b IN SELECT * FROM batches ORDER BY seq LOOP
        SELECT string_agg('E'::bytea || int8send(message_offset) || micros(updated_at) || event_id || uuid_send(resource_id)
                   || uuid_send(fingerprint) || micros(message_time) || convert_to(outcome::text, 'UTF8')
                   || text_bytes(state) || text_bytes(source), ''::bytea ORDER BY message_offset) INTO facts
        FROM events WHERE message_offset >= b.from_offset AND message_offset < b.next_offset;
        SELECT string_agg('P'::bytea || int8send(message_offset) || int2send(line) || uuid_send(debit) || uuid_send(credit)
                   || int8send(amount) || micros(effective_at), ''::bytea ORDER BY message_offset, line) INTO moved
        FROM postings WHERE message_offset >= b.from_offset AND message_offset < b.next_offset;
        UPDATE batches SET previous_hash = previous, hash = sha256('postonce:batch:v1\012'::bytea || previous
                || int8send(b.stream) || int8send(b.seq) || int8send(b.from_offset) || int8send(b.next_offset)
                || int8send(octet_length(b.outcomes)) || b.outcomes || b.message_chain
                || coalesce(facts, ''::bytea) || coalesce(moved, ''::bytea))
        WHERE stream = b.stream AND seq = b.seq RETURNING hash INTO previous;
    END LOOP;
    UPDATE streams SET batch_chain = previous;
    TRUNCATE account_postings;
    CALL fill_account_postings();
END $$;";

/// A payment of 100 becomes one of 900: event, facts, postings and balances.
const RAISED: &str = r#"
UPDATE events SET fingerprint = '{fingerprint}' WHERE message_offset = 3;
UPDATE resources SET facts = replace(facts::text, '"amount":100', '"amount":900')::json WHERE path = 'stripe/forged/pi_3';
UPDATE balances b SET debits = debits + 8 * amount FROM postings WHERE message_offset = 3 AND account_id = debit;
UPDATE balances b SET credits = credits + 8 * amount FROM postings WHERE message_offset = 3 AND account_id = credit;
UPDATE postings SET amount = 9 * amount WHERE message_offset = 3;"#;

/// The payment at offset 3 has never been.
const GONE: &str = "
UPDATE balances b SET debits = debits - amount FROM postings WHERE message_offset = 3 AND account_id = debit;
UPDATE balances b SET credits = credits - amount FROM postings WHERE message_offset = 3 AND account_id = credit;
DELETE FROM postings WHERE message_offset = 3;
DELETE FROM events WHERE message_offset = 3;
DELETE FROM resources WHERE path = 'stripe/forged/pi_3';
UPDATE batches SET outcomes = overlay(outcomes placing '{byte}'::bytea from 4 for 1) WHERE seq = 1;";

/// What was rewritten, and what the topic says of it.
fn rewritten(fingerprint: &str) -> Vec<(String, Vec<&'static str>)> {
    let gone = |byte: &str| GONE.replace("{byte}", byte);
    let refused = "INSERT INTO quarantine (message_hash, code, place, reason, headers, first_stream, first_offset,
                       last_stream, last_offset, times_seen)
                   SELECT sha256('another'), 'syntax', '', '', '', stream, 3, stream, 3, 1 FROM streams";
    let event = "the content of this event in the ledger is not what the topic says";
    vec![
        (
            RAISED.replace("{fingerprint}", fingerprint),
            vec![event, "payment stripe/forged/pi_3", "evt_", "\"offset\":3"],
        ),
        (gone("."), vec!["the ledger says that there is none", "evt_", "\"offset\":3"]),
        (gone("D"), vec!["calls this message a duplicate, but knows no such event", "\"offset\":3"]),
        (gone("R") + refused, vec!["its bytes are not in quarantine", "\"offset\":3"]),
        (
            gone(r"L\000\000\000\000\000\000\000\001")
                + "INSERT INTO actions (action_id, action, person, stream, from_offset, next_offset)
                   SELECT gen_random_uuid(), 'accept_gap', 'nobody', stream, 3, 4 FROM streams",
            vec!["the ledger says that it was lost to retention", "\"offset\":3"],
        ),
        (
            "UPDATE batches SET message_chain = sha256('x') WHERE seq = 1".to_owned(),
            vec!["message chain recorded by batch 1 (offsets 0 to 9)", "\"offset\":0"],
        ),
        (
            "UPDATE batches SET outcomes = overlay(outcomes placing 'D' from octet_length(outcomes) for 1)
             WHERE seq = (SELECT max(seq) FROM batches)"
                .to_owned(),
            vec!["the ledger says \\\"duplicate\\\" of an offset where the topic has no message"],
        ),
        (
            "UPDATE batches SET next_offset = next_offset + 4, outcomes = outcomes || '....'
             WHERE seq = (SELECT max(seq) FROM batches);
             UPDATE streams SET next_offset = next_offset + 4"
                .to_owned(),
            vec!["the topic ends before the offset where the ledger stands"],
        ),
    ]
}

/// Whoever can write the tables can make them agree with each other: they are all right
/// for `verify`, and wrong for the topic and for what was signed off.
fn a_rewritten_history_is_found_in_the_topic() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("forged")?, "forged", 1)?;
    flow.send(payments("forged", 10))?;
    consumed(&flow, &[])?;
    let transaction = Transaction::begin(&kafka.bootstrap())?;
    transaction.send(&flow.topic, payments("committed", 5))?;
    transaction.commit()?;
    consumed(&flow, &[])?;
    let db = &flow.ledger.db;
    let first: (i64, i64) = db.rows("SELECT from_offset, next_offset FROM batches WHERE seq = 1")?.remove(0);
    ensure!(first == (0, 10), "the first batch is {first:?}");
    let directory = TempDir::new()?;
    let signed = signed(&flow, directory.path())?;
    // The forger is honest about what he writes: this is the content of a payment of 900.
    let other = Flow::new(&kafka, Ledger::fresh("forger")?, "forger", 1)?;
    let raised = payments("forged", 4).into_iter().map(|mut one| {
        one.value =
            one.value.map(|value| String::from_utf8_lossy(&value).replace("\"amount\":100", "\"amount\":900").into());
        one
    });
    other.send(raised)?;
    consumed(&other, &[])?;
    let fingerprint: String = other.ledger.db.one("SELECT fingerprint::text FROM events WHERE message_offset = 3")?;

    let rewritten = rewritten(&fingerprint);
    let (bootstrap, topic) = (flow.bootstrap().to_owned(), flow.topic.clone());
    Copies::of(flow.ledger)?.try_each(rewritten.len() + 1, |number, url| {
        let (sql, words) = rewritten.get(number).cloned().unwrap_or_default();
        let flow = Flow::of(&bootstrap, topic.clone(), Ledger::at(url))?;
        let before: String = Db::new(url).one("SELECT encode(batch_chain, 'hex') FROM streams")?;
        Db::new(url).execute(&format!("SET session_replication_role = replica; {FORGE} {sql}; CALL forge()"))?;
        let after: String = Db::new(url).one("SELECT encode(batch_chain, 'hex') FROM streams")?;
        ensure!((before == after) == sql.is_empty(), "{sql}: the batch chain was {before} and is {after}");
        verify(&flow, &[])?.json(0).with_context(|| format!("the forger has made a mistake: {sql}"))?;
        let code = if sql.is_empty() { 0 } else { 3 };
        // Behind what was signed off only --deep looks.
        let behind = words.iter().any(|word| word.contains("the topic ends before"));
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        for (flags, code) in [(&["--deep"][..], code), (&["--against", &signed], if behind { 0 } else { code })] {
            let report = verify(&flow, flags)?.json(code).with_context(|| format!("{flags:?} after {sql}"))?;
            let told = code == 0 || tells(&report, "topic", &words);
            ensure!(told, "{sql}: {flags:?} does not tell of {words:?}:\n{:#}", report["checks"]);
        }
        Ok(())
    })
}

/// The streams of the topic that is gone are not read, and that is said.
fn a_topic_made_again_is_told() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("remade")?, "remade", 1)?;
    flow.send(payments("first", 10))?;
    consumed(&flow, &[])?;
    let directory = TempDir::new()?;
    let signed = signed(&flow, directory.path())?;
    kafka.delete_topic(&flow.topic)?;
    kafka.create_topic(&flow.topic, 1, &[])?;
    let report = verify(&flow, &["--deep"])?.json(0)?;
    let told = report["streams"][0]["topic_not_read"].as_str().unwrap_or_default();
    ensure!(messages(&report) == 0 && told.contains("it is of topic") && told.contains(&flow.topic), "{report:#}");
    verify(&flow, &["--against", &signed])?.complaint(1, &["the checkpoint signs off topic", "made again"])
}

fn an_accepted_gap_is_shown() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("gap_shown")?, "gap_shown", 1)?;
    flow.send(payments("kept", 10))?;
    consumed(&flow, &[])?;
    verify(&flow, &[])?.json(0)?;
    flow.send(payments("lost", 5))?;
    delete_before(&kafka, &flow.topic, 0, 13)?;
    consumed(&flow, &["--accept-gap", "0:10-12", "--person", "ada"])?;
    // Information, and no finding, for each kind of run.
    for flags in [&["--since-last"][..], &[], &["--deep"]] {
        let report = verify(&flow, flags)?.json(0)?;
        let gap = &report["gaps"][0];
        ensure!(gap["from_offset"] == 10 && gap["next_offset"] == 13 && gap["partition"] == 0, "{flags:?}: {report:#}");
        ensure!(gap["accepted_by"] == "ada" && gap["accepted_at"].is_string(), "{flags:?}: {report:#}");
    }
    let said = Said::by(&flow, &["verify", "--deep"])?;
    let shown =
        format!("{}/0: offsets 10 to 12 were lost to retention before they were read; ada has accepted it", flow.topic);
    ensure!(said.code == 0 && said.stdout.contains(&shown), "{}", said.stdout);
    // Nobody has accepted it: somebody has hidden messages.
    flow.ledger.db.execute("SET session_replication_role = replica; UPDATE actions SET next_offset = 12")?;
    let report = verify(&flow, &[])?.json(3)?;
    let words = ["offsets 10 to 12 count as lost, but nobody has accepted it".to_owned(), "\"offset\":10".to_owned()];
    ensure!(tells(&report, "offsets", &words), "{report:#}");
    Ok(())
}

/// `postonce checkpoint` into a file of this directory; its path.
fn signed(flow: &Flow, directory: &Path) -> Result<String> {
    let path = directory.join("checkpoint.json").to_string_lossy().into_owned();
    PostonceProcess::run(&["checkpoint", "--out", &path], &[("DATABASE_URL", &flow.ledger.url)], LIMIT)?;
    Ok(path)
}

/// The same checkpoint with one thing changed.
fn changed(path: &str, change: impl Fn(&mut Value)) -> Result<String> {
    let mut checkpoint: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    change(&mut checkpoint);
    let other = format!("{path}.changed");
    std::fs::write(&other, checkpoint.to_string())?;
    Ok(other)
}

fn a_checkpoint_holds_after_a_restore() -> Result<()> {
    let kafka = kafka();
    let mut server = start_postgres(&[])?;
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "signed")?, "signed", 2)?;
    flow.send_load(1_000, 3)?;
    consumed(&flow, &["--batch", "100"])?;
    let early = snapshot(&mut server)?;
    flow.ledger.db.reconnect();
    flow.send_load(2_000, 4)?;
    consumed(&flow, &["--batch", "170"])?;
    let directory = TempDir::new()?;
    let signed = signed(&flow, directory.path())?;
    let expect = |code: i32, path: &str, books: bool| -> Result<Value> {
        let report = verify(&flow, &["--against", path])?.json(code)?;
        ensure!(report["against"]["books_compared"] == books, "{report:#}");
        Ok(report)
    };
    let report = expect(0, &signed, true)?;
    assert_eq!(messages(&report), flow.end()?);
    ensure!(ranges(&report).iter().all(|(from, _)| *from == Some(0)), "{report:#}");
    let batches: i64 = flow.ledger.db.one("SELECT count(*) FROM batches")?;

    put_back(&mut server, &early)?;
    server.start_again()?;
    flow.ledger.db.reconnect();
    // The ledger has lost what was signed off, until the consumer has brought it back.
    let report = expect(3, &signed, false)?;
    ensure!(tells(&report, "checkpoint", &["does not hold what was signed off".to_owned()]), "{report:#}");
    consumed(&flow, &["--batch", "450"])?;
    ensure!(flow.ledger.db.one::<i64>("SELECT count(*) FROM batches")? != batches, "the batches are the same again");
    expect(0, &signed, true)?;

    // What was signed is compared, each part of it.
    let digit =
        |hash: &mut Value| *hash = Value::from(hash.as_str().unwrap_or_default().replacen(['0', '1', '2'], "f", 1));
    let chain = changed(&signed, |checkpoint| digit(&mut checkpoint["streams"][1]["message_chain"]))?;
    let report = expect(3, &chain, true)?;
    let partition = format!("\"partition\":{}", report["against"]["streams"][1]["partition"]);
    let words = ["do not hash to the message chain".to_owned(), partition];
    ensure!(tells(&report, "checkpoint", &words), "{report:#}");
    let books = changed(&signed, |checkpoint| digit(&mut checkpoint["books"]["sha256"]))?;
    let report = expect(3, &books, true)?;
    ensure!(tells(&report, "checkpoint", &["its books are others".to_owned()]), "{report:#}");

    // It holds for what was before it, however far the ledger has come since.
    let end = flow.end()?;
    flow.send(payments("later", 20))?;
    consumed(&flow, &[])?;
    let report = expect(0, &signed, false)?;
    assert_eq!(messages(&report), end, "only what was signed off is read again");
    let said = Said::by(&flow, &["verify", "--against", &signed])?;
    ensure!(
        said.stdout.contains("read again from offset 0 to") && said.stdout.contains("all is right"),
        "{}",
        said.stdout
    );
    let report = verify(&flow, &["--deep", "--since-last", "--against", &signed])?.json(0)?;
    assert_eq!(messages(&report), end + 20);
    Ok(())
}

fn what_retention_took_of_a_checkpoint() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("signed_gone")?, "signed_gone", 1)?;
    for label in ["a", "b", "c"] {
        flow.send(payments(label, 10))?;
        consumed(&flow, &[])?;
    }
    let directory = TempDir::new()?;
    let signed = signed(&flow, directory.path())?;
    delete_before(&kafka, &flow.topic, 0, 15)?;
    let db = &flow.ledger.db;
    let border: i64 = db.one("SELECT min(from_offset) FROM batches WHERE from_offset >= 15")?;
    let report = verify(&flow, &["--against", &signed])?.json(0)?;
    ensure!(report["against"]["streams"][0]["read_from"] == border && messages(&report) == 30 - border, "{report:#}");
    // The chain leads from what the ledger recorded to what was signed: an altered record does not.
    db.execute(&format!(
        "SET session_replication_role = replica;
         UPDATE batches SET message_chain = sha256('x') WHERE next_offset = {border}"
    ))?;
    let report = verify(&flow, &["--against", &signed])?.json(3)?;
    ensure!(tells(&report, "checkpoint", &["messages that are gone".to_owned()]), "{report:#}");
    delete_before(&kafka, &flow.topic, 0, 30)?;
    verify(&flow, &["--against", &signed])?.complaint(1, &["nothing of the checkpoint can be proved", "retention"])
}

fn another_checkpoint_is_refused() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("own")?, "own", 1)?;
    let other = Flow::new(&kafka, Ledger::fresh("other")?, "other", 1)?;
    for flow in [&flow, &other] {
        flow.send(payments("p", 3))?;
        consumed(flow, &[])?;
    }
    let directory = TempDir::new()?;
    let signed = signed(&other, directory.path())?;
    let refused = |path: &str, says: &[&str]| verify(&flow, &["--against", path])?.complaint(1, says);
    refused(&signed, &["the checkpoint signs off topic", &other.topic, &flow.topic, "it proves nothing here"])?;
    refused("/nowhere/checkpoint.json", &["--against /nowhere/checkpoint.json", "No such file"])?;
    let text = std::fs::read_to_string(&signed)?;
    let damaged = format!("{signed}.damaged");
    let hash = |text: &str| text.replacen("\"message_chain\": \"", "\"message_chain\": \"x", 1);
    for (text, says) in [
        (String::new(), "no checkpoint"),
        (text[..text.len() / 2].to_owned(), "no checkpoint"),
        (text.replace("postonce:checkpoint:v1", "postonce:checkpoint:v9"), "its format is \"postonce:checkpoint:v9\""),
        (text.replace("\"next_offset\": 3", "\"next_offset\": -3"), "offsets 0 to -3"),
        (hash(&text), "64 hex digits"),
    ] {
        std::fs::write(&damaged, text)?;
        refused(&damaged, &[&damaged, says])?;
    }
    ensure!(flow.ledger.db.one::<i64>("SELECT count(*) FROM verifications")? == 0, "a refused run was written down");
    from_another_cluster(&flow, &signed)
}

/// The same names on another broker are another cluster.
fn from_another_cluster(flow: &Flow, signed: &str) -> Result<()> {
    let own = changed(signed, |checkpoint| checkpoint["streams"][0]["cluster_id"] = Value::from("elsewhere"))?;
    verify(flow, &["--against", &own])?.complaint(1, &["cluster elsewhere", "it proves nothing here"])
}
