//! What people do about refused messages and incidents, by the commands they use.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Db, Flow, Kafka, Ledger, Message, PostonceProcess, Trial, kafka, payment, read_all, send_with_header, trials,
    unique,
};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use serde_json::Value;

pub fn tests() -> Vec<Trial> {
    trials![
        poison_is_shown_and_does_no_harm,
        a_copy_that_is_refused_again_counts_on_in_the_row_of_the_first,
        a_copy_that_is_accepted_closes_the_row_in_every_ledger,
        the_order_within_a_batch_decides_as_in_batches_of_one,
        decisions_are_kept_with_who_and_why,
        a_page_goes_on_where_the_last_one_ended,
        incidents_are_shown_with_both_contents_and_closed,
        an_operator_can_decide_and_cannot_write_the_ledger,
        a_retry_goes_to_the_cluster_of_the_first_or_nowhere,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);
/// 2020-01-01, as Kafka counts: more than a day before the payments of [`too_early`].
const LONG_AGO: i64 = 1_577_836_800_000;

/// What a command has said.
struct Said {
    code: i32,
    stdout: Vec<u8>,
    stderr: String,
}

impl Said {
    fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("UTF-8 on stdout")
    }

    fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.stdout).with_context(|| self.stderr.clone())
    }

    fn refused(&self, code: i32, why: &str) -> Result<()> {
        ensure!(self.code == code && self.stderr.contains(why), "{} {}, not {code} {why}", self.code, self.stderr);
        Ok(())
    }
}

fn run_as(brokers: &str, url: &str, args: &[&str]) -> Result<Said> {
    let env = [("KAFKA_BROKERS", brokers), ("DATABASE_URL", url), ("POSTONCE_PERSON", "Ada")];
    let mut process = PostonceProcess::start(args, &env)?;
    let code = process.wait(LIMIT)?.code().context("ended by a signal")?;
    Ok(Said { code, stdout: process.stdout_bytes(), stderr: process.stderr() })
}

fn run(kafka: &Kafka, flow: &Flow, args: &[&str]) -> Result<Said> {
    run_as(&kafka.bootstrap(), &flow.ledger.url, args)
}

fn done(kafka: &Kafka, flow: &Flow, args: &[&str]) -> Result<Said> {
    let said = run(kafka, flow, args)?;
    ensure!(said.code == 0, "{args:?}: {} {}", said.code, said.stderr);
    Ok(said)
}

/// A consumer reads all there is, and ends.
fn consume(flow: &Flow, more: &[&str]) -> Result<()> {
    let consumer = flow.consume(&[&["--workers", "1"], more].concat())?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    consumer.finish()?;
    // The auditor knows one set of terms for the whole of a history.
    if more.is_empty() { flow.check() } else { flow.ledger.check() }
}

/// Refused for its clock as it is; a copy of today is accepted.
fn too_early(resource: &str) -> Message {
    payment(resource, "succeeded", "2024-06-01T00:00:00Z", 100).timestamp(LONG_AGO)
}

fn id_of(flow: &Flow, condition: &str) -> Result<String> {
    flow.ledger.db.one(&format!("SELECT encode(message_hash, 'hex') FROM quarantine WHERE {condition}"))
}

fn open_rows(flow: &Flow) -> Result<i64> {
    flow.ledger.db.one("SELECT count(*) FROM quarantine_open")
}

