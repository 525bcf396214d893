//! `postonce verify --since-last`: only what is new, and all of that.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{Db, Flow, Ledger, Said, Trial, kafka, payment, payments, trials};
use serde_json::Value;

use crate::verify::{Copies, fill};

const LIMIT: Duration = Duration::from_secs(90);

pub fn tests() -> Vec<Trial> {
    trials![
        only_what_is_new_is_read,
        a_wrong_in_the_new_part_is_found_and_one_in_the_old_by_a_whole_run,
        with_deep_it_goes_on_from_the_last_deep_run,
    ]
}

fn verify(flow: &Flow, more: &[&str]) -> Result<Said> {
    Said::by(flow, &[&["verify", "-o", "json"], more].concat())
}

fn consumed(flow: &Flow) -> Result<()> {
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()
}

fn total(report: &Value, name: &str) -> Result<i64> {
    report["totals"][name].as_i64().with_context(|| format!("no total {name}: {report:#}"))
}

fn only_what_is_new_is_read() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("since")?, "since", 2)?;
    let db = &flow.ledger.db;
    // There is nothing to go on from, and it says what to do.
    verify(&flow, &["--since-last"])?.complaint(1, &["no verification without findings", "run `postonce verify`"])?;
    ensure!(db.one::<i64>("SELECT count(*) FROM verifications")? == 0);

    fill(&kafka, &flow)?;
    verify(&flow, &[])?.json(0)?;
    let (offsets, events): (i64, i64) = (flow.ledger.offsets()?, db.one("SELECT count(*) FROM events")?);
    flow.send(payments("new", 30))?;
    // An old resource moves on.
    flow.send([
        payment("stripe/verify/pi_7", "reversed", "2026-03-01T00:00:00Z", 0),
        postonce_tests::Message::new("?"),
    ])?;
    consumed(&flow)?;
    let report = verify(&flow, &["--since-last"])?.json(0)?;
    ensure!(report["findings"] == 0 && report["since"].is_string() && report["not_recorded"].is_null(), "{report:#}");
    assert_eq!(total(&report, "offsets")?, flow.ledger.offsets()? - offsets);
    assert_eq!((total(&report, "events")?, total(&report, "resources")?), (31, 31));
    assert_eq!(total(&report, "events")? + events, db.one::<i64>("SELECT count(*) FROM events")?);
    assert_eq!(total(&report, "accounts")?, db.one::<i64>("SELECT count(*) FROM accounts")?);
    let begins =
        report["streams"].as_array().context("no streams")?.iter().map(|stream| stream["from_offset"].as_i64());
    assert_eq!(begins.flatten().sum::<i64>(), offsets);

    // A clock that was wrong does not make an old run the last one.
    db.execute("UPDATE verifications SET finished_at = finished_at + interval '1 year' WHERE NOT since_last")?;
    flow.send(payments("newer", 5))?;
    consumed(&flow)?;
    let said = Said::by(&flow, &["verify", "--since-last"])?;
    ensure!(
        said.code == 0 && said.stdout.contains("all is right: 5 offsets, 5 events"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    ensure!(said.stdout.contains("Only what came after the verification of"), "{}", said.stdout);
    let report = verify(&flow, &["--since-last"])?.json(0)?;
    assert_eq!((total(&report, "offsets")?, total(&report, "postings")?, total(&report, "resources")?), (0, 0, 0));

    // One with findings is nothing to go on from; the next begins where the last good one ended.
    flow.send(payments("newest", 7))?;
    consumed(&flow)?;
    let edit = |by: i64| db.execute(&format!("UPDATE balances SET debits = debits + {by} WHERE debits > 0"));
    edit(1)?;
    verify(&flow, &["--since-last"])?.json(3)?;
    edit(-1)?;
    assert_eq!(total(&verify(&flow, &["--since-last"])?.json(0)?, "events")?, 7);
    verify(&flow, &[])?.json(0)?;
    Ok(())
}

/// A check, and what stands in one of its findings.
type Told = (&'static str, &'static [&'static str]);

/// What is done to the ledger, what `--since-last` must tell of it, and whether a whole
/// run does. `new` and `old` are offsets of payments after and before the last run.
const TAMPERED: &[(&str, &[Told], bool)] = &[
    (
        "UPDATE postings SET amount = amount + 1 WHERE stream = {stream} AND message_offset = {new}",
        &[
            ("positions", &["payment stripe/after/pi_3", "\"offset\":{new}"]),
            ("balances", &["assets:psp:stripe"]),
            ("batch_chain", &["does not hash"]),
        ],
        true,
    ),
    (
        "DELETE FROM events WHERE stream = {stream} AND message_offset = {new}",
        &[("outcomes", &["\"offset\":{new}", "no dedup row"])],
        true,
    ),
    (
        "UPDATE events SET fingerprint = gen_random_uuid() WHERE stream = {stream} AND message_offset = {new}",
        &[("events", &["payment stripe/after/pi_3", "\"offset\":{new}"])],
        true,
    ),
    (
        "UPDATE resources SET facts = replace(facts::text, '\"amount\":', '\"amount\":1')::json WHERE path = 'stripe/after/pi_3'",
        &[("positions", &["payment stripe/after/pi_3"]), ("events", &["payment stripe/after/pi_3"])],
        true,
    ),
    (
        "DELETE FROM resources WHERE path = 'stripe/after/pi_3'",
        &[("resources", &["row is gone", "\"offset\":{new}"])],
        true,
    ),
    (
        "UPDATE resources SET revision = 5 WHERE path = 'stripe/after/pi_3'",
        &[("resources", &["stripe/after/pi_3"])],
        true,
    ),
    (
        "DELETE FROM batches WHERE stream = {stream} AND from_offset <= {new} AND next_offset > {new}",
        &[("offsets", &[])],
        true,
    ),
    // Every balance is looked at, and all events of a resource that has a new one.
    (
        "UPDATE balances SET credits = credits + 1 WHERE credits > 0",
        &[("balances", &[]), ("trial_balance", &["EUR"])],
        true,
    ),
    (
        "UPDATE postings SET amount = amount + 1 WHERE stream = {stream} AND message_offset = {moved}",
        &[("positions", &["payment stripe/before/pi_7", "at offset {moved} of stream"])],
        true,
    ),
    (
        "UPDATE events SET previous_at = NULL WHERE stream = {stream} AND message_offset = {last}",
        &[("trace", &["payment stripe/before/pi_7", "would not show all", "at offset {moved} of stream"])],
        true,
    ),
    (
        "UPDATE events SET previous_at = CASE message_offset WHEN {moved} THEN updated_at END
         WHERE stream = {stream} AND message_offset IN ({moved}, {last})",
        &[("trace", &["payment stripe/before/pi_7", "\"expected\":\"2\",\"found\":\"1\""])],
        true,
    ),
    (
        "UPDATE events SET previous_at = '2020-01-01' WHERE stream = {stream} AND message_offset = {moved}",
        &[("trace", &["payment stripe/before/pi_7", "is not when it has changed"])],
        true,
    ),
    // Where the last run ended it looks whether that is still so.
    (
        "UPDATE batches SET hash = sha256('x') WHERE stream = {stream} AND next_offset = {border}",
        &[("since_last", &["is not what it was then", "without --since-last"])],
        true,
    ),
    ("DELETE FROM streams WHERE stream = {stream}", &[("since_last", &["without --since-last"])], true),
    // The old part only a whole run sees.
    ("UPDATE postings SET amount = amount + 1 WHERE stream = {stream} AND message_offset = {old}", &[], true),
    ("DELETE FROM events WHERE stream = {stream} AND message_offset = {old}", &[], true),
    ("UPDATE resources SET revision = 5 WHERE path = 'stripe/before/pi_3'", &[], true),
    ("UPDATE events SET previous_at = updated_at WHERE stream = {stream} AND message_offset = {old}", &[], true),
    ("SELECT 1", &[], false),
];

fn a_wrong_in_the_new_part_is_found_and_one_in_the_old_by_a_whole_run() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("since_wrong")?, "since_wrong", 1)?;
    flow.send(payments("before", 10))?;
    consumed(&flow)?;
    verify(&flow, &[])?.json(0)?;
    flow.send(payments("after", 10))?;
    flow.send([payment("stripe/before/pi_7", "reversed", "2026-03-01T00:00:00Z", 0)])?;
    consumed(&flow)?;
    let stream: i64 = flow.ledger.db.one("SELECT stream FROM streams")?;
    let names: BTreeMap<&str, i64> =
        [("{stream}", stream), ("{new}", 13), ("{old}", 3), ("{moved}", 7), ("{last}", 20), ("{border}", 10)].into();
    let put_in =
        |text: &str| names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, &value.to_string()));
    let (bootstrap, topic) = (flow.bootstrap().to_owned(), flow.topic.clone());
    Copies::of(flow.ledger)?.try_each(TAMPERED.len(), |number, url| {
        let (sql, expected, wrong) = TAMPERED[number];
        let sql = put_in(sql);
        Db::new(url).execute(&format!("SET session_replication_role = replica; {sql}"))?;
        let flow = Flow::of(&bootstrap, topic.clone(), Ledger::at(url))?;
        let since = verify(&flow, &["--since-last"])?.json(if expected.is_empty() { 0 } else { 3 });
        let since = since.with_context(|| sql.clone())?;
        for (check, words) in expected {
            let words: Vec<String> = words.iter().map(|word| put_in(word)).collect();
            ensure!(tells(&since, check, &words), "{sql}: {check} does not tell of {words:?}\n{:#}", since["checks"]);
        }
        verify(&flow, &[])?.json(if wrong { 3 } else { 0 }).with_context(|| format!("a whole run after {sql}"))?;
        Ok(())
    })
}

