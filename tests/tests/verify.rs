//! `postonce verify`: silent over a right ledger, whatever is being written beside it;
//! and every way to tamper with one is found, by its place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postonce_consumer::database::Database as Schema;
use postonce_consumer::verify::report::Report;
use postonce_consumer::verify::{Progress, Request, verify};
use postonce_schema::{Decoder, Kinds, POSITIONS_TOML, Rules};
use postonce_tests::{
    Db, Flow, Kafka, Ledger, Message, PostonceProcess, Transaction, Trial, kafka, payment, payments, postgres,
    start_postgres, trials, unique, wait_until,
};
use serde_json::Value;
use tokio::runtime::Builder;

pub fn tests() -> Vec<Trial> {
    trials![
        a_right_ledger_has_no_findings,
        no_findings_while_a_consumer_posts,
        every_tampering_is_found_by_its_place,
        each_table_is_read_once,
        an_auditor_may_verify_and_not_write_it_down,
        altered_rules_are_refused
    ]
}

const LIMIT: Duration = Duration::from_secs(90);

/// Every outcome, conflicts that stand and that do not, regressions, restatements, holes
/// short and long, two partitions, and a second life of the consumer.
pub fn fill(kafka: &Kafka, flow: &Flow) -> Result<()> {
    let consumer = flow.consume(&["--workers", "2", "--batch", "500"])?;
    flow.send_load(3_000, 7)?;
    flow.send(payments("verify", 40))?;
    for commit in [true, false, true] {
        let transaction = Transaction::begin(&kafka.bootstrap())?;
        let label = if commit { "committed" } else { "aborted" };
        transaction.send(&flow.topic, payments(&unique(label), 20))?;
        if commit { transaction.commit()? } else { transaction.abort()? }
    }
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let consumer = flow.consume(&["--workers", "1"])?;
    let event = |n: u32, state: &str, day: u32, amount: i64| {
        payment(&format!("stripe/verify/pi_{n}"), state, &format!("2026-02-{day:02}T00:00:00Z"), amount)
    };
    flow.send([
        event(1, "succeeded", 1, 250),
        event(1, "succeeded", 1, 251),
        event(1, "succeeded", 1, 252),
        event(1, "succeeded", 1, 251),
        event(2, "reversed", 3, 0),
        event(2, "succeeded", 4, 90),
        event(2, "failed", 5, 90),
        Message::new("no event").key("k"),
        Message::new("no event").key("k"),
        Message::tombstone().key("k"),
    ])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()
}

fn filled() -> Result<(Arc<Kafka>, Flow)> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("verify")?, "verify", 2)?;
    fill(&kafka, &flow)?;
    Ok((kafka, flow))
}

fn rules() -> Rules {
    Rules::parse(POSITIONS_TOML).unwrap()
}

pub fn verified(url: &str) -> Result<Report> {
    let database = Schema::new(url, "postonce")?;
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut connection = database.connect().await?;
        let decoder = Decoder { rules: rules(), kinds: Kinds::All, max_ahead: Duration::MAX };
        let request = Request { decoder: &decoder, since_last: false, topic: None };
        Ok(verify(&mut connection, &database, &request, &|_: Progress| {}).await?)
    })
}

fn ensure_right(report: &Report) -> Result<()> {
    let wrong: Vec<_> = report.checks.iter().filter(|checked| checked.findings > 0).collect();
    ensure!(wrong.is_empty() && report.findings == 0, "{}", serde_json::to_string_pretty(&wrong)?);
    Ok(())
}