fn poison_is_shown_and_does_no_harm() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("shown")?, "shown", 1)?;
    let binary: Vec<u8> = (0..=255).cycle().take(2000).collect();
    let escapes = "{\"type\":\"\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\r\nActions:\n  2020 dismissed\"}";
    let huge = format!("[\"{}\"]", "é".repeat(100_000));
    let samples: [(&str, Message); 5] = [
        ("binary", Message::new(binary.clone()).header("h\u{202e}", [0xff, 0x1b])),
        ("escapes", Message::new(escapes).header("\u{1b}[31m", "\u{1b}c\nvalue:")),
        ("null", Message { headers: vec![("n".to_owned(), None)], ..Message::tombstone() }),
        ("empty", Message::new("")),
        ("huge", Message::new(huge.clone())),
    ];
    for (key, message) in &samples {
        flow.send([message.clone().key(format!("{key}\u{1b}[7m"))])?;
    }
    consume(&flow, &[])?;
    let list = done(&kafka, &flow, &["quarantine", "list"])?.text();
    harmless(&list)?;
    assert_eq!(list.lines().count(), 1 + samples.len(), "{list}");
    for (key, message) in &samples {
        let id = id_of(&flow, &format!("key = convert_to('{key}' || E'\\x1b[7m', 'UTF8')"))?;
        let short = &id[..8];
        ensure!(list.contains(&id[..12]), "{list}");
        let shown = done(&kafka, &flow, &["quarantine", "show", short])?.text();
        harmless(&shown)?;
        ensure!(shown.contains(&format!("  | {key}\\u{{1b}}[7m")), "{shown}");
        ensure!(!shown.contains("\nActions:"), "what was sent passes for ours: {shown}");
        let json = done(&kafka, &flow, &["quarantine", "show", short, "--full", "-o", "json"])?;
        harmless(&json.text())?;
        let json = json.json()?;
        assert_eq!(json["id"], Value::from(id.clone()));
        let raw = run(&kafka, &flow, &["quarantine", "show", short, "--raw"])?;
        match &message.value {
            None => {
                raw.refused(1, "no value")?;
                ensure!(shown.contains("(null)") && json["value"].is_null(), "{shown}");
            }
            Some(bytes) => {
                ensure!(raw.code == 0 && raw.stdout == *bytes, "{key}: not the bytes that were sent");
                match std::str::from_utf8(bytes) {
                    Ok(text) => assert_eq!(json["value"]["text"], Value::from(text)),
                    Err(_) => ensure!(json["value"]["hex"] == hex(bytes), "{key}: {json}"),
                }
            }
        }
    }
    let binary_shown = done(&kafka, &flow, &["quarantine", "show", &format!("{}/0/0", flow.topic)])?.text();
    ensure!(binary_shown.contains("  00000010: 1011 1213"), "{binary_shown}");
    ensure!(binary_shown.contains("512 of 2000 bytes shown"), "{binary_shown}");
    let huge_shown = done(&kafka, &flow, &["quarantine", "show", &format!("{}/0/4", flow.topic)])?.text();
    ensure!(huge_shown.len() < 10_000 && huge_shown.contains("bytes shown; --full"), "{huge_shown}");
    let full = done(&kafka, &flow, &["quarantine", "show", &format!("{}/0/4", flow.topic), "--full"])?.text();
    ensure!(full.contains(&huge), "--full is not all");
    Ok(())
}

