//! `postonce rebuild`: the topic comes to the same books, and where it does not, what
//! differs is named.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_schema::POSITIONS_TOML;
use postonce_tests::{
    Flow, Kafka, Ledger, Message, PostonceProcess, Said, Transaction, Trial, delete_before, kafka, payment, payments,
    trials, wait_until,
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

pub fn tests() -> Vec<Trial> {
    trials![
        the_same_topic_comes_to_the_same_books,
        beside_a_consumer_at_work_it_is_exact,
        what_was_done_to_the_ledger_is_named,
        what_is_accepted_now_is_told_apart,
        other_rules_come_to_other_balances,
        what_retention_has_deleted_is_no_difference,
        what_came_from_another_topic_is_no_difference,
        what_a_person_has_accepted_as_lost_is_no_difference,
        what_only_an_older_lineage_brought_is_no_difference,
        a_schema_in_use_is_refused,
        a_signal_ends_it_and_drops_the_schema,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

fn rebuild(flow: &Flow, more: &[&str]) -> Result<Said> {
    Said::by(flow, &[&["rebuild", "-o", "json"], more].concat())
}

/// Reads all that is in the topic.
fn consume(flow: &Flow, more: &[&str]) -> Result<()> {
    let consumer = flow.consume(more)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()
}

fn schemas(flow: &Flow) -> Result<i64> {
    flow.ledger.db.one("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'postonce_%'")
}

fn tamper(flow: &Flow, sql: &str) -> Result<()> {
    let tables = "events conflicts quarantine batches resources postings balances";
    let off: String = tables.split(' ').map(|table| format!("ALTER TABLE {table} DISABLE TRIGGER USER;")).collect();
    ensure!(flow.ledger.db.execute(&format!("{off}{sql}"))? > 0, "nothing was changed by {sql}");
    Ok(())
}

fn only<'v>(report: &'v Value, what: &str) -> Result<&'v Value> {
    let found = report["first"][what].as_array().with_context(|| format!("no {what}: {report:#}"))?;
    ensure!(found.len() == 1 && report["differences"][what] == json!(1), "{what}: {report:#}");
    Ok(&found[0])
}

/// A ledger after everything that arrival can do: conflicts in both orders, copies on
/// both partitions, disorder, poison, holes.
fn loaded(kafka: &Kafka, label: &str) -> Result<Flow> {
    let flow = Flow::new(kafka, Ledger::fresh(label)?, label, 2)?;
    flow.send_load(2_000, 21)?;
    let conflict = |amount, partition| {
        payment("stripe/conflict/pi", "succeeded", "2026-01-02T03:04:05Z", amount).partition(partition)
    };
    flow.send([conflict(100, 0), conflict(120, 1), conflict(120, 0), conflict(100, 1), conflict(7, 1)])?;
    for commit in [true, false] {
        let transaction = Transaction::begin(&kafka.bootstrap())?;
        transaction.send(&flow.topic, payments(&format!("{label}_{commit}"), 20))?;
        if commit { transaction.commit()? } else { transaction.abort()? }
    }
    flow.send(payments("last", 10))?;
    consume(&flow, &["--batch", "300"])?;
    Ok(flow)
}

fn the_same_topic_comes_to_the_same_books() -> Result<()> {
    let kafka = kafka();
    let flow = loaded(&kafka, "rebuilt")?;
    let (books, claims) = (flow.ledger.books()?, flow.ledger.db.one::<i64>("SELECT count(*) FROM claims")?);
    for workers in ["1", "2"] {
        let report = rebuild(&flow, &["--drop", "--workers", workers])?.json(0)?;
        assert_eq!((&report["equal"], &report["schema"]), (&json!(true), &Value::Null), "{report:#}");
        assert_eq!((&report["differences"], &report["explained"]), (&json!({}), &json!({})), "{report:#}");
        let compared = |what: &str| report["compared"][what].as_i64().unwrap_or(0);
        let known: i64 =
            flow.ledger.db.one("SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM conflicts)")?;
        assert_eq!((compared("events"), compared("message_chains")), (known, 2));
        let resources: i64 = flow.ledger.db.one("SELECT count(*) FROM resources")?;
        assert_eq!(compared("resources"), resources);
        ensure!(compared("postings") > 500 && compared("balances") > 10, "{report:#}");
        assert_eq!(report["messages"]["live"], report["messages"]["rebuilt"]);
        ensure!(report["messages"]["live"]["refused"].as_i64() > Some(0), "{report:#}");
        assert_eq!(schemas(&flow)?, 0, "the schema is still there");
    }
    assert_eq!(flow.ledger.books()?, books);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM claims")?, claims);
    // What is kept is a ledger like any other.
    let text = Said::by(&flow, &["rebuild", "--into", "postonce_audit"])?;
    ensure!(text.code == 0 && text.stdout.contains("EQUAL"), "{}{}", text.stdout, text.stderr);
    Ledger::existing(&format!("{}?options=-csearch_path%3Dpostonce_audit", flow.ledger.url)).check()
}

fn beside_a_consumer_at_work_it_is_exact() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("at_work")?, "at_work", 2)?;
    flow.send_load(6_000, 22)?;
    flow.ledger.slow_down(0.1)?;
    let consumer = flow.consume(&["--batch", "100"])?;
    flow.wait_offsets(500, LIMIT)?;
    let before = flow.ledger.offsets()?;
    let report = rebuild(&flow, &["--drop"])?.json(0)?;
    assert_eq!((&report["equal"], &report["differences"]), (&json!(true), &json!({})), "{report:#}");
    let spans = report["partitions"].as_array().context("no partitions")?;
    let read: i64 = spans.iter().filter_map(|span| Some(span["to"].as_i64()? - span["from"].as_i64()?)).sum();
    ensure!(read > before, "the consumer did nothing meanwhile: {read} offsets, {before} at the start");
    flow.ledger.slow_down(0.0)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()
}

