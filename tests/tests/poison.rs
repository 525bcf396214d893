//! What cannot be posted is in quarantine with its bytes and its reason; what can be
//! is posted beside it; and the consumer goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_schema::Kinds;
use postonce_tests::{
    Consumer, Flow, Ledger, Message, PrivatePostgres, Terms, Trial, kafka, payment, payments, postgres, postgres_18,
    repository, send_with_header, trials,
};
use serde_json::Value;

pub fn tests() -> Vec<Trial> {
    trials![
        every_poison_is_set_aside_with_its_bytes,
        a_header_name_that_is_not_utf8_stops_nothing,
        kinds_and_clock_are_the_operators_to_set,
        an_error_that_no_event_caused_sets_nothing_aside,
        one_event_that_the_database_refuses_is_set_aside_alone,
        the_database_refuses_too_many_in_a_row,
        a_refusing_database_of_version_18,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Every code that the bytes of a message can bring about.
const CODES: [&str; 21] = [
    "bad_account",
    "bad_amount",
    "bad_asset",
    "bad_cloudevent",
    "bad_journal",
    "bad_json",
    "bad_resource",
    "bad_text",
    "bad_time",
    "bad_type",
    "empty",
    "future_time",
    "missing_field",
    "not_utf8",
    "repeated_header",
    "repeated_key",
    "too_deep",
    "too_large",
    "unknown_currency",
    "unknown_type",
    "wrong_type",
];

/// A message and what must become of it.
struct Poison {
    message: Message,
    code: String,
    /// Where the sample says it.
    place: Option<String>,
}

fn poisons() -> Result<Vec<Poison>> {
    let directory = repository().join("schema/testdata");
    let lines = std::fs::read_to_string(directory.join("samples.jsonl"))?;
    let mut samples: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let json = std::fs::read_to_string(directory.join("cloudevents.json"))?;
    samples.extend(serde_json::from_str::<Vec<Value>>(&json)?);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut poisons = Vec::new();
    for sample in samples {
        let Some(code) = text(&sample["code"]) else { continue };
        let bytes = match text(&sample["value"]) {
            Some(text) => text.into_bytes(),
            None => unhex(sample["value_hex"].as_str().context("a sample without a value")?)?,
        };
        let mut message = Message::new(bytes);
        for header in sample["headers"].as_array().into_iter().flatten() {
            let (name, value) = (text(&header[0]).context("a name")?, text(&header[1]).context("a value")?);
            message = message.header(&name, value);
        }
        poisons.push(Poison { message, code, place: text(&sample["place"]) });
    }
    let mut own = |message: Message, code: &str| {
        poisons.push(Poison { message, code: code.to_owned(), place: Some(String::new()) });
    };
    own(Message::tombstone(), "empty");
    let fits = payment("stripe/large/pi", "succeeded", "2026-01-02T03:04:05Z", 100).value.unwrap();
    own(Message::new([fits.clone(), vec![b' '; (1 << 20) + 1 - fits.len()]].concat()), "too_large");
    own(Message::new(vec![b'x'; 2 << 20]), "too_large");
    // Not even a byte that a text column could hold.
    own(Message::new(b"\0\0".as_slice()), "bad_json");
    let mut null_header = Message::new("[]");
    null_header.headers = vec![("h".to_owned(), None), (String::new(), Some(Vec::new())), ("h".to_owned(), None)];
    own(null_header, "bad_json");
    Ok(poisons)
}

fn unhex(digits: &str) -> Result<Vec<u8>> {
    (0..digits.len()).step_by(2).map(|at| Ok(u8::from_str_radix(&digits[at..at + 2], 16)?)).collect()
}

fn every_poison_is_set_aside_with_its_bytes() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("poison")?, "poison", 2)?;
    let mut poisons = poisons()?;
    let codes: BTreeSet<&str> = poisons.iter().map(|poison| poison.code.as_str()).collect();
    assert_eq!(codes, BTreeSet::from(CODES), "samples of every code");
    let (mut messages, good) = (Vec::new(), payments("beside", poisons.len()));
    for (n, (poison, good)) in poisons.iter_mut().zip(good).enumerate() {
        // The same bytes in two samples would be one row: the key tells them apart.
        poison.message.key = Some(n.to_string().into_bytes());
        messages.extend([poison.message.clone(), good]);
    }
    let mut consumer = flow.consume(&["--workers", "2", "--batch", "100", "--kinds", "all"])?;
    flow.send(messages.clone())?;
    flow.wait_done(LIMIT)?;
    check_quarantine(&flow.ledger, &poisons, 1)?;
    check_posted(&flow.ledger, poisons.len())?;

    // The same once more, some of it twice in one batch.
    flow.send(messages.iter().cloned().chain(messages[..50].iter().cloned()))?;
    flow.wait_done(LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");
    let rejected = consumer.metric("postonce_rejected_total", &[])?;
    assert_eq!(rejected, (2 * poisons.len() + 25) as f64);
    assert_eq!(consumer.metric("postonce_worker_lives_total", &[])?, 2.0, "a worker has begun anew");
    consumer.finish()?;
    check_posted(&flow.ledger, poisons.len())?;
    check_quarantine(&flow.ledger, &poisons[..25], 3)?;
    check_quarantine(&flow.ledger, &poisons[25..], 2)?;
    flow.check_by(&Terms::shipped(Kinds::All)?)?;
    flow.ledger.check_message_chain(&kafka.bootstrap(), &flow.topic)
}

/// Each of these is there, as often as said, byte for byte.
fn check_quarantine(ledger: &Ledger, poisons: &[Poison], times: i64) -> Result<()> {
    type Row = (Vec<u8>, String, String, String, Option<Vec<u8>>, Vec<u8>, i64, bool);
    let rows: Vec<Row> = ledger.db.rows(
        "SELECT key, code, place, reason, value, headers, times_seen,
                message_time IS NOT NULL AND last_stream = first_stream AND (last_offset > first_offset) = (times_seen > 1)
         FROM quarantine WHERE closed_at IS NULL",
    )?;
    let found: BTreeMap<Vec<u8>, Row> = rows.into_iter().map(|row| (row.0.clone(), row)).collect();
    for Poison { message, code, place } in poisons {
        let key = message.key.clone().unwrap();
        let row = found.get(&key).with_context(|| format!("{code} is not in quarantine: {message:?}"))?;
        let (_, found_code, found_place, reason, value, headers, seen, places) = row;
        ensure!(found_code == code, "{found_code} ({reason}), not {code}: {message:?}");
        ensure!(place.as_ref().is_none_or(|place| place == found_place), "at {found_place:?}, not {place:?}");
        ensure!(!reason.is_empty() && *value == message.value, "{code}: not the bytes that were sent");
        ensure!(*headers == encode(&message.headers), "{code}: not the headers that were sent");
        ensure!((*seen, *places) == (times, true), "{code}: seen {seen} times, not {times}");
    }
    Ok(())
}

/// As the migration says it.
fn encode(headers: &[(String, Option<Vec<u8>>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in headers {
        out.extend((name.len() as u32).to_be_bytes());
        out.extend(name.as_bytes());
        out.extend(value.as_ref().map_or(u32::MAX, |value| value.len() as u32).to_be_bytes());
        out.extend(value.iter().flatten());
    }
    out
}

/// So many payments of 100, and nothing else.
fn check_posted(ledger: &Ledger, payments: usize) -> Result<()> {
    let payments = i64::try_from(payments)?;
    assert_eq!(ledger.db.one::<i64>("SELECT count(*) FROM events")?, payments);
    assert_eq!(ledger.db.one::<i64>("SELECT count(*) FROM postings")?, payments);
    assert_eq!(ledger.balance("assets:psp:stripe", "EUR")?, 100 * payments);
    Ok(())
}

/// rdkafka's own accessor of headers panics at such a name.
fn a_header_name_that_is_not_utf8_stops_nothing() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("header")?, "header", 1)?;
    let consumer = flow.consume(&["--workers", "1"])?;
    let send =
        |message: &Message| send_with_header(&kafka.bootstrap(), &flow.topic, message, c"\xff\xfe\xc3", b"\x00\xff");
    let good = payments("header", 3);
    send(&good[0])?;
    send(&Message::new("no event").key("poison"))?;
    flow.send([good[1].clone()])?;
    send(&good[2])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    // The auditor's client cannot read that header.
    flow.ledger.check()?;
    assert_eq!(flow.ledger.outcomes()?, "PRPP");
    let headers: Vec<u8> = flow.ledger.db.one("SELECT headers FROM quarantine WHERE key = 'poison'")?;
    assert_eq!(headers, b"\0\0\0\x03\xff\xfe\xc3\0\0\0\x02\0\xff");
    Ok(())
}

fn kinds_and_clock_are_the_operators_to_set() -> Result<()> {
    const DAY: i64 = 24 * 3600 * 1000;
    let kafka = kafka();
    let mut flow = Flow::new(&kafka, Ledger::fresh("allowed")?, "allowed", 1)?;
    let journal = r#"{"type":"journal.posted","resource":"books/1","updatedAt":"2026-01-02T00:00:00Z","data":{"currency":"EUR","author":"a","reason":"r","postings":[{"debit":"assets:bank:main","credit":"equity:capital","amount":7}]}}"#;
    let fee = r#"{"type":"fee.charged","resource":"stripe/acct_1/f","updatedAt":"2026-01-02T00:00:00Z","data":{"merchant":"m","amount":5,"currency":"EUR"}}"#;
    // 2026-01-02T03:04:05Z, as Kafka counts.
    let at = 1_767_323_045_000;
    let paid = |resource: &str, sent: i64| payment(resource, "succeeded", "2026-01-02T03:04:05Z", 100).timestamp(sent);
    flow.send([
        Message::new(journal).timestamp(at),
        Message::new(fee).timestamp(at),
        paid("in/time", at - DAY),
        paid("too/early", at - DAY - 1),
        paid("much/too/early", at - 2 * DAY),
    ])?;
    let only = Kinds::Only(BTreeSet::from(["payment", "journal"].map(str::to_owned)));
    for (more, kinds, hours, outcomes) in [
        (&[][..], Kinds::AllButJournals, 24, "RPPRR"),
        (&["--kinds", "payment,journal"][..], only, 24, "PRPRR"),
        (&["--kinds", "all", "--max-ahead-hours", "48"][..], Kinds::All, 48, "PPPPP"),
    ] {
        let consumer = flow.consume(more)?;
        flow.wait_done(LIMIT)?;
        consumer.finish()?;
        let mut terms = Terms::shipped(kinds)?;
        terms.decoder.max_ahead = Duration::from_secs(hours * 3600);
        flow.check_by(&terms)?;
        assert_eq!(flow.ledger.outcomes()?, outcomes, "{more:?}");
        let codes: Vec<(String, String)> = flow.ledger.db.rows("SELECT DISTINCT code, place FROM quarantine")?;
        for (code, place) in codes {
            let expected = if code == "future_time" { "/updatedAt" } else { "/type" };
            assert!(
                ["future_time", "kind_not_allowed"].contains(&code.as_str()) && place == expected,
                "{code} {place}"
            );
        }
        flow.ledger = Ledger::fresh("allowed")?;
        flow.group = postonce_tests::unique("allowed");
    }
    Ok(())
}

fn an_error_that_no_event_caused_sets_nothing_aside() -> Result<()> {
    blameless(&postgres())
}

/// Classes of errors that say nothing of an event: internal, cancelled by an
/// administrator, disk full, a right that is missing, read only.
fn blameless(server: &PrivatePostgres) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(server, "blameless")?, "blameless", 1)?;
    let mut consumer = flow.consume(&["--workers", "1", "--batch", "50"])?;
    flow.send(payments("before", 10))?;
    flow.wait_done(LIMIT)?;
    for code in ["XX000", "57014", "53100", "42501", "25006"] {
        refuse(&flow.ledger, "postings", code, "true")?;
        flow.send(payments(code, 100))?;
        let before = consumer.failures("unavailable")?;
        consumer.wait_metric(
            "postonce_transaction_failures_total",
            &[("reason", "unavailable")],
            before + 3.0,
            LIMIT,
        )?;
        assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM quarantine")?, 0, "{code}");
        flow.ledger.db.execute("DROP TRIGGER refuse_postings ON postings; DROP FUNCTION refuse_postings")?;
        flow.wait_done(LIMIT).with_context(|| format!("after {code}"))?;
    }
    ensure!(consumer.is_running()?, "the consumer has ended");
    consumer.finish()?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM quarantine")?, 0);
    check_posted(&flow.ledger, 510)?;
    flow.check()
}