/// Nothing in it makes a terminal do anything but show it.
fn harmless(text: &str) -> Result<()> {
    let bad = |c: &char| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c);
    match text.chars().find(bad) {
        None => Ok(()),
        Some(c) => anyhow::bail!("{c:?} in {}", text.escape_debug()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn a_copy_that_is_refused_again_counts_on_in_the_row_of_the_first() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("again")?, "again", 5)?;
    // A name that is no UTF-8, null values, names twice, no key: what is sent again must be
    // what came, and on the partition where it came.
    let odd = Message { partition: Some(3), ..Message::new(b"\xff\0".as_slice()) };
    send_with_header(&kafka.bootstrap(), &flow.topic, &odd, c"\xff\xfe", b"\x00\xff")?;
    let mut headers = Message::new("[]").partition(4);
    headers.headers = vec![("h".to_owned(), None), (String::new(), Some(Vec::new())), ("h".to_owned(), Some(vec![0]))];
    flow.send([headers.clone()])?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    let row = "SELECT encode(message_hash, 'hex'), encode(headers, 'hex'), times_seen, first_stream, first_offset, last_stream, last_offset FROM quarantine ORDER BY 1";
    type Row = (String, String, i64, i64, i64, i64, i64);
    let before: Vec<Row> = flow.ledger.db.rows(row)?;
    assert_eq!(before.len(), 2);
    for (id, ..) in &before {
        done(&kafka, &flow, &["quarantine", "retry", id])?;
    }
    flow.wait_done(LIMIT)?;
    let after: Vec<Row> = flow.ledger.db.rows(row)?;
    for (before, after) in before.into_iter().zip(&after) {
        let (id, headers, times, first, offset, ..) = before;
        assert_eq!(*after, (id, headers, times + 1, first, offset, first, offset + 1));
    }
    assert_eq!((after.len(), open_rows(&flow)?), (2, 2));
    consumer.finish()?;
    // The auditor's client cannot read that header.
    flow.ledger.check()?;
    let list = done(&kafka, &flow, &["quarantine", "list", "-o", "json"])?.json()?;
    assert_eq!(list["messages"][0]["state"], "refused_again");

    // What went over the wire; the reader of the tests cannot read the other's name.
    let (topic, sender) = (&flow.topic, &headers.headers);
    let copies = PartitionOf(4).read(&kafka, topic)?;
    let [first, copy] = copies.as_slice() else { anyhow::bail!("{copies:?}") };
    assert_eq!((&first.value, &first.key), (&copy.value, &copy.key));
    assert_eq!(copy.headers[..3], sender[..]);
    assert_eq!(copy.headers[3..], [("postonce-retry".to_owned(), Some(format!("{topic}/4/0").into_bytes()))]);
    ensure!(copy.timestamp >= first.timestamp, "the copy carries the old time");
    Ok(())
}

/// One partition of a topic, read apart from the others.
struct PartitionOf(i32);

impl PartitionOf {
    fn read(&self, kafka: &Kafka, topic: &str) -> Result<Vec<Message>> {
        use rdkafka::Message as _;
        use rdkafka::consumer::{BaseConsumer, Consumer};
        use rdkafka::message::Headers;
        let reader: BaseConsumer =
            kafka.client().set("group.id", unique("one")).set("enable.partition.eof", "true").create()?;
        let mut list = rdkafka::TopicPartitionList::new();
        list.add_partition_offset(topic, self.0, rdkafka::Offset::Beginning)?;
        reader.assign(&list)?;
        let (mut found, deadline) = (Vec::new(), std::time::Instant::now() + LIMIT);
        loop {
            ensure!(std::time::Instant::now() < deadline, "no end of partition {}", self.0);
            match reader.poll(Duration::from_millis(100)) {
                Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => return Ok(found),
                Some(message) => {
                    let message = message?;
                    let headers = message.headers().into_iter().flat_map(Headers::iter);
                    found.push(Message {
                        key: message.key().map(<[u8]>::to_vec),
                        value: message.payload().map(<[u8]>::to_vec),
                        headers: headers.map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect(),
                        timestamp: message.timestamp().to_millis(),
                        ..Message::default()
                    });
                }
                None => {}
            }
        }
    }
}

/// Everything of quarantine that the topic decides.
fn rows(flow: &Flow) -> Result<Vec<String>> {
    flow.ledger.db.rows::<(String,)>(
        "SELECT concat_ws(' ', encode(message_hash, 'hex'), code, first_stream, first_offset, last_stream, last_offset,
                          times_seen, closed_at IS NOT NULL, coalesce(closed_stream::text, '-'), closed_offset)
         FROM quarantine ORDER BY 1",
    )
    .map(|rows| rows.into_iter().map(|(row,)| row).collect())
}

/// The same topic into a new ledger, in batches of one and all at once.
fn read_anew(flow: &mut Flow, more: &[&str]) -> Result<Vec<Vec<String>>> {
    ["1", "100000"]
        .into_iter()
        .map(|batch| {
            flow.ledger = Ledger::fresh("anew")?;
            flow.group = unique("anew");
            consume(flow, &[&["--batch", batch], more].concat())?;
            rows(flow)
        })
        .collect()
}