fn what_was_done_to_the_ledger_is_named() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("touched")?, "touched", 1)?;
    flow.send(payments("p", 10))?;
    consume(&flow, &[])?;
    rebuild(&flow, &["--drop"])?.json(0)?;
    let db = &flow.ledger.db;

    tamper(
        &flow,
        "UPDATE balances SET debits = debits + 1
                   WHERE account_id = (SELECT account_id FROM accounts WHERE path = 'assets:psp:stripe')",
    )?;
    let report = rebuild(&flow, &["--drop"])?.json(3)?;
    assert_eq!(report["differences"], json!({"balance": 1}), "{report:#}");
    let found = only(&report, "balance")?;
    assert_eq!(found["accounts"], json!(["assets:psp:stripe"]));
    assert_eq!((&found["live"], &found["rebuilt"], &found["asset"]), (&json!("1001"), &json!("1000"), &json!("EUR")));
    tamper(
        &flow,
        "UPDATE balances SET debits = debits - 1
                   WHERE account_id = (SELECT account_id FROM accounts WHERE path = 'assets:psp:stripe')",
    )?;

    tamper(&flow, "UPDATE postings SET amount = 70 WHERE message_offset = 3")?;
    let report = rebuild(&flow, &["--drop"])?.json(3)?;
    assert_eq!(report["differences"], json!({"postings": 1}), "{report:#}");
    let found = only(&report, "postings")?;
    assert_eq!((&found["resource"], &found["offset"]), (&json!("stripe/p/pi_3"), &json!(3)));
    let amounts =
        [&found["live"], &found["rebuilt"]].map(|amount| amount.as_str().unwrap_or_default().trim_start_matches('-'));
    assert_eq!(amounts, ["70", "100"]);
    ensure!(
        found["accounts"].as_array().is_some_and(|accounts| accounts.contains(&json!("assets:psp:stripe"))),
        "{found}"
    );
    tamper(&flow, "UPDATE postings SET amount = 100 WHERE message_offset = 3")?;

    tamper(&flow, "UPDATE resources SET facts = '{\"x\":1}' WHERE path = 'stripe/p/pi_5'")?;
    let report = rebuild(&flow, &["--drop"])?.json(3)?;
    assert_eq!(report["differences"], json!({"resource": 1}), "{report:#}");
    let found = only(&report, "resource")?;
    assert_eq!((&found["resource"], &found["offset"]), (&json!("stripe/p/pi_5"), &json!(5)));
    ensure!(found["live"].as_str().is_some_and(|live| live.contains("{\"x\":1}")), "{found}");
    let id: String = db.one("SELECT 'evt_' || encode(event_id, 'hex') FROM events WHERE message_offset = 5")?;
    assert_eq!(found["event_id"], json!(id));

    // An event that the ledger has forgotten, with what it had brought.
    let id: String = db.one("SELECT 'evt_' || encode(event_id, 'hex') FROM events WHERE message_offset = 7")?;
    tamper(
        &flow,
        "UPDATE resources r SET facts = o.facts FROM resources o
                   WHERE r.path = 'stripe/p/pi_5' AND o.path = 'stripe/p/pi_4';
                   DELETE FROM events WHERE message_offset = 7",
    )?;
    let report = rebuild(&flow, &["--drop"])?.json(3)?;
    let found = only(&report, "event_only_rebuilt")?;
    assert_eq!((&found["event_id"], &found["offset"]), (&json!(id), &json!(7)));
    assert_eq!(found["type"], json!("payment.succeeded"));
    // Its posting belongs to no event any more.
    assert_eq!(report["differences"]["postings"], json!(2), "{report:#}");

    tamper(&flow, "UPDATE streams SET message_chain = sha256('x')")?;
    let report = rebuild(&flow, &["--drop"])?.json(3)?;
    assert_eq!(only(&report, "message_chain")?["partition"], json!(0));
    tamper(
        &flow,
        "UPDATE batches SET outcomes = set_byte(set_byte(outcomes, 0, ascii('.')), 1, ascii('.'))
                   WHERE from_offset = 0 AND length(outcomes) > 1",
    )?;
    let report = rebuild(&flow, &["--drop"])?.json(3)?;
    assert_eq!((&report["differences"]["skipped"], &report["first"]["skipped"][0]["offset"]), (&json!(2), &json!(0)));

    // What cannot be read at all is an error, and leaves nothing behind.
    tamper(&flow, "UPDATE batches SET outcomes = set_byte(outcomes, 0, ascii('x')) WHERE from_offset = 0")?;
    rebuild(&flow, &[])?.complaint(1, &["batches, stream", "seq 1"])?;
    assert_eq!(schemas(&flow)?, 0, "a half built schema is still there");
    Ok(())
}