fn a_right_ledger_has_no_findings() -> Result<()> {
    let (_kafka, flow) = filled()?;
    let db = &flow.ledger.db;
    let outcomes: String = db.one(
        "SELECT string_agg(DISTINCT letter, '' ORDER BY letter)
         FROM batches, regexp_split_to_table(encode(outcomes, 'escape'), '') letter WHERE letter ~ '[A-Z.]'",
    )?;
    ensure!("CDNPRS.".chars().all(|letter| outcomes.contains(letter)), "not every outcome is there: {outcomes}");
    let env = [("DATABASE_URL", flow.ledger.url.as_str())];
    let json: Value = serde_json::from_str(&PostonceProcess::run(&["verify", "-o", "json"], &env, LIMIT)?)?;
    let expect = |name: &str, sql: &str| {
        let (found, expected) = (json["totals"][name].as_i64(), db.one::<i64>(sql)?);
        ensure!(found == Some(expected), "{name}: {found:?}, there are {expected}");
        Ok(())
    };
    expect("events", "SELECT count(*) FROM events")?;
    expect("conflicts", "SELECT count(*) FROM conflicts")?;
    expect("postings", "SELECT count(*) FROM postings")?;
    expect("batches", "SELECT count(*) FROM batches")?;
    expect("resources", "SELECT count(*) FROM resources")?;
    expect("accounts", "SELECT count(*) FROM accounts")?;
    expect("offsets", "SELECT sum(next_offset - first_offset)::bigint FROM streams")?;
    ensure!(json["findings"] == 0 && json["not_recorded"].is_null(), "{json:#}");

    let text = PostonceProcess::run(&["verify"], &env, LIMIT)?;
    ensure!(text.contains("all is right"), "{text}");
    let runs: i64 = db.one("SELECT count(*) FROM verifications WHERE findings = 0 AND NOT since_last AND NOT deep")?;
    assert_eq!(runs, 2);
    let wrong: i64 = db.one(
        "SELECT count(*) FROM balances b FULL JOIN verified_balances v USING (account_id)
         WHERE (b.debits, b.credits) IS DISTINCT FROM (v.debits, v.credits)",
    )?;
    assert_eq!(wrong, 0);
    let streams: i64 = db.one(
        "SELECT count(*) FROM verified_streams v JOIN streams s USING (stream, next_offset, batch_seq, message_chain, batch_chain)",
    )?;
    assert_eq!(streams, 4, "two runs, two streams");
    Ok(())
}

/// Many runs, each of which meets the consumer at another moment.
fn no_findings_while_a_consumer_posts() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("verify_beside")?, "verify_beside", 2)?;
    flow.send_load(60_000, 11)?;
    let consumer = flow.consume(&["--workers", "2", "--batch", "200"])?;
    let (mut beside, mut runs) = (0, 0);
    while beside < 5 || runs < 6 {
        let before = flow.ledger.offsets()?;
        let report = verified(&flow.ledger.url)?;
        let after = flow.ledger.offsets()?;
        ensure_right(&report).with_context(|| format!("run {runs}, offsets {before} to {after}"))?;
        beside += i32::from(before < after);
        runs += 1;
        if after >= 60_000 {
            ensure!(runs < 100, "the consumer has always stood still");
            flow.send_load(20_000, 100 + runs)?;
        }
    }
    drop(consumer);
    Ok(())
}