/// Whether one finding of a check says all of this.
pub fn tells(report: &Value, check: &str, words: &[String]) -> bool {
    let checks = report["checks"].as_array().into_iter().flatten();
    let mut first = checks.filter(|one| one["check"] == check).flat_map(|one| one["first"].as_array()).flatten();
    first.any(|finding| words.iter().all(|word| finding.to_string().contains(word.as_str())))
}

/// A run without the topic in between makes no hole in what was proved from it.
fn with_deep_it_goes_on_from_the_last_deep_run() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("since_deep")?, "since_deep", 1)?;
    let mut sent = 0;
    // The flags, how many messages are read again, and from where on.
    let runs: &[(&[&str], i64, Option<i64>)] = &[
        (&[], 0, None),
        (&["--since-last", "--deep"], 20, Some(0)),
        (&["--since-last"], 0, None),
        (&["--since-last"], 0, None),
        (&["--since-last", "--deep"], 30, Some(20)),
        (&["--deep"], 60, Some(0)),
        (&["--since-last", "--deep"], 10, Some(60)),
    ];
    for (flags, messages, from) in runs {
        flow.send(payments(&format!("run_{sent}"), 10))?;
        sent += 10;
        consumed(&flow)?;
        let report = verify(&flow, flags)?.json(0)?;
        assert_eq!(total(&report, "messages")?, *messages, "{flags:?} after {sent}: {report:#}");
        assert_eq!(report["streams"][0]["topic_from"].as_i64(), *from, "{flags:?} after {sent}: {report:#}");
        assert_eq!(report["streams"][0]["topic_to"].as_i64(), from.map(|_| sent), "{flags:?} after {sent}");
    }
    Ok(())
}