fn file(text: &str) -> Result<(NamedTempFile, String)> {
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), text)?;
    let path = file.path().to_str().context("a path")?.to_owned();
    Ok((file, path))
}

/// Gift cards from 2026-06 on, beside all that was there.
fn with_gift_cards() -> String {
    let kinds = POSITIONS_TOML.split_once("[[version.kind]]").map_or("", |(_, kinds)| kinds);
    format!(
        r#"{POSITIONS_TOML}
[[version]]
version = 2
from = "2026-06-01T00:00:00Z"

[[version.kind]]{kinds}
[[version.kind]]
name = "gift_card"
state = [
  {{ name = "sold", rank = 1, position = [
    {{ debit = "assets:psp:{{provider}}", credit = "liabilities:gift_cards:{{merchant}}", amount = "amount" }},
  ] }},
]
"#
    )
}

/// They were refused before the rules knew them. They still stand in quarantine, and the
/// rules would accept them.
fn what_is_accepted_now_is_told_apart() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("now")?, "now", 1)?;
    let card = |n: i64| {
        Message::new(format!(
            r#"{{"type":"gift_card.sold","resource":"stripe/cards/{n}","updatedAt":"2026-07-01T00:00:0{n}Z","data":{{"provider":"stripe","merchant":"m_1","currency":"EUR","amount":50,"fee":0}}}}"#
        ))
        .timestamp(1_790_000_000_000)
    };
    flow.send(payments("before", 5))?;
    flow.send([card(1), card(2), card(2)])?;
    consume(&flow, &[])?;
    let (_kept, rules) = file(&with_gift_cards())?;
    flow.send([card(3)])?;
    consume(&flow, &["--positions", &rules])?;
    assert_eq!(flow.ledger.outcomes()?, "PPPPPRRRP");

    let report = rebuild(&flow, &["--drop", "--positions", &rules])?.json(3)?;
    assert_eq!(report["differences"], json!({"accepted_now": 2}), "{report:#}");
    // Two resources, their two postings, two balances; and the copy.
    assert_eq!(report["explained"], json!({"accepted_copy": 1, "follows": 6}), "{report:#}");
    let first = &report["first"]["accepted_now"][0];
    assert_eq!(
        (&first["type"], &first["resource"], &first["offset"]),
        (&json!("gift_card.sold"), &json!("stripe/cards/1"), &json!(5))
    );
    assert_eq!(
        report["messages"],
        json!({"live": {"accepted": 6, "refused": 3}, "rebuilt": {"accepted": 9, "refused": 0}})
    );

    let text = Said::by(&flow, &["rebuild", "--drop", "--positions", &rules])?;
    ensure!(text.stdout.contains("only by what is in quarantine"), "{}", text.stdout);

    // What has nothing to do with it is still a difference of its own.
    tamper(
        &flow,
        "UPDATE balances SET debits = debits + 1
                   WHERE account_id = (SELECT account_id FROM accounts WHERE path = 'assets:psp:stripe')",
    )?;
    let report = rebuild(&flow, &["--drop", "--positions", &rules])?.json(3)?;
    assert_eq!(report["differences"], json!({"accepted_now": 2, "balance": 1}), "{report:#}");
    let replayed = Said::by(&flow, &["replay", "-o", "json", "--positions", &rules])?.json(3)?;
    assert_eq!(replayed["differences"]["by_kind"], json!({"accepted_now": 2}), "{replayed:#}");
    // Rules that are not those in use, and no file was named for a what-if.
    rebuild(&flow, &[])?.complaint(13, &["version 2 is in use"])?;

    // A person decides: one is dismissed, of the other a copy is accepted.
    tamper(
        &flow,
        "UPDATE balances SET debits = debits - 1
                   WHERE account_id = (SELECT account_id FROM accounts WHERE path = 'assets:psp:stripe')",
    )?;
    let place = format!("{}/0/5", flow.topic);
    let dismiss = Said::by(&flow, &["quarantine", "dismiss", &place, "--why", "a test", "--person", "ada"])?;
    ensure!(dismiss.code == 0, "{}", dismiss.stderr);
    flow.send([card(2).header("postonce-retry", format!("{}/0/6", flow.topic))])?;
    consume(&flow, &["--positions", &rules])?;
    let report = rebuild(&flow, &["--drop", "--positions", &rules])?.json(0)?;
    assert_eq!(report["differences"], json!({}), "{report:#}");
    // The dismissed one's resource, posting and two balances.
    assert_eq!(report["explained"], json!({"accepted_copy": 2, "dismissed": 1, "follows": 4}), "{report:#}");
    assert_eq!(report["first"]["dismissed"][0]["offset"], json!(5));
    let replayed = Said::by(&flow, &["replay", "-o", "json", "--positions", &rules])?.json(0)?;
    let counts = ["duplicates", "accepted_now", "rejected"].map(|name| &replayed["counts"][name]);
    assert_eq!(counts, [&json!(9), &json!(1), &json!(0)], "{replayed:#}");
    Ok(())
}