fn a_copy_that_is_accepted_closes_the_row_in_every_ledger() -> Result<()> {
    let kafka = kafka();
    let mut flow = Flow::new(&kafka, Ledger::fresh("accepted")?, "accepted", 3)?;
    let journal = r#"{"type":"journal.posted","resource":"books/1","updatedAt":"2024-01-02T00:00:00Z","data":{"currency":"EUR","author":"a","reason":"r","postings":[{"debit":"assets:bank:main","credit":"equity:capital","amount":7}]}}"#;
    flow.send([too_early("early/1"), too_early("early/2"), Message::new(journal).key("journal"), Message::new("{}")])?;
    consume(&flow, &[])?;
    assert_eq!((flow.ledger.outcomes()?.as_str(), open_rows(&flow)?), ("RRRR", 4));

    // Nobody is there to be asked.
    let asked = run(&kafka, &flow, &["quarantine", "retry", "--all", "--code", "future_time"])?;
    asked.refused(1, "Send again 2 refused messages? Nothing was done: say --yes")?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM actions")?, 0);
    let said = done(&kafka, &flow, &["quarantine", "retry", "--all", "--code", "future_time", "--yes", "-o", "json"])?;
    assert_eq!(said.json()?, serde_json::json!({"asked": 2, "sent": 2, "closed": 0, "failed": []}));
    // It shall stay dismissed, and the ledger still says that its copy was accepted.
    let dismissed = id_of(&flow, "key = 'early/2'")?;
    let list = done(&kafka, &flow, &["quarantine", "list"])?.text();
    ensure!(list.matches("retried 20").count() == 2, "{list}");
    done(&kafka, &flow, &["quarantine", "dismiss", &dismissed, "--why", "not wanted"])?;
    done(&kafka, &flow, &["quarantine", "retry", &id_of(&flow, "key = 'journal'")?])?;
    consume(&flow, &[])?;
    // The clock's are in; the journal was refused again.
    assert_eq!(open_rows(&flow)?, 2);
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 200);
    // Other rules of the operator's own, and once more.
    done(&kafka, &flow, &["quarantine", "retry", &id_of(&flow, "key = 'journal'")?, "--why", "allowed now"])?;
    consume(&flow, &["--kinds", "all"])?;
    assert_eq!((open_rows(&flow)?, flow.ledger.balance("assets:bank:main", "EUR")?), (1, 7));
    let accepted = done(&kafka, &flow, &["quarantine", "list", "--all-states", "-o", "json"])?.json()?;
    let states =
        |state: &str| accepted["messages"].as_array().into_iter().flatten().filter(|row| row["state"] == state).count();
    assert_eq!((states("accepted"), states("open")), (3, 1), "{accepted}");
    run(&kafka, &flow, &["quarantine", "retry", &dismissed])?
        .refused(1, "is not open: a copy of it was accepted at")?;

    // A restore or a new ledger comes to the same rows, closed by the same places.
    let clocks = |rows: &[String]| rows.iter().filter(|row| row.contains("future_time")).cloned().collect::<Vec<_>>();
    let live = rows(&flow)?;
    assert_eq!((live.len(), clocks(&live).len()), (4, 2));
    for anew in read_anew(&mut flow, &["--kinds", "all"])? {
        assert_eq!(clocks(&anew), clocks(&live));
        // Under these rules the journal was never refused.
        assert_eq!(anew.len(), 3);
        assert_eq!(flow.ledger.balance("assets:bank:main", "EUR")?, 7);
        assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 200);
    }
    flow.ledger.check_message_chain(&kafka.bootstrap(), &flow.topic)
}

