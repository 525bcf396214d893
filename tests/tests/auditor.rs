//! The auditor agrees with what the consumer does, and names by its place whatever is
//! altered afterwards.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postonce_tests::{Flow, Ledger, Message, Transaction, Trial, kafka, load, payment, payments, trials};

pub fn tests() -> Vec<Trial> {
    trials![every_alteration_is_named_by_its_place, what_came_later_was_not_before, retention_may_take_what_was_read]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Resources over all partitions, several of one in a transaction, holes.
fn flow(label: &str) -> Result<Flow> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh(label)?, label, 3)?;
    // Without a key: the events of one resource lie in all partitions.
    flow.send(load(3_000, 21)?.map(|message| Message { key: None, ..message }))?;
    for commit in [true, false] {
        let transaction = Transaction::begin(&kafka.bootstrap())?;
        transaction.send(&flow.topic, payments(&format!("in_{commit}"), 20))?;
        if commit { transaction.commit()? } else { transaction.abort()? }
    }
    // While a batch takes its time, messages of all partitions gather for the next.
    flow.ledger.slow_down(0.5)?;
    let consumer = flow.consume(&["--workers", "1", "--batch", "1500"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.ledger.slow_down(0.0)?;
    Ok(flow)
}

/// Offset in partition 0 of the first message with this outcome.
fn first(flow: &Flow, letter: char) -> Result<i64> {
    let batches: Vec<(i64, Vec<u8>)> = flow.ledger.db.rows(
        "SELECT from_offset, outcomes FROM batches JOIN streams USING (stream) WHERE partition = 0 ORDER BY seq",
    )?;
    let found = batches.iter().find_map(|(from, bytes)| {
        // A long hole has bytes of its own.
        let bytes = bytes.split(|byte| *byte == b'H').next()?;
        let index = bytes.iter().position(|byte| char::from(*byte) == letter)?;
        Some(from + i64::try_from(index).ok()?)
    });
    found.with_context(|| format!("partition 0 has no {letter}"))
}

/// The outcome of an offset in partition 0 becomes another letter.
fn say(offset: i64, letter: char) -> String {
    format!(
        "UPDATE batches b SET outcomes = set_byte(outcomes, ({offset} - from_offset)::integer, {})
         FROM streams s WHERE s.stream = b.stream AND partition = 0 AND {offset} >= from_offset AND {offset} < b.next_offset;",
        u32::from(letter)
    )
}

/// Of the rows of a table those at an offset of partition 0.
fn at(offset: i64) -> String {
    format!("message_offset = {offset} AND stream = (SELECT stream FROM streams WHERE partition = 0)")
}

/// A ledger in which one transaction has posted one resource from two streams, and partition
/// 0, where rows will be altered, has transactions of its own: an altered row of `batches` has
/// another xmin, and the auditor tells transactions by it. Which messages a batch finds
/// waiting is chance: as a rule such a ledger comes within a few tries.
fn mixed() -> Result<Flow> {
    for _ in 0..20 {
        let flow = flow("audited")?;
        let mixed: i64 = flow.ledger.db.one(
            "SELECT count(*) FROM (SELECT 1 FROM events WHERE outcome = 'P' GROUP BY resource_id, xmin::text
                                   HAVING count(DISTINCT stream) > 1) m",
        )?;
        let shared: i64 = flow.ledger.db.one(
            "SELECT count(*) FROM batches b JOIN streams s ON s.stream = b.stream AND s.partition = 0
             JOIN batches o ON o.xmin::text = b.xmin::text AND o.stream <> b.stream",
        )?;
        if mixed > 0 && shared == 0 {
            return Ok(flow);
        }
    }
    bail!("no transaction has posted one resource from two streams")
}