fn other_rules_come_to_other_balances() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("what_if")?, "what_if", 2)?;
    flow.send(payments("w", 10))?;
    flow.send([Message::new("[]"), payment("stripe/w/failed", "failed", "2026-01-02T03:04:05Z", 5)])?;
    consume(&flow, &[])?;
    let books = flow.ledger.books()?;
    let other = POSITIONS_TOML.replace(
        "debit = \"assets:psp:{provider}\", credit = \"liabilities:merchant",
        "debit = \"assets:clearing:{provider}\", credit = \"liabilities:merchant",
    );
    ensure!(other != POSITIONS_TOML, "the rules have no such line");
    let (_kept, rules) = file(&other)?;
    let report = rebuild(&flow, &["--drop", "--positions", &rules])?.json(3)?;
    let accounts = report["what_if"]["accounts"].as_array().context("no accounts")?;
    let expected = [("assets:clearing:stripe", "0", "1000", "1000"), ("assets:psp:stripe", "1000", "0", "-1000")];
    assert_eq!(accounts.len(), 2, "{report:#}");
    for (found, (account, live, rebuilt, difference)) in accounts.iter().zip(expected) {
        let expected =
            json!({"account": account, "asset": "EUR", "live": live, "rebuilt": rebuilt, "difference": difference});
        assert_eq!(*found, expected);
    }
    let why = report["what_if"]["rules"].as_str().context("no rules")?;
    ensure!(why.contains("here    line payment.succeeded debit assets:clearing"), "{why}");
    assert_eq!(report["messages"]["live"], json!({"accepted": 11, "refused": 1}));
    let text = Said::by(&flow, &["rebuild", "--drop", "--positions", &rules])?;
    ensure!(
        text.stdout.contains("assets:clearing:stripe  EUR     0.00              10.00       10.00"),
        "{}",
        text.stdout
    );
    // The same rules under another name are no what-if.
    let (_same, same) = file(POSITIONS_TOML)?;
    assert_eq!(rebuild(&flow, &["--drop", "--positions", &same])?.json(0)?["what_if"], Value::Null);
    assert_eq!((flow.ledger.books()?, schemas(&flow)?), (books, 0));
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM rules")?, 1);
    Ok(())
}