/// A check, and what stands in one of its findings.
type Told = (&'static str, &'static [&'static str]);

/// What somebody with a superuser's rights does, and which finding must tell where: the
/// check, and what stands in one of its findings. The names in braces are those of a
/// victim: a payment's event that posted, its resource, its batch, an account.
const TAMPERED: &[(&str, &[Told])] = &[
    (
        "UPDATE postings SET amount = amount + 1 WHERE stream = {stream} AND message_offset = {offset} AND line = 0",
        &[
            ("positions", &["{path}", "{account}", "{event}", "\"offset\":{offset}"]),
            ("balances", &["{account}"]),
            ("batch_chain", &["batch {seq} "]),
        ],
    ),
    // The sum of every account stays as it was.
    (
        "UPDATE postings SET amount = amount + CASE message_offset WHEN {offset} THEN 1 ELSE -1 END
         WHERE stream = {stream} AND message_offset IN ({offset}, {twin}) AND debit = '{account_id}'",
        &[("positions", &["{path}", "{account}", "\"offset\":{offset}"]), ("batch_chain", &["batch {seq} "])],
    ),
    (
        "DELETE FROM postings WHERE stream = {stream} AND message_offset = {offset}",
        &[
            ("postings", &["{event}", "\"offset\":{offset}", "gone"]),
            ("positions", &["{path}", "{account}"]),
            ("balances", &["{account}"]),
        ],
    ),
    (
        "INSERT INTO postings SELECT stream, message_offset, 7::smallint, debit, credit, 5, effective_at FROM postings
         WHERE stream = {stream} AND message_offset = {offset} AND line = 0",
        &[("balances", &["{account}"]), ("postings", &["line 7", "\"offset\":{offset}"])],
    ),
    (
        "INSERT INTO postings SELECT stream, {duplicate}, 0::smallint, debit, credit, 5, effective_at FROM postings
         WHERE stream = {stream} AND message_offset = {offset} AND line = 0",
        &[("balances", &["{account}"]), ("postings", &["\"offset\":{duplicate}"])],
    ),
    (
        "INSERT INTO postings SELECT stream, 1000000000, line, debit, credit, amount, effective_at FROM postings
         WHERE stream = {stream} AND message_offset = {offset}",
        &[("outcomes", &["offset 1000000000"])],
    ),
    (
        "INSERT INTO postings SELECT 77, message_offset, line, debit, credit, amount, effective_at FROM postings
         WHERE stream = {stream} AND message_offset = {offset}",
        &[("outcomes", &["stream 77"])],
    ),
    (
        "UPDATE postings SET effective_at = effective_at + interval '1 day' WHERE stream = {stream} AND message_offset = {offset}",
        &[("postings", &["{event}", "another time", "\"offset\":{offset}"])],
    ),
    (
        "UPDATE balances SET debits = debits + 1 WHERE account_id = '{account_id}'",
        &[("balances", &["{account}"]), ("trial_balance", &["\"asset\":\"{asset}\""])],
    ),
    (
        "UPDATE balances SET debits = debits + 0.5 WHERE account_id = '{account_id}'",
        &[("balances", &["{account}", "no number"])],
    ),
    ("DELETE FROM balances WHERE account_id = '{account_id}'", &[("balances", &["{account}"]), ("trial_balance", &["{asset}"])]),
    (
        "UPDATE resources SET facts = replace(facts::text, '\"amount\":', '\"amount\":1')::json WHERE resource_id = '{resource}'",
        &[("positions", &["{path}", "{account}", "\"offset\":{offset}"]), ("events", &["{path}", "{event}"])],
    ),
    // It moves no money: only the event's own fingerprint tells.
    (
        "UPDATE resources SET updated_at = updated_at + interval '1 hour' WHERE resource_id = '{resource}'",
        &[
            ("events", &["{path}", "\"offset\":{offset}"]),
            ("trace", &["{path}", "would not show all", "\"expected\":\"1\",\"found\":\"0\""]),
        ],
    ),
    (
        "UPDATE resources SET state = 'reversed' WHERE resource_id = '{resource}'",
        &[("positions", &["{path}", "{account}"]), ("events", &["{path}"])],
    ),
    ("UPDATE resources SET state = 'lost' WHERE resource_id = '{resource}'", &[("events", &["{path}", "no such state"])]),
    ("UPDATE resources SET revision = 2 WHERE resource_id = '{resource}'", &[("resources", &["{path}", "\"offset\":{offset}"])]),
    ("UPDATE resources SET path = 'other/' || path WHERE resource_id = '{resource}'", &[("resources", &["other/{path}"])]),
    (
        "DELETE FROM resources WHERE resource_id = '{resource}'",
        &[("resources", &["gone", "{event}", "\"offset\":{offset}"]), ("positions", &["{account}"])],
    ),
    (
        "DELETE FROM events WHERE stream = {stream} AND message_offset = {offset}",
        &[("outcomes", &["\"offset\":{offset}", "no dedup row"]), ("postings", &["no dedup row", "\"offset\":{offset}"])],
    ),
    (
        "UPDATE events SET fingerprint = gen_random_uuid() WHERE stream = {stream} AND message_offset = {offset}",
        &[("events", &["{path}", "{event}", "\"offset\":{offset}"]), ("batch_chain", &["batch {seq} "])],
    ),
    (
        "UPDATE events SET outcome = 'S' WHERE stream = {stream} AND message_offset = {offset}",
        &[("outcomes", &["{event}", "\"offset\":{offset}"]), ("resources", &["{path}"])],
    ),
    (
        "UPDATE events SET source = 'elsewhere' WHERE stream = {stream} AND message_offset = {offset}",
        &[("batch_chain", &["batch {seq} "])],
    ),
    (
        "INSERT INTO events SELECT updated_at, sha256(event_id), resource_id, fingerprint, stream, {duplicate}, message_time,
                outcome, state, source FROM events WHERE stream = {stream} AND message_offset = {offset}",
        &[("outcomes", &["\"offset\":{duplicate}"])],
    ),
    (
        "UPDATE events SET previous_at = NULL WHERE resource_id = '{moved}' AND updated_at = '{last}'",
        &[("trace", &["{moved_path}", "would not show all", "\"expected\":\"3\",\"found\":\"1\""])],
    ),
    (
        "UPDATE events SET previous_at = previous_at - interval '1 us' WHERE resource_id = '{moved}' AND updated_at = '{middle}'",
        &[("trace", &["{moved_path}", "would not show all", "\"expected\":\"3\",\"found\":\"2\""])],
    ),
    (
        "UPDATE events SET previous_at = '2020-01-01' WHERE resource_id = '{moved}' AND updated_at = '{first}'",
        &[("trace", &["{moved_path}", "is not when it has changed"])],
    ),
    // A circle by itself: still each is pointed to once.
    (
        "UPDATE events SET previous_at = CASE updated_at WHEN '{last}' THEN '{first}'::timestamptz ELSE updated_at END
         WHERE resource_id = '{moved}' AND updated_at > '{first}' AND outcome <> 'S'",
        &[("trace", &["{moved_path}", "would not show all", "\"expected\":\"3\",\"found\":\"2\""])],
    ),
    // The same where conflicts leave the number of changes open.
    (
        "UPDATE events SET previous_at = CASE updated_at WHEN '{contested_last}' THEN NULL ELSE updated_at END
         WHERE resource_id = '{contested}' AND outcome <> 'S'",
        &[("trace", &["{contested_path}", "would not show all", "\"expected\":\"2\",\"found\":\"1\""])],
    ),
    (
        "UPDATE events SET previous_at = '2020-01-01' WHERE event_id = (SELECT event_id FROM events WHERE outcome = 'S' LIMIT 1)",
        &[("trace", &["is not when it has changed"])],
    ),
    ("DELETE FROM conflicts WHERE stream = {conflict_stream} AND message_offset = {conflict}", &[("outcomes", &["\"offset\":{conflict}"])]),
    (
        "UPDATE conflicts SET value = 'x' WHERE stream = {conflict_stream} AND message_offset = {conflict}",
        &[("batch_chain", &["does not hash"])],
    ),
    (
        "DELETE FROM batches WHERE stream = {stream} AND seq = {seq}",
        &[("offsets", &["no batch covers offsets {from} to"]), ("batch_chain", &["follow"])],
    ),
    (
        "DELETE FROM batches b USING streams s WHERE b.stream = s.stream AND s.stream = {stream} AND seq = batch_seq",
        &[("offsets", &["does not stand where its batches end"])],
    ),
    (
        "UPDATE batches SET outcomes = overlay(outcomes placing 'D' from {place} for 1) WHERE stream = {stream} AND seq = {seq}",
        &[("outcomes", &["\"offset\":{offset}", "duplicate"]), ("batch_chain", &["batch {seq} "])],
    ),
    (
        "UPDATE batches SET outcomes = overlay(outcomes placing 'x' from {place} for 1) WHERE stream = {stream} AND seq = {seq}",
        &[("offsets", &["is no outcome", "\"offset\":{offset}"])],
    ),
    (
        "UPDATE batches SET from_offset = from_offset - 1 WHERE stream = {stream} AND seq = {seq}",
        &[("offsets", &["two batches cover"])],
    ),
    (
        "UPDATE batches SET from_offset = from_offset + 1 WHERE stream = {stream} AND seq = {seq}",
        &[("offsets", &["no batch covers offsets {from} to {from}"])],
    ),
    ("UPDATE batches SET hash = sha256('x') WHERE stream = {stream} AND seq = {seq}", &[("batch_chain", &["batch {seq} "])]),
    ("UPDATE batches SET message_chain = sha256('x') WHERE stream = {stream} AND seq = {seq}", &[("batch_chain", &["batch {seq} "])]),
    (
        "UPDATE streams SET next_offset = next_offset + 5 WHERE stream = {stream}",
        &[("offsets", &["does not stand where its batches end"])],
    ),
    ("UPDATE streams SET next_offset = {offset} WHERE stream = {stream}", &[("offsets", &["does not stand"])]),
    ("UPDATE streams SET first_offset = 1 WHERE stream = {stream}", &[("offsets", &["two batches cover offsets 0 to 0"])]),
    ("UPDATE streams SET message_chain = sha256('x') WHERE stream = {stream}", &[("batch_chain", &["message chain"])]),
    ("UPDATE streams SET batch_chain = sha256('x') WHERE stream = {stream}", &[("batch_chain", &["batch chain"])]),
    ("UPDATE streams SET topic_id = 'another' WHERE stream = {stream}", &[("offsets", &["not the hash of its lineage"])]),
    ("DELETE FROM streams WHERE stream = {stream}", &[("outcomes", &["which is not in `streams`"])]),
    (
        "UPDATE accounts SET asset = 'XTS' WHERE account_id = '{account_id}'",
        &[("accounts", &["{account}"]), ("postings", &["\"offset\":{offset}"])],
    ),
    ("DELETE FROM accounts WHERE account_id = '{account_id}'", &[("accounts", &["{account_id}"]), ("postings", &["not there"])]),
    (
        "UPDATE account_postings SET offsets = array_remove(offsets, ({offset} - base_offset)::integer)
         WHERE account_id = '{account_id}' AND stream = {stream} AND ({offset} - base_offset)::integer = ANY (offsets)",
        &[("account_postings", &["{account}"])],
    ),
    (
        "INSERT INTO account_postings SELECT * FROM account_postings WHERE account_id = '{account_id}' LIMIT 1",
        &[("account_postings", &["{account}"])],
    ),
    (
        "UPDATE account_postings SET last_effective_at = last_effective_at + interval '1 second'
         WHERE account_id = '{account_id}' AND stream = {stream}",
        &[("account_postings", &["{account}"])],
    ),
    ("DELETE FROM quarantine WHERE code = 'empty'", &[("quarantine", &[])]),
    ("UPDATE quarantine SET times_seen = times_seen + 1 WHERE code = 'empty'", &[("quarantine", &[])]),
];

fn every_tampering_is_found_by_its_place() -> Result<()> {
    let (_kafka, flow) = filled()?;
    let victim = victim(&flow.ledger.db)?;
    let copies = Copies::of(flow.ledger)?;
    copies.try_each(TAMPERED.len(), |number, url| {
        let (sql, expected) = TAMPERED[number];
        let sql = put_in(sql, &victim);
        // As a replica Postgres lets the append-only triggers rest.
        let changed = Db::new(url).execute(&format!("SET session_replication_role = replica; {sql}"))?;
        ensure!(changed > 0, "{sql}: it changes nothing");
        let report = verified(url)?;
        for (check, words) in expected {
            let words: Vec<String> = words.iter().map(|word| put_in(word, &victim)).collect();
            let checked = report.checks.iter().find(|checked| checked.check == *check);
            let first = checked.map(|checked| checked.first.as_slice()).unwrap_or_default();
            let texts = first.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
            let found = texts.iter().any(|text| words.iter().all(|word| text.contains(word.as_str())));
            ensure!(
                found,
                "{sql}: {check} does not tell of {words:?}\n{}",
                serde_json::to_string_pretty(&report.checks)?
            );
        }
        let runs: i64 = Db::new(url).one("SELECT count(*) FROM verified_balances")?;
        ensure!(runs == 0, "{sql}: a run with findings is nothing to go on from");
        Ok(())
    })
}

/// A payment's event that posted and stands, and what is around it.
fn victim(db: &Db) -> Result<BTreeMap<String, String>> {
    let one = |sql: &str| db.one::<String>(&format!("SELECT ({sql})::text"));
    let mut victim = BTreeMap::new();
    let rows: Vec<(String, String, String, String, String)> = db.rows(
        "SELECT e.stream::text, e.message_offset::text, r.resource_id::text, r.path, 'evt_' || encode(e.event_id, 'hex')
         FROM events e JOIN resources r USING (resource_id)
         WHERE e.outcome = 'P' AND r.kind = 'payment' AND r.path LIKE 'stripe/verify/%' AND r.revision = 1
         ORDER BY e.message_offset LIMIT 1",
    )?;
    let (stream, offset, resource, path, event) = rows.into_iter().next().context("no victim")?;
    let of = format!("FROM postings WHERE stream = {stream} AND message_offset = {offset} AND line = 0");
    let account_id = one(&format!("SELECT debit {of}"))?;
    let batch = format!("FROM batches WHERE stream = {stream} AND from_offset <= {offset} AND next_offset > {offset}");
    let twin = one(&format!(
        "SELECT message_offset FROM postings WHERE stream = {stream} AND message_offset > {offset} AND debit = '{account_id}'
         AND amount > 1 ORDER BY 1 LIMIT 1"
    ))?;
    let duplicate = duplicate(db, &stream)?;
    let mut put = |name: &str, value: String| victim.insert(name.to_owned(), value);
    put("seq", one(&format!("SELECT seq {batch}"))?);
    put("from", one(&format!("SELECT from_offset {batch}"))?);
    put("account", one(&format!("SELECT path FROM accounts WHERE account_id = '{account_id}'"))?);
    put("asset", one(&format!("SELECT asset FROM accounts WHERE account_id = '{account_id}'"))?);
    put("conflict", one("SELECT message_offset FROM conflicts ORDER BY stream, message_offset LIMIT 1")?);
    put("conflict_stream", one("SELECT stream FROM conflicts ORDER BY stream, message_offset LIMIT 1")?);
    put("place", place(db, &stream, offset.parse()?)?.to_string());
    put("duplicate", duplicate.to_string());
    // A resource that has changed three times, each time to a later state.
    let moved = one("SELECT resource_id FROM events e JOIN resources r USING (resource_id)
         WHERE r.revision = 3 AND NOT EXISTS (SELECT FROM conflicts c WHERE c.resource_id = r.resource_id)
         GROUP BY resource_id
         HAVING count(*) FILTER (WHERE outcome <> 'S') = 3 AND coalesce(bool_and(e.previous_at < e.updated_at), true)
         ORDER BY resource_id LIMIT 1")?;
    for (name, nth) in [("first", 0), ("middle", 1), ("last", 2)] {
        let times =
            format!("FROM events WHERE resource_id = '{moved}' AND outcome <> 'S' ORDER BY 1 OFFSET {nth} LIMIT 1");
        put(name, one(&format!("SELECT updated_at {times}"))?);
    }
    put("moved_path", one(&format!("SELECT path FROM resources WHERE resource_id = '{moved}'"))?);
    put("moved", moved);
    let (contested, contested_path) = contested(db)?;
    put("contested_last", one(&format!("SELECT updated_at FROM resources WHERE resource_id = '{contested}'"))?);
    put("contested_path", contested_path);
    put("contested", contested);
    let rest = [("stream", stream), ("offset", offset), ("resource", resource), ("path", path), ("event", event)];
    rest.into_iter().chain([("account_id", account_id), ("twin", twin)]).for_each(|(name, value)| {
        put(name, value);
    });
    Ok(victim)
}

/// A resource of two changes and of conflicts, none of which came to stand: by its revision
/// one of the changes could be a conflict.
fn contested(db: &Db) -> Result<(String, String)> {
    let rows = db.rows(
        "SELECT r.resource_id::text, r.path FROM resources r JOIN events e USING (resource_id)
         WHERE r.revision = 2 AND e.outcome <> 'S'
               AND EXISTS (SELECT FROM conflicts c WHERE c.resource_id = r.resource_id)
         GROUP BY r.resource_id HAVING count(*) = 2 ORDER BY 1 LIMIT 1",
    )?;
    rows.into_iter().next().context("no contested resource of two changes")
}

/// Each batch of a stream, offset by offset: a long hole as one.
fn letters(db: &Db, stream: &str) -> Result<Vec<(i64, usize, u8)>> {
    let rows: Vec<(i64, Vec<u8>)> =
        db.rows(&format!("SELECT from_offset, outcomes FROM batches WHERE stream = {stream} ORDER BY seq"))?;
    let mut letters = Vec::new();
    for (from, bytes) in rows {
        let (mut offset, mut place) = (from, 0);
        while let Some(letter) = bytes.get(place) {
            letters.push((offset, place + 1, *letter));
            (offset, place) = match letter {
                b'H' => (offset + i64::from_be_bytes(bytes[place + 1..place + 9].try_into()?), place + 9),
                _ => (offset + 1, place + 1),
            };
        }
    }
    Ok(letters)
}

/// Where an offset stands in its batch's outcomes, from 1.
fn place(db: &Db, stream: &str, offset: i64) -> Result<usize> {
    let found = letters(db, stream)?.into_iter().find(|(at, ..)| *at == offset);
    Ok(found.context("no such offset")?.1)
}

fn duplicate(db: &Db, stream: &str) -> Result<i64> {
    let found = letters(db, stream)?.into_iter().find(|(.., letter)| *letter == b'D');
    Ok(found.context("no duplicate")?.0)
}

fn put_in(text: &str, names: &BTreeMap<String, String>) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// Whatever the planner thinks of the tables: no join, and each page once.
fn each_table_is_read_once() -> Result<()> {
    let server = start_postgres(&[
        ("logging_collector", "on"),
        ("shared_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        // It would read rows, too.
        ("autovacuum", "off"),
    ])?;
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "plans")?, "plans", 2)?;
    flow.send_load(150_000, 5)?;
    let consumer = flow.consume(&["--workers", "2"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let db = &flow.ledger.db;
    for statistics in ["", "ANALYZE"] {
        db.execute(statistics)?;
        let before = rows_read(db)?;
        let begin: i64 = db.one("SELECT length(pg_read_file(pg_current_logfile()))::bigint")?;
        ensure_right(&verified(&flow.ledger.url)?)?;
        let after = rows_read(db)?;
        // `batches` is small here: for each of the two streams all of it may be scanned. Of
        // `conflicts` the resources are read by themselves.
        for (table, times) in [("events", 1), ("postings", 1), ("resources", 1), ("batches", 2), ("conflicts", 2)] {
            let (read, there) =
                (after[table] - before[table], db.one::<i64>(&format!("SELECT count(*) FROM {table}"))?);
            // The planner itself looks up the ends of an index.
            let most = times * there + 10;
            ensure!(there > 0 && (there..=most).contains(&read), "{table}: {read} of {there} rows were read");
        }
        let log: String = db.one(&format!("SELECT substr(pg_read_file(pg_current_logfile()), {begin})"))?;
        // The log ends each entry with the next one's prefix; a plan stands behind its query.
        let plans: Vec<&str> = log.split("Query Text: ").skip(1).collect();
        for table in ["events", "conflicts", "postings", "resources", "batches", "balances", "accounts"] {
            let pages: i64 = db.one(&format!("SELECT pg_relation_size('{table}') / 8192"))?;
            let of_table = |plan: &&&str| plan.starts_with("COPY (") && plan.contains(&format!("FROM {table}"));
            let own: Vec<&str> = plans.iter().filter(of_table).copied().collect();
            let scans = |plan: &str| plan.matches(" Scan").count();
            ensure!(own.iter().all(|plan| !plan.contains("Nested Loop") && scans(plan) <= 2), "{own:#?}");
            let by_pages = ["events", "conflicts", "postings"].contains(&table);
            let paged = own.iter().filter(|plan| plan.contains("Tid Range Scan")).count();
            ensure!(!by_pages || paged as i64 >= (pages + 2047) / 2048, "{table} is not read page by page: {own:#?}");
            let most = match table {
                "events" | "conflicts" | "postings" => pages / 2048 + 1,
                // In the order of its key, some hundred rows at a time.
                "batches" => i64::MAX,
                // Once for the rows, once for those of `conflicts` in a chunk of them.
                _ => 1,
            };
            ensure!((1..=most + i64::from(table == "conflicts")).contains(&(own.len() as i64)), "{table}: {own:#?}");
        }
    }
    Ok(())
}

/// How many rows of each table Postgres has read, by whatever scan, since it began.
pub fn rows_read(db: &Db) -> Result<BTreeMap<String, i64>> {
    // A session counts for all at its end at the latest, and is listed until then.
    wait_until(LIMIT, "the end of every other session", || {
        let others =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        Ok((db.one::<i64>(others)? == 0).then_some(()))
    })?;
    db.one::<String>("SELECT pg_stat_force_next_flush()::text")?;
    let rows = "SELECT relname::text, (seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables";
    Ok(db.rows::<(String, i64)>(rows)?.into_iter().collect())
}

/// An auditor's role reads everything and writes nothing.
fn an_auditor_may_verify_and_not_write_it_down() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("auditor")?, "auditor", 1)?;
    let consumer = flow.consume(&[])?;
    flow.send(payments("auditor", 20))?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let place = flow.ledger.url.rsplit_once('@').context("no @ in the URL")?.1.to_owned();
    let db = &flow.ledger.db;
    for (role, recorded) in [("postonce_auditor, postonce_payload_reader", 0), ("postonce_operator", 1)] {
        let name = unique("auditor");
        db.execute(&format!("CREATE ROLE {name} LOGIN PASSWORD 'secret' IN ROLE {role}"))?;
        let url = format!("postgres://{name}:secret@{place}");
        let mut process = PostonceProcess::start(&["verify"], &[("DATABASE_URL", &url)])?;
        let status = process.wait(LIMIT)?;
        ensure!(status.success() && process.stdout().contains("all is right"), "{}", process.stderr());
        assert_eq!(process.stderr().contains("not written down"), recorded == 0, "{}", process.stderr());
        assert_eq!(db.one::<i64>("SELECT count(*) FROM verifications")?, recorded);
    }
    // Exit code 3 is a difference, and is told apart from an error.
    db.execute("SET session_replication_role = replica; UPDATE balances SET debits = debits + 7 WHERE debits > 0")?;
    let env = [("DATABASE_URL", flow.ledger.url.as_str())];
    let mut process = PostonceProcess::start(&["verify"], &env)?;
    assert_eq!(process.wait(LIMIT)?.code(), Some(3));
    let text = process.stdout();
    ensure!(text.contains("assets:psp:stripe EUR") && text.contains("2007 - 0"), "{text}");
    let mut process = PostonceProcess::start(&["verify"], &[("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")])?;
    assert_eq!(process.wait(LIMIT)?.code(), Some(1));
    Ok(())
}

/// With other rules every position would be another.
fn altered_rules_are_refused() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("altered")?, "altered", 1)?;
    let consumer = flow.consume(&[])?;
    flow.send(payments("altered", 3))?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("positions.toml");
    std::fs::write(&file, POSITIONS_TOML.replace("income:fees", "income:charges"))?;
    let file = file.to_string_lossy();
    let env = [("DATABASE_URL", flow.ledger.url.as_str())];
    let mut process = PostonceProcess::start(&["verify", "--positions", &file], &env)?;
    assert_eq!(process.wait(LIMIT)?.code(), Some(1));
    ensure!(process.stderr().contains("frozen"), "{}", process.stderr());
    Ok(())
}