fn every_alteration_is_named_by_its_place() -> Result<()> {
    let flow = mixed()?;
    let seen = flow.audit()?;
    ensure!(seen.messages == 3_020 && seen.gone == 0, "{seen:?}");

    let [posted, noted, duplicate, superseded, conflict, rejected] =
        ["P", "N", "D", "S", "C", "R"].map(|letter| first(&flow, letter.chars().next().unwrap_or_default()));
    let [posted, noted, duplicate] = [posted?, noted?, duplicate?];
    let [superseded, conflict, rejected] = [superseded?, conflict?, rejected?];
    let (p, n, s) = (at(posted), at(noted), at(superseded));
    let alterations = [
        // One byte alone.
        (duplicate, say(duplicate, 'R'), "is not in quarantine under internal"),
        (rejected, say(rejected, 'D'), "it must be refused"),
        (rejected, "DELETE FROM quarantine".to_owned(), "is not in quarantine under"),
        (posted, say(posted, '.'), "holds a message"),
        (posted, say(posted, 'N'), "its dedup row says Some('P')"),
        (duplicate, say(duplicate, 'S'), "its dedup row says None"),
        // A story that is whole in itself, and not what happened.
        (
            posted,
            format!("{} DELETE FROM events WHERE {p}; DELETE FROM postings WHERE {p}", say(posted, 'D')),
            "recorded as D, but it is P: its id is new",
        ),
        (
            noted,
            format!("{} UPDATE events SET outcome = 'S' WHERE {n}", say(noted, 'S')),
            "recorded as S, but it is N: its id is new, and it is greater than",
        ),
        (
            superseded,
            format!("{} UPDATE events SET outcome = 'N' WHERE {s}", say(superseded, 'N')),
            "recorded as N, but it is S:",
        ),
        (
            conflict,
            format!(
                "{} DELETE FROM conflicts WHERE {c}; DELETE FROM incidents WHERE {c}; DELETE FROM postings WHERE {c}",
                say(conflict, 'D'),
                c = at(conflict)
            ),
            "recorded as D, but it is C: its id was accepted before it with another content",
        ),
        // What an event did.
        (posted, format!("UPDATE postings SET amount = amount + 1 WHERE {p}"), "position(new) - position(old) is"),
        (
            posted,
            format!("UPDATE postings SET debit = credit, credit = debit WHERE {p}"),
            "position(new) - position(old)",
        ),
        (posted, format!("UPDATE postings SET effective_at = effective_at + interval '1 us' WHERE {p}"), "take effect"),
        (posted, format!("UPDATE postings SET line = line + 1 WHERE {p}"), "cannot be"),
        (
            superseded,
            format!(
                "INSERT INTO postings SELECT stream, {superseded}, line, debit, credit, amount,
             (SELECT updated_at FROM events WHERE {s}) FROM postings WHERE {p}"
            ),
            "its postings move",
        ),
        (noted, format!("UPDATE events SET fingerprint = gen_random_uuid() WHERE {n}"), "its dedup row says"),
        (conflict, format!("DELETE FROM incidents WHERE {}", at(conflict)), "its incidents are []"),
        (posted, format!("UPDATE events SET previous_at = updated_at WHERE {p}"), "its previous_at is"),
        (superseded, format!("UPDATE events SET previous_at = updated_at WHERE {s}"), "it displaced None"),
    ];
    for (offset, alteration, why) in alterations {
        let told = audit_altered(&flow, &alteration)?;
        let place = format!("{}/0/{offset}: ", flow.topic);
        ensure!(told.lines().any(|line| line.starts_with(&place) && line.contains(why)), "{alteration}\n{told}");
    }
    // Not at an offset: at the end of a history.
    for (alteration, why) in [
        (
            "UPDATE resources SET revision = revision + 1 WHERE resource_id = (SELECT min(resource_id::text)::uuid FROM resources)",
            "is held as",
        ),
        ("UPDATE streams SET next_offset = next_offset - 1 WHERE partition = 0", "its batches end at"),
    ] {
        let told = audit_altered(&flow, alteration)?;
        ensure!(told.contains(why), "{alteration}\n{told}");
    }
    flow.audit()?;
    Ok(())
}

/// What the auditor says of a ledger in which this has been done. Afterwards it is undone.
fn audit_altered(flow: &Flow, alteration: &str) -> Result<String> {
    // In a transaction of the connection that the auditor reads through.
    let tables = ["batches", "events", "conflicts", "postings"]
        .map(|table| format!("ALTER TABLE {table} DISABLE TRIGGER USER;"));
    flow.ledger.db.execute(&format!("BEGIN; {} {alteration}", tables.concat()))?;
    let audited = flow.audit();
    flow.ledger.db.execute("ROLLBACK")?;
    let Err(objection) = audited else { anyhow::bail!("the auditor has not seen: {alteration}") };
    Ok(format!("{objection:#}"))
}

fn what_came_later_was_not_before() -> Result<()> {
    let flow = Flow::new(&kafka(), Ledger::fresh("later")?, "later", 2)?;
    let consumer = flow.consume(&["--workers", "1"])?;
    let once = |partition| payment("stripe/a/1", "succeeded", "2026-01-02T03:04:05Z", 100).partition(partition);
    for partition in [0, 1] {
        flow.send([once(partition)])?;
        flow.wait_offsets(i64::from(partition) + 1, LIMIT)?;
    }
    consumer.finish()?;
    ensure!(flow.audit()?.messages == 2);
    let told = audit_altered(
        &flow,
        "UPDATE batches SET recorded_at = recorded_at + interval '1 hour' WHERE stream = (SELECT stream FROM streams WHERE partition = 0)",
    )?;
    let expected = format!("{}/1/0: payment stripe/a/1: recorded as D, but it is P: its id is new", flow.topic);
    ensure!(told.contains(&expected), "{told}");
    Ok(())
}

fn retention_may_take_what_was_read() -> Result<()> {
    let kafka = kafka();
    let flow = flow("retained")?;
    let middle: i64 = flow.ledger.db.one("SELECT next_offset / 2 FROM streams WHERE partition = 0")?;
    postonce_tests::delete_before(&kafka, &flow.topic, 0, middle)?;
    let seen = flow.audit()?;
    ensure!(seen.gone > 0 && seen.gone + seen.messages == 3_020, "{seen:?} before {middle}");
    // What is there is judged as before.
    let told = audit_altered(&flow, "DELETE FROM quarantine")?;
    ensure!(told.contains("is not in quarantine under"), "{told}");
    Ok(())
}