fn the_order_within_a_batch_decides_as_in_batches_of_one() -> Result<()> {
    let kafka = kafka();
    let mut flow = Flow::new(&kafka, Ledger::fresh("order")?, "order", 1)?;
    let copy = |resource: &str| {
        Message { timestamp: None, ..too_early(resource) }.header("postonce-retry", format!("{}/0/0", flow.topic))
    };
    flow.send([
        // Refused, copied, and the first bytes once more: closed, and counts on.
        too_early("a"),
        copy("a"),
        too_early("a"),
        copy("a"),
        // A copy of what this ledger has not seen refused closes nothing that comes later.
        copy("b"),
        too_early("b"),
        // Another content of the same event is no copy of it.
        too_early("c"),
        Message { timestamp: None, ..payment("c", "succeeded", "2024-06-01T00:00:00Z", 5) }
            .header("postonce-retry", "x"),
        // The same bytes without the mark: nobody's decision.
        too_early("d"),
        Message { timestamp: None, ..too_early("d") },
    ])?;
    let [one, all] = <[Vec<String>; 2]>::try_from(read_anew(&mut flow, &[])?).expect("two ledgers");
    assert_eq!(one, all);
    let told: Vec<(String, i64, Option<i64>)> = flow
        .ledger
        .db
        .rows("SELECT convert_from(key, 'UTF8'), times_seen, closed_offset FROM quarantine ORDER BY 1")?;
    let row = |key: &str, times: i64, closed: Option<i64>| (key.to_owned(), times, closed);
    assert_eq!(told, [row("a", 2, Some(1)), row("b", 1, None), row("c", 1, None), row("d", 1, None)]);
    Ok(())
}

fn decisions_are_kept_with_who_and_why() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("decisions")?, "decisions", 1)?;
    let poison =
        |n: usize| Message::new(if n < 5 { format!("no json {n}") } else { "{}".to_owned() }).key(format!("{n}"));
    flow.send((0..8).map(poison))?;
    consume(&flow, &[])?;
    let id = id_of(&flow, "key = '0'")?;
    let dismiss = |name: &str, more: &[&str]| run(&kafka, &flow, &[&["quarantine", "dismiss", name], more].concat());
    dismiss(&id, &[])?.refused(2, "--why")?;
    dismiss(&id, &["--why", " "])?.refused(2, "say why")?;
    dismiss(&id[..7], &["--why", "x"])?.refused(2, "8 to 64 hex digits")?;
    dismiss("00000000", &["--why", "x"])?
        .refused(1, "there is no refused message named 00000000; `postonce quarantine list`")?;
    dismiss(&id, &["--why", "x", "--all"])?.refused(2, "cannot be used with")?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM actions")?, 0);

    ensure!(dismiss(&id[..8], &["--why", "test traffic"])?.code == 0, "by eight digits");
    dismiss(&id, &["--why", "x"])?.refused(1, "is not open: it was dismissed at")?;
    run(&kafka, &flow, &["quarantine", "retry", &id])?.refused(1, "is not open")?;
    let by_place = format!("{}/0/1", flow.topic);
    ensure!(dismiss(&by_place, &["--why", "x", "--person", "Grace"])?.code == 0, "by place");
    // Two hashes that begin alike.
    flow.ledger.db.execute(&format!(
        "INSERT INTO quarantine SELECT (repeat_row).* FROM (SELECT jsonb_populate_record(q, jsonb_build_object(
             'message_hash', '\\x{}' || repeat('0', 56))) AS repeat_row FROM quarantine q LIMIT 1) r",
        &id[..8]
    ))?;
    let two = dismiss(&id[..8], &["--why", "x"])?;
    two.refused(1, "names several refused messages")?;
    ensure!(two.stderr.contains(&id), "{}", two.stderr);
    flow.ledger.db.execute(&format!(
        "DELETE FROM quarantine WHERE message_hash = '\\x{}{}'",
        &id[..8],
        "0".repeat(56)
    ))?;

    dismiss("--all", &["--code", "bad_json", "--why", "noise"])?
        .refused(1, "Dismiss 3 refused messages? Nothing was done")?;
    let many = dismiss("--all", &["--code", "bad_json", "--why", "noise", "--yes", "-o", "json"])?;
    assert_eq!(many.json()?, serde_json::json!({"asked": 3, "dismissed": 3, "person": "Ada"}));
    dismiss("--all", &["--code", "bad_json", "--why", "noise", "--yes"])?.refused(1, "no open message fits")?;
    assert_eq!(open_rows(&flow)?, 3);
    type Row = (String, String, String, String, Option<String>, i64);
    let actions: Vec<Row> = flow.ledger.db.rows(
        "SELECT action, person, role, code, why, count(*) FROM actions a JOIN quarantine q USING (message_hash, code)
         WHERE q.closed_at IS NOT NULL AND a.acted_at <= q.closed_at + interval '1 minute' GROUP BY 1, 2, 3, 4, 5 ORDER BY 2, 5",
    )?;
    let role: String = flow.ledger.db.one("SELECT session_user::text")?;
    let row = |person: &str, why: &str, many: i64| {
        let dismissed = "quarantine_dismiss".to_owned();
        (dismissed, person.to_owned(), role.clone(), "bad_json".to_owned(), Some(why.to_owned()), many)
    };
    assert_eq!(actions, [row("Ada", "noise", 3), row("Ada", "test traffic", 1), row("Grace", "x", 1)]);
    let shown = done(&kafka, &flow, &["quarantine", "show", &id])?.text();
    ensure!(
        shown.contains("quarantine_dismiss (bad_json) by Ada, role") && shown.contains(": test traffic"),
        "{shown}"
    );

    // What is dismissed stays so, and counts on.
    flow.send([poison(0)])?;
    consume(&flow, &[])?;
    assert_eq!(open_rows(&flow)?, 3);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT times_seen FROM quarantine WHERE key = '0'")?, 2);
    Ok(())
}