fn what_retention_has_deleted_is_no_difference() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("retention")?, "retention", 1)?;
    flow.send(payments("old", 10))?;
    flow.send([payment("stripe/both/pi", "authorized", "2026-01-01T00:00:00Z", 100)])?;
    flow.send(payments("young", 5))?;
    // Of this one the log holds a copy.
    flow.send([payment("stripe/old/pi_9", "succeeded", "2026-01-02T03:04:05.000009Z", 100)])?;
    consume(&flow, &[])?;
    delete_before(&kafka, &flow.topic, 0, 11)?;
    let report = rebuild(&flow, &["--drop"])?.json(0)?;
    assert_eq!(report["differences"], json!({}), "{report:#}");
    // 9 of the old ones and the one that was authorized; their resources, postings, balances.
    assert_eq!(report["explained"], json!({"before_log_start": 10, "follows": 10 + 9 + 2}), "{report:#}");
    assert_eq!((&report["partitions"][0]["from"], &report["compared"]["message_chains"]), (&json!(11), &json!(0)));
    let text = Said::by(&flow, &["rebuild", "--drop"])?;
    ensure!(text.stdout.contains("retention has deleted 11 offsets"), "{}", text.stdout);
    Ok(())
}

fn what_came_from_another_topic_is_no_difference() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("elsewhere")?, "elsewhere", 1)?;
    flow.send(payments("here", 5))?;
    consume(&flow, &[])?;
    let other = kafka.topic("other", 1)?;
    let consumer = postonce_tests::Consumer::start(&kafka, &other, "others", &flow.ledger.url, &[])?;
    postonce_tests::Sender::new(&kafka.bootstrap(), "lz4")?.send(&other, payments("there", 3))?;
    flow.wait_offsets(8, LIMIT)?;
    consumer.finish()?;
    let report = rebuild(&flow, &["--drop"])?.json(0)?;
    assert_eq!(report["explained"], json!({"elsewhere": 3, "follows": 3 + 3 + 2}), "{report:#}");
    assert_eq!(report["first"]["elsewhere"][0]["topic"], json!(other));
    Ok(())
}

fn what_a_person_has_accepted_as_lost_is_no_difference() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("lost")?, "lost", 1)?;
    flow.send(payments("early", 10))?;
    consume(&flow, &[])?;
    flow.send(payments("lost", 5))?;
    delete_before(&kafka, &flow.topic, 0, 13)?;
    for command in ["replay", "rebuild"] {
        let text = Said::by(&flow, &[command, "--differences", "0"])?;
        let told =
            ["retention has deleted 13 offsets, up to 13", "3 of them the ledger has never read, it stands at 10"];
        ensure!(text.code == 0 && told.iter().all(|told| text.stdout.contains(told)), "{}{}", text.stdout, text.stderr);
    }
    flow.ledger.db.execute("DROP SCHEMA postonce_rebuild CASCADE")?;
    consume(&flow, &["--accept-gap", "0:10-12", "--person", "ada"])?;
    let report = rebuild(&flow, &["--drop"])?.json(0)?;
    assert_eq!((&report["differences"], &report["explained"]["before_log_start"]), (&json!({}), &json!(10)));
    assert_eq!(
        report["messages"],
        json!({"live": {"accepted": 2, "refused": 0}, "rebuilt": {"accepted": 2, "refused": 0}})
    );
    let replayed = Said::by(&flow, &["replay", "-o", "json", "--from", "0"])?.json(0)?;
    assert_eq!((&replayed["counts"]["read"], &replayed["partitions"][0]["from"]), (&json!(2), &json!(13)));
    Ok(())
}