/// From now on a row of `table` that fits `condition` is refused with `code`.
fn refuse(ledger: &Ledger, table: &str, code: &str, condition: &str) -> Result<()> {
    ledger.db.execute(&format!(
        "CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF {condition} THEN RAISE EXCEPTION 'the test refuses it' USING ERRCODE = '{code}'; END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_{table}()"
    ))?;
    Ok(())
}

fn one_event_that_the_database_refuses_is_set_aside_alone() -> Result<()> {
    guilty(&postgres())
}

/// Four of forty, each refused in another way; nobody but them is set aside.
fn guilty(server: &PrivatePostgres) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(server, "guilty")?, "guilty", 1)?;
    flow.ledger.db.execute(
        "ALTER TABLE resources ADD CONSTRAINT test_path CHECK (path <> 'stripe/guilty/pi_0');
         ALTER TABLE postings ADD CONSTRAINT test_amount CHECK (amount <> 777)",
    )?;
    refuse(&flow.ledger, "events", "22P02", "NEW.message_offset = 20")?;
    refuse(&flow.ledger, "accounts", "54000", "NEW.asset = 'JPY'")?;
    let mut messages = payments("guilty", 40);
    let change = |message: &mut Message, from: &str, to: &str| {
        let text = String::from_utf8(message.value.take().unwrap()).unwrap();
        message.value = Some(text.replace(from, to).into_bytes());
    };
    change(&mut messages[19], "\"amount\":100,", "\"amount\":777,");
    change(&mut messages[39], "EUR", "JPY");
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.send(messages.clone())?;
    flow.wait_done(LIMIT)?;
    assert_eq!(consumer.metric("postonce_rejected_total", &[("code", "internal")])?, 4.0);
    let outcomes = format!("R{}RR{}R", "P".repeat(18), "P".repeat(18));
    assert_eq!(flow.ledger.outcomes()?, outcomes);
    check_but(&flow, 4)?;
    check_posted(&flow.ledger, 36)?;
    type Row = (i64, String, String, String, Vec<u8>, Vec<u8>);
    let rows: Vec<Row> = flow.ledger.db.rows(
        "SELECT first_offset, code, place, reason, key, value FROM quarantine WHERE times_seen = 1 ORDER BY first_offset",
    )?;
    let told = ["test_path", "test_amount", "the test refuses it", "the test refuses it"];
    assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), [0, 19, 20, 39]);
    for ((offset, code, place, reason, key, value), told) in rows.into_iter().zip(told) {
        let sent = &messages[usize::try_from(offset)?];
        assert_eq!((code.as_str(), place.as_str()), ("internal", ""));
        assert!(reason.contains(told), "{reason}");
        assert_eq!((Some(key), Some(value)), (sent.key.clone(), sent.value.clone()));
    }

    // The fault is mended: what was set aside can be posted, and the rest is known.
    flow.ledger.db.execute(
        "ALTER TABLE resources DROP CONSTRAINT test_path; ALTER TABLE postings DROP CONSTRAINT test_amount;
         DROP TRIGGER refuse_accounts ON accounts",
    )?;
    flow.send(messages)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    check_but(&flow, 4)?;
    let again = outcomes.replace('P', "D").replace('R', "P");
    assert_eq!(flow.ledger.outcomes()?, outcomes + &again);
    Ok(())
}