fn a_page_goes_on_where_the_last_one_ended() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("pages")?, "pages", 1)?;
    flow.send((0..25).map(|n| Message::new(format!("no json {n}"))))?;
    consume(&flow, &[])?;
    let (mut found, mut before) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["quarantine", "list", "--limit", "10", "-o", "json", "--code", "bad_json"];
        args.extend(before.iter().flat_map(|cursor| ["--before", cursor.as_str()]));
        let page = done(&kafka, &flow, &args)?.json()?;
        found.extend(page["messages"].as_array().into_iter().flatten().map(|row| row["id"].to_string()));
        match page["next"].as_str() {
            Some(next) => before = Some(next.to_owned()),
            None => break,
        }
    }
    let many = found.len();
    found.sort();
    found.dedup();
    assert_eq!((many, found.len()), (25, 25));
    let elsewhere = done(&kafka, &flow, &["quarantine", "list", "--topic", "elsewhere"])?.text();
    assert_eq!(elsewhere.lines().count(), 1, "{elsewhere}");
    let earlier = done(&kafka, &flow, &["quarantine", "list", "--until", "2020-01-01"])?.text();
    assert_eq!(earlier.lines().count(), 1, "{earlier}");
    run(&kafka, &flow, &["quarantine", "list", "--before", "1.5.x.y"])?.refused(1, "no cursor of this list")?;
    Ok(())
}