/// The topic was made again, and a person let the consumer go on with it.
fn what_only_an_older_lineage_brought_is_no_difference() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("lineage")?, "lineage", 1)?;
    flow.send(payments("both", 5))?;
    flow.send(payments("old", 3))?;
    consume(&flow, &[])?;
    kafka.delete_topic(&flow.topic)?;
    kafka.create_topic(&flow.topic, 1, &[])?;
    flow.send(payments("both", 5))?;
    flow.send(payments("young", 2))?;
    let asked = Said::by(&flow, &["replay", "-o", "json", "--to", "end"])?.json(3)?;
    assert_eq!((&asked["counts"]["duplicates"], &asked["counts"]["new"]), (&json!(5), &json!(2)), "{asked:#}");
    let id = asked["topic_id"].as_str().context("no topic id")?;
    let consumer = flow.consume(&["--accept-lineage", id, "--person", "ada"])?;
    flow.wait_offsets(8 + 7, LIMIT)?;
    consumer.finish()?;
    let replayed = Said::by(&flow, &["replay", "-o", "json"])?.json(0)?;
    assert_eq!((&replayed["counts"]["duplicates"], &replayed["not_read_yet"]), (&json!(7), &json!(0)));
    let report = rebuild(&flow, &["--drop"])?.json(0)?;
    // Their resources, postings, and two balances.
    assert_eq!(report["explained"], json!({"elsewhere": 3, "follows": 3 + 3 + 2}), "{report:#}");
    // Of what both have brought nothing is excused.
    tamper(&flow, "UPDATE resources SET facts = '{\"x\":1}' WHERE path = 'stripe/both/pi_3'")?;
    let report = rebuild(&flow, &["--drop"])?.json(3)?;
    assert_eq!(only(&report, "resource")?["resource"], json!("stripe/both/pi_3"));
    Ok(())
}

fn a_schema_in_use_is_refused() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("in_use")?, "in_use", 1)?;
    flow.send(payments("u", 4))?;
    rebuild(&flow, &[])?.complaint(1, &["has read nothing of topic"])?;
    consume(&flow, &[])?;
    rebuild(&flow, &[])?.json(0)?;
    rebuild(&flow, &["--drop"])?.complaint(1, &["postonce_rebuild holds a ledger with 4 offsets", "DROP SCHEMA"])?;
    rebuild(&flow, &["--drop", "--into", "postonce"])?.complaint(1, &["is the live ledger"])?;
    rebuild(&flow, &["--into", "No Name"])?.complaint(1, &["is no schema name"])?;
    flow.ledger.db.execute("CREATE SCHEMA postonce_mine; CREATE TABLE postonce_mine.t ()")?;
    rebuild(&flow, &["--drop", "--into", "postonce_mine"])?.complaint(1, &["holds other tables"])?;
    assert_eq!(schemas(&flow)?, 2, "a schema that was refused was dropped");
    flow.check()
}

/// While it posts, and while it compares, then also without --drop: it is half built.
fn a_signal_ends_it_and_drops_the_schema() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("signal")?, "signal", 1)?;
    flow.send(payments("s", 3_000))?;
    consume(&flow, &[])?;
    let there = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE nspname = 'postonce_rebuild' AND relname = 'verifications'";
    // The comparison waits for a row lock's table: nobody may read balances.
    let holder = postonce_tests::Db::new(&flow.ledger.url);
    for lock in ["rules", "balances"] {
        holder.execute(&format!("BEGIN; LOCK TABLE postonce.{lock} IN ACCESS EXCLUSIVE MODE"))?;
        let env =
            [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", &flow.ledger.url), ("POSTONCE_TOPIC", &flow.topic)];
        let args: &[&str] = if lock == "rules" { &["rebuild", "--drop"] } else { &["rebuild"] };
        let mut process = PostonceProcess::start(args, &env)?;
        if lock == "rules" {
            holder.execute("COMMIT")?;
        }
        wait_until(LIMIT, "the schema", || Ok((flow.ledger.db.one::<i64>(there)? == 1).then_some(())))?;
        if lock == "balances" {
            wait_until(LIMIT, "the comparison to wait", || {
                let waiting: i64 = flow.ledger.db.one(
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'postonce.balances'::regclass",
                )?;
                Ok((waiting > 0).then_some(()))
            })?;
        }
        process.terminate()?;
        let code = process.wait(LIMIT)?.code();
        holder.execute("ROLLBACK")?;
        // It may have been faster than the signal.
        ensure!(code == Some(143) || (lock == "rules" && code == Some(0)), "{code:?}: {}", process.stderr());
        assert_eq!(schemas(&flow)?, 0, "the schema is still there");
    }
    flow.check()
}