/// Databases that begin as copies of one.
pub struct Copies {
    server: Arc<postonce_tests::PrivatePostgres>,
    original: String,
}

impl Copies {
    pub fn of(ledger: Ledger) -> Result<Self> {
        let original = ledger.url.rsplit_once('/').context("no database in the URL")?.1.to_owned();
        let original = original.split('?').next().unwrap_or_default().to_owned();
        Ok(Self { server: postgres(), original })
    }

    /// Calls `each` with a fresh copy for each number; a failure tells of all of them.
    pub fn try_each(&self, count: usize, each: impl Fn(usize, &str) -> Result<()>) -> Result<()> {
        let mut failures = Vec::new();
        let maintenance = Db::new(&self.server.url("postgres"));
        for number in 0..count {
            let name = unique("tampered");
            let (create, path) = (
                format!("CREATE DATABASE {name} TEMPLATE {}", self.original),
                format!("ALTER DATABASE {name} SET search_path = postonce"),
            );
            // Until the last connection to the original has ended.
            wait_until(Duration::from_secs(20), "a copy", || Ok(Some(maintenance.execute(&create)?)))?;
            maintenance.execute(&path)?;
            if let Err(error) = each(number, &self.server.url(&name)) {
                failures.push(format!("{error:#}"));
            }
            maintenance.execute(&format!("DROP DATABASE {name} WITH (FORCE)"))?;
        }
        if failures.is_empty() { Ok(()) } else { bail!("{} of {count}:\n{}", failures.len(), failures.join("\n\n")) }
    }
}