/// All is right but for so many that the database would not take.
fn check_but(flow: &Flow, internal: i64) -> Result<()> {
    flow.ledger.check()?;
    let seen = flow.audit()?.internal;
    ensure!(i64::try_from(seen)? == internal, "the auditor knows nothing against {seen}, not {internal}");
    Ok(())
}

/// A database that refuses one event after the other is itself at fault: the consumer
/// stops for a person, and sets nearly nothing aside.
fn the_database_refuses_too_many_in_a_row() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("damage")?, "damage", 1)?;
    refuse(&flow.ledger, "events", "22000", "NEW.message_offset >= 10")?;
    flow.send(payments("damage", 40))?;
    let mut consumer = flow.consume(&["--workers", "1"])?;
    assert_eq!(consumer.exit_code(LIMIT)?, 14, "{}", consumer.stderr());
    let internal: i64 = flow.ledger.db.one("SELECT count(*) FROM quarantine WHERE code = 'internal'")?;
    assert!((1..=5).contains(&internal), "{internal} were set aside");
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM postings")?, 10);
    check_but(&flow, internal)?;
    flow.ledger.db.execute("DROP TRIGGER refuse_events ON events")?;
    let consumer: Consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    check_but(&flow, internal)?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM postings")?, 40 - internal);
    Ok(())
}

fn a_refusing_database_of_version_18() -> Result<()> {
    let Some(server) = postgres_18() else {
        eprintln!("skipped: there are no binaries of Postgres 18 for this machine");
        return Ok(());
    };
    guilty(&server)?;
    blameless(&server)
}