fn incidents_are_shown_with_both_contents_and_closed() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("incidents")?, "incidents", 1)?;
    let time = "2024-01-02T00:00:00Z";
    flow.send([
        payment("stripe/a/1", "succeeded", time, 100).header("first", "yes"),
        payment("stripe/a/1", "succeeded", time, 250),
        payment("stripe/a/2", "succeeded", time, 100),
        payment("stripe/a/2", "succeeded", "2024-01-03T00:00:00Z", 90),
    ])?;
    consume(&flow, &[])?;
    let list = done(&kafka, &flow, &["incidents", "list", "-o", "json"])?.json()?;
    let incidents = list["incidents"].as_array().context("incidents")?;
    let codes: Vec<&str> = incidents.iter().filter_map(|one| one["code"].as_str()).collect();
    assert_eq!(incidents.len(), 2, "{list}");
    ensure!(codes.contains(&"conflict") && codes.contains(&"restatement"), "{codes:?}");
    let place = format!("{}/0/1", flow.topic);
    let shown = done(&kafka, &flow, &["incidents", "show", &place, "-o", "json"])?.json()?;
    let contents = shown["contents"].as_array().context("contents")?;
    let amount = |content: &Value| {
        let text = content["value"]["text"].as_str().unwrap_or_default();
        serde_json::from_str::<Value>(text).map_or(Value::Null, |event| event["data"]["amount"].clone())
    };
    assert_eq!(contents.iter().map(amount).collect::<Vec<_>>(), [100, 250]);
    assert_eq!(contents[0]["headers"][0]["name"]["text"], "first");
    let stand: Vec<&Value> = contents.iter().filter(|one| one["stands"] == true).collect();
    assert_eq!(stand.len(), 1);
    assert_eq!(amount(stand[0]), flow.ledger.balance("assets:psp:stripe", "EUR")? - 90);
    assert_eq!(shown["history"]["events"].as_array().map(Vec::len), Some(2));
    let text = done(&kafka, &flow, &["incidents", "show", &place])?.text();
    ensure!(text.contains("\"amount\":100") && text.contains("\"amount\":250"), "{text}");
    // Without brokers the ledger alone is asked.
    let event = shown["incident"]["event_id"].as_str().context("an id")?;
    let args = ["incidents", "show", &event[..16], "--code", "conflict"];
    let env = [("DATABASE_URL", flow.ledger.url.as_str())];
    let text = PostonceProcess::run(&args, &env, LIMIT)?;
    ensure!(text.contains("its bytes are in the topic; --brokers shows them"), "{text}");

    run(&kafka, &flow, &["incidents", "close", &place])?.refused(2, "--why")?;
    done(&kafka, &flow, &["incidents", "close", &place, "--why", "the second is right"])?;
    run(&kafka, &flow, &["incidents", "close", &place, "--why", "x"])?.refused(1, "is not open: it was closed at")?;
    run(&kafka, &flow, &["incidents", "close", "no/0/7", "--why", "x"])?
        .refused(1, "there is no incident named no/0/7")?;
    let shown = done(&kafka, &flow, &["incidents", "show", &place])?.text();
    ensure!(shown.contains("incident_close (conflict) by Ada") && shown.contains("the second is right"), "{shown}");
    let all = ["incidents", "close", "--all", "--kind", "payment", "--why", "seen"];
    run(&kafka, &flow, &all)?.refused(1, "Close 1 incident? Nothing was done")?;
    done(&kafka, &flow, &[&all[..], &["--yes"]].concat())?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM incidents_open")?, 0);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM actions WHERE action = 'incident_close'")?, 2);
    flow.check()
}

