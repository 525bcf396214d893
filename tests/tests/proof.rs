//! What somebody else can recompute: both chains, and the hash of the books.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Flow, Ledger, Message, PostonceProcess, Transaction, Trial, kafka, payment, payments, repository, trials,
};
use serde_json::Value;
use tempfile::TempDir;

pub fn tests() -> Vec<Trial> {
    trials![
        another_language_comes_to_the_same_chains,
        a_checkpoint_is_the_same_however_the_books_came_to_be,
        a_checkpoint_is_never_written_over,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `tests/audit.py`, with its own Kafka client; what it says.
fn audit(bootstrap: &str, flow: &Flow) -> Result<std::result::Result<String, String>> {
    let python = repository().join("target/python/bin/python");
    let output = Command::new(python)
        .arg(repository().join("tests/audit.py"))
        .args([bootstrap, &flow.topic, &flow.ledger.url])
        .output()
        .context("no Python in target/python: run `./setup.sh test` first")?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) })
}

fn another_language_comes_to_the_same_chains() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("audit")?, "audit", 2)?;
    let consumer = flow.consume(&["--batch", "300"])?;
    flow.send_load(3_000, 11)?;
    // Holes, a tombstone, headers with and without a value, a conflict, a source.
    for commit in [true, false] {
        let transaction = Transaction::begin(&kafka.bootstrap())?;
        transaction.send(&flow.topic, payments(&format!("in_{commit}"), 20))?;
        if commit { transaction.commit()? } else { transaction.abort()? }
    }
    let sourced = r#"{"type":"payment.succeeded","resource":"stripe/a/1","updatedAt":"2026-01-02T03:04:05Z","source":"eu-1","data":{"provider":"stripe","merchant":"m_1","currency":"EUR","amount":5,"fee":0}}"#;
    flow.send([
        Message::tombstone().key("gone"),
        Message { headers: vec![("null".to_owned(), None)], ..Message::new(sourced).header("ü", "ä").key("") },
        payment("stripe/a/1", "succeeded", "2026-01-02T03:04:05Z", 6),
    ])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let says = audit(&kafka.bootstrap(), &flow)?.map_err(|wrong| anyhow::anyhow!("{wrong}"))?;
    ensure!(says.lines().count() == 2 && says.lines().all(|line| line.ends_with("both chains hold")), "{says}");

    // It would have seen one unit more in one posting of three thousand events.
    flow.ledger.db.execute(
        "ALTER TABLE postings DISABLE TRIGGER USER;
         UPDATE postings SET amount = amount + 1 WHERE ctid = (SELECT max(ctid) FROM postings)",
    )?;
    let says = audit(&kafka.bootstrap(), &flow)?;
    ensure!(says.as_ref().is_err_and(|wrong| wrong.contains("is not what its rows say")), "{says:?}");
    Ok(())
}

fn checkpoint(ledger: &Ledger) -> Result<Value> {
    Ok(serde_json::from_str(&PostonceProcess::run(&["checkpoint"], &[("DATABASE_URL", &ledger.url)], LIMIT)?)?)
}

/// The same events in another order, over another number of partitions, with everything
/// twice: other offsets, other batches, the same books.
fn a_checkpoint_is_the_same_however_the_books_came_to_be() -> Result<()> {
    let kafka = kafka();
    let one = Flow::new(&kafka, Ledger::fresh("once")?, "once", 1)?;
    let other = Flow::new(&kafka, Ledger::fresh("again")?, "again", 3)?;
    let mut events = payments("books", 200);
    events.extend(
        (0..50)
            .map(|n| payment(&format!("stripe/books/pi_{n}"), "reversed", &format!("2026-01-03T00:00:00.{n:06}Z"), 0)),
    );
    // One id with two contents: which of them came first does not matter.
    events.push(payment("stripe/books/pi_150", "succeeded", "2026-01-02T03:04:05.000150Z", 7));
    one.send(events.clone())?;
    events.reverse();
    other.send(events.clone())?;
    other.send(events)?;
    for flow in [&one, &other] {
        let consumer = flow.consume(&[])?;
        flow.wait_done(LIMIT)?;
        consumer.finish()?;
    }
    let (first, second) = (checkpoint(&one.ledger)?, checkpoint(&other.ledger)?);
    assert_eq!(first["format"], "postonce:checkpoint:v1");
    assert_eq!(first["books"]["resources"], 200);
    assert_eq!(first["books"], second["books"]);
    assert_eq!(first["rules"], second["rules"]);
    assert_eq!(first["streams"].as_array().map(Vec::len), Some(1));
    assert_eq!(second["streams"].as_array().map(Vec::len), Some(3));
    assert_eq!(first["streams"][0]["next_offset"], one.ledger.offsets()?);

    // One fact more or less is another hash.
    for change in ["facts = replace(facts::text, '100', '101')::json", "updated_at = updated_at + interval '1 us'"] {
        one.ledger.db.execute(&format!("UPDATE resources SET {change} WHERE path = 'stripe/books/pi_199'"))?;
        let changed = checkpoint(&one.ledger)?;
        ensure!(changed["books"]["resources"] == 200 && changed["books"]["sha256"] != first["books"]["sha256"]);
    }
    Ok(())
}

fn a_checkpoint_is_never_written_over() -> Result<()> {
    let (ledger, directory) = (Ledger::fresh("kept")?, TempDir::new()?);
    let path = directory.path().join("checkpoint.json");
    let (path, env) = (path.to_str().context("a path")?, [("DATABASE_URL", ledger.url.as_str())]);
    PostonceProcess::run(&["checkpoint", "--out", path], &env, LIMIT)?;
    let written = std::fs::read_to_string(path)?;
    let again = PostonceProcess::run(&["checkpoint", "--out", path], &env, LIMIT);
    ensure!(again.is_err_and(|error| format!("{error:#}").contains(path)), "it was written over");
    assert_eq!(std::fs::read_to_string(path)?, written);
    let empty: Value = serde_json::from_str(&written)?;
    assert_eq!(empty["books"]["resources"], 0);
    Ok(())
}