fn an_operator_can_decide_and_cannot_write_the_ledger() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("operator")?, "operator", 1)?;
    let time = "2024-01-02T00:00:00Z";
    flow.send([
        Message::new("no json").key("a"),
        Message::new("no json").key("b"),
        payment("stripe/a/1", "succeeded", time, 100),
        payment("stripe/a/1", "succeeded", time, 250),
    ])?;
    consume(&flow, &[])?;
    let (operator, auditor) = (unique("operator"), unique("auditor"));
    flow.ledger.db.execute(&format!(
        "CREATE ROLE {operator} LOGIN PASSWORD 'secret' IN ROLE postonce_operator;
         CREATE ROLE {auditor} LOGIN PASSWORD 'secret' IN ROLE postonce_auditor, postonce_payload_reader"
    ))?;
    let place = flow.ledger.url.rsplit_once('@').context("no @ in the URL")?.1.to_owned();
    let url = |role: &str| format!("postgres://{role}:secret@{place}");
    let (a, b) = (id_of(&flow, "key = 'a'")?, id_of(&flow, "key = 'b'")?);
    let incident = format!("{}/0/3", flow.topic);
    let decisions: [&[&str]; 3] = [
        &["quarantine", "retry", &a],
        &["quarantine", "dismiss", &b, "--why", "x"],
        &["incidents", "close", &incident, "--why", "x"],
    ];
    let questions: [&[&str]; 4] = [
        &["quarantine", "list"],
        &["quarantine", "show", &a],
        &["incidents", "list"],
        &["incidents", "show", &incident],
    ];
    for question in questions {
        for role in [&auditor, &operator] {
            let said = run_as(&kafka.bootstrap(), &url(role), question)?;
            ensure!(said.code == 0, "{role} {question:?}: {}", said.stderr);
        }
    }
    for decision in decisions {
        run_as(&kafka.bootstrap(), &url(&auditor), decision)?.refused(1, "permission denied")?;
        let said = run_as(&kafka.bootstrap(), &url(&operator), decision)?;
        ensure!(said.code == 0, "{decision:?}: {}", said.stderr);
    }
    // The auditor's retry was refused before anything was sent.
    consume(&flow, &[])?;
    assert_eq!(flow.ledger.outcomes()?.len(), 5);
    let own = Db::new(&url(&operator));
    let tables =
        ["postings", "events", "resources", "accounts", "balances", "batches", "streams", "conflicts", "rules"];
    let writes = tables.iter().flat_map(|table| {
        [format!("INSERT INTO {table} SELECT * FROM {table} LIMIT 1"), format!("DELETE FROM {table}")]
    });
    let more = [
        "UPDATE balances SET debits = 0",
        "UPDATE streams SET next_offset = 0",
        "UPDATE quarantine SET value = NULL",
        "UPDATE quarantine SET closed_stream = 1",
        "UPDATE incidents SET detail = ''",
        "DELETE FROM actions",
        "UPDATE actions SET person = 'x'",
        "INSERT INTO actions (action_id, action, person, role) VALUES (gen_random_uuid(), 'incident_close', 'x', 'y')",
        "INSERT INTO actions (action_id, action, person, acted_at) VALUES (gen_random_uuid(), 'incident_close', 'x', now())",
    ];
    for statement in writes.chain(more.map(str::to_owned)) {
        let told = format!("{:#}", own.execute(&statement).err().with_context(|| format!("{statement} was done"))?);
        ensure!(told.contains("permission denied"), "{statement}: {told}");
    }
    let roles: Vec<(String,)> = own.rows("SELECT DISTINCT role FROM actions")?;
    assert_eq!(roles, [(operator,)]);
    flow.check()
}

fn a_retry_goes_to_the_cluster_of_the_first_or_nowhere() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("cluster")?, "cluster", 1)?;
    flow.send([Message::new("no json")])?;
    consume(&flow, &[])?;
    let id = id_of(&flow, "true")?;
    let other: MockCluster<'static, DefaultProducerContext> = MockCluster::new(1)?;
    other.create_topic(&flow.topic, 1, 1)?;
    let (there, url) = (other.bootstrap_servers(), &flow.ledger.url);
    run_as(&there, url, &["quarantine", "retry", &id])?
        .refused(1, "or, if the ledger reads from these now, name the topic there with --to")?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM actions")?, 0, "what cannot be sent is not recorded");
    let said = run_as(&there, url, &["quarantine", "retry", &id, "--to", &flow.topic])?;
    ensure!(said.code == 0, "{}", said.stderr);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM actions WHERE action = 'quarantine_retry'")?, 1);
    assert_eq!(read_all(&there, &flow.topic)?.len(), 1);
    run(&kafka, &flow, &["quarantine", "retry", &id, "--to", "no-such-topic"])?.refused(1, "no-such-topic")
}
