//! What somebody would send who means harm: through Kafka, and through the names that
//! people type.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Flow, Kafka, Ledger, Message, PostonceProcess, Said, Sender, Trial, kafka, payment, payments, repository, trials,
};
use serde_json::Value;

pub fn tests() -> Vec<Trial> {
    trials![
        sql_in_every_string,
        strings_of_a_megabyte,
        nothing_steers_the_terminal,
        no_cell_of_a_spreadsheet_is_a_formula,
        a_batch_that_swells_when_it_is_unpacked,
        a_batch_that_swells_beyond_the_clients_limit
    ]
}

const LIMIT: Duration = Duration::from_secs(120);

/// Each would do harm where text is pasted into a statement, a format or a pattern.
const SQL: [&str; 8] = [
    "'; DROP TABLE postings; --",
    "\"; TRUNCATE balances CASCADE; --",
    "' OR '1'='1",
    "x') ON CONFLICT DO NOTHING; DELETE FROM quarantine; --",
    "\\'; SELECT pg_sleep(60); --",
    "$$; UPDATE streams SET next_offset = 0; $$",
    "{provider}%s%n$1:name",
    "a\u{2028}b,c\"d'e;f|g`h$(reboot)",
];

/// Events of every type that the rules know.
fn samples() -> Result<Vec<Value>> {
    let text = fs::read_to_string(repository().join("schema/testdata/samples.jsonl"))?;
    let mut seen = std::collections::BTreeSet::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let sample: Value = serde_json::from_str(line)?;
        let (true, Some(value)) = (sample["code"].is_null(), sample["value"].as_str()) else { continue };
        let Ok(event) = serde_json::from_str::<Value>(value) else { continue };
        if event["type"].as_str().is_some_and(|name| seen.insert(name.to_owned())) {
            events.push(event);
        }
    }
    ensure!(events.len() > 30, "the samples know only {} types", events.len());
    Ok(events)
}

/// The places of all strings in it.
fn strings(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(at.to_owned()),
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| strings(value, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, value)| strings(value, &format!("{at}/{n}"), found));
        }
        _ => {}
    }
}

fn sql_in_every_string() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("sql")?, "sql", 2)?;
    let mut sent = 0_i64;
    let mut messages = Vec::new();
    for event in samples()? {
        let mut places = Vec::new();
        strings(&event, "", &mut places);
        for text in SQL {
            for place in &places {
                let mut hostile = event.clone();
                *hostile.pointer_mut(place).context("no such place")? = text.into();
                messages.push(Message::new(hostile.to_string()).key(text).header(text, text));
                sent += 1;
            }
        }
    }
    flow.send(messages)?;
    let consumer = flow.consume_through(&flow.ledger.login(&["postonce_consumer"])?, &["--kinds", "all"])?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    consumer.finish()?;
    let db = &flow.ledger.db;
    assert_eq!(flow.ledger.offsets()?, sent);
    // They stand there as they were sent: nothing was cut, quoted or run.
    for text in SQL {
        let quoted = text.replace('\'', "''");
        let paths: i64 = db.one(&format!("SELECT count(*) FROM resources WHERE path = '{quoted}'"))?;
        ensure!(paths > 0, "no resource is called {text:?}");
    }
    assert_eq!(db.one::<i64>("SELECT count(*) FROM quarantine WHERE code = 'internal'")?, 0);
    flow.ledger.check()?;
    for text in SQL {
        for question in [
            &["balances", text][..],
            &["statement", text],
            &["trace", text],
            &["export", "--format", "csv", "--account", text],
            &["quarantine", "list", "--code", text],
            &["incidents", "list", "--resource", text, "--code", text, "--kind", text],
        ] {
            // Found or not found, but no complaint of the database.
            let said = Said::by(&flow, question)?;
            ensure!(said.code <= 2 && !said.stderr.contains("refused a query"), "{question:?}: {}", said.stderr);
        }
    }
    let said = Said::by(&flow, &["verify"])?;
    ensure!(said.code == 0, "{}\n{}", said.stdout, said.stderr);
    Ok(())
}

fn strings_of_a_megabyte() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("megabyte")?, "megabyte", 1)?;
    let long = "m".repeat(1_000_000);
    let event = |resource: &str, merchant: &str, more: &str| {
        format!(
            r#"{{"type":"payment.succeeded","resource":"{resource}","updatedAt":"2026-01-02T00:00:00Z"{more},"data":{{"provider":"p","merchant":"{merchant}","currency":"EUR","amount":1,"fee":0}}}}"#
        )
    };
    let cases = [
        (Message::new(event(&long, "m", "")), Some("bad_resource")),
        (Message::new(event("a/b/1", &long, "")), Some("bad_text")),
        (Message::new(event("a/b/2", "m", &format!(r#","source":"{long}""#))), None),
        (Message::new(event("a/b/3", "m", &format!(r#","note":"{long}""#))), None),
        (Message::new(event("a/b/4", "m", &format!(r#","{long}":1"#))), None),
        (Message::new(event("a/b/5", "m", &format!(r#","note":0.{}"#, "1".repeat(1_000_000)))), None),
        (Message::new(event("a/b/6", "m", "")).key(long.as_str()), None),
        (Message::new(event("a/b/7", "m", "")).header("h", long.as_str()), None),
        (Message::new(event("a/b/8", "m", "")).header(&long, "v"), None),
        (Message::new("[".repeat(1_000_000)), Some("too_deep")),
        (Message::new(event("a/b/10", "m", "").replace("payment.succeeded", &long)), Some("bad_type")),
        (Message::new(event("a/b/11", "m", "").replace("2026-01-02T00:00:00Z", &long)), Some("bad_time")),
        (Message::new(event("a/b/9", "m", &format!(r#","note":"{long}{long}""#))), Some("too_large")),
    ];
    let expected: Vec<Option<&str>> = cases.iter().map(|(_, code)| *code).collect();
    flow.send(cases.into_iter().map(|(message, _)| message))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    // A log is for people: no megabyte stands in it.
    ensure!(consumer.stderr().len() < 100_000, "the log has {} bytes", consumer.stderr().len());
    consumer.finish()?;
    let codes: Vec<(i64, String)> =
        flow.ledger.db.rows("SELECT first_offset, code FROM quarantine ORDER BY first_offset")?;
    let found =
        |offset: usize| codes.iter().find(|(at, _)| usize::try_from(*at) == Ok(offset)).map(|(_, code)| &**code);
    for (offset, code) in expected.iter().enumerate() {
        ensure!(found(offset) == *code, "message {offset}: {:?} instead of {code:?}", found(offset));
    }
    let reasons: i32 = flow.ledger.db.one("SELECT max(length(reason) + length(place)) FROM quarantine")?;
    ensure!(reasons < 1_000, "a reason has {reasons} characters");
    for question in [&["quarantine", "list"][..], &["quarantine", "show", &format!("{}/0/0", flow.topic)]] {
        let said = Said::by(&flow, question)?;
        ensure!(said.code == 0 && said.stdout.len() < 20_000, "{question:?}: {} bytes", said.stdout.len());
    }
    flow.check()
}

/// Ends colours, clears the screen, sets the title, turns the writing direction.
const STEERING: [&str; 4] = ["\u{1b}[2J\u{1b}]0;owned\u{7}", "\u{9b}31m", "\u{202e}gpj.exe", "\u{2066}a\u{2069}\r"];

/// A control character other than the end of a line, or a change of direction.
fn steers(c: char) -> bool {
    let direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (c.is_control() && c != '\n') || direction
}

/// All that the commands print of names, reasons and bytes that came from outside.
fn nothing_steers_the_terminal() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("terminal")?, "terminal", 1)?;
    let mut messages = Vec::new();
    for event in samples()? {
        let mut places = Vec::new();
        strings(&event, "", &mut places);
        for text in STEERING {
            for place in &places {
                let mut hostile = event.clone();
                *hostile.pointer_mut(place).context("no such place")? = text.into();
                messages.push(Message::new(hostile.to_string()).key(text).header(text, text));
            }
        }
    }
    // Direction marks are no control characters: names may hold them, accounts show them encoded.
    let (path, time) = ("p/\u{202e}gpj.exe/1", "2026-01-02T00:00:00Z");
    messages.extend([payment(path, "succeeded", time, 100), payment(path, "succeeded", time, 250)]);
    messages.extend(STEERING.map(Message::new));
    messages.push(Message::new(r#"{"\u001b[2J":1,"\u001b[2J":2,"type":"\u001b[2J.x"}"#));
    flow.send(messages)?;
    let consumer = flow.consume(&["--log", "debug", "--log-format", "human"])?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    let log = consumer.stderr();
    consumer.finish()?;
    ensure!(!log.contains(steers), "the log: {}", around(&log));
    let ids: Vec<(String,)> = flow.ledger.db.rows("SELECT encode(message_hash, 'hex') FROM quarantine")?;
    let conflict: i64 = flow.ledger.db.one("SELECT message_offset FROM incidents WHERE code = 'conflict' LIMIT 1")?;
    let incident = format!("{}/0/{conflict}", flow.topic);
    Said::by(&flow, &["incidents", "close", &incident, "--why", "x", "--person", "\u{202e}ada"])?.complaint(0, &[])?;
    let account: String =
        flow.ledger.db.one("SELECT path FROM accounts WHERE path LIKE '%\\%E2\\%80\\%AE%' LIMIT 1")?;
    let mut questions: Vec<Vec<&str>> = vec![
        vec!["status"],
        vec!["balances"],
        vec!["statement", &account],
        vec!["trace", path],
        vec!["quarantine", "list", "--limit", "1000"],
        vec!["incidents", "list", "--all-states"],
        vec!["incidents", "show", &incident],
        vec!["replay"],
        vec!["verify"],
        vec!["checkpoint"],
        // Not found: the complaint repeats what was asked for.
        vec!["trace", "\u{202e}\u{1b}[2J"],
        vec!["statement", "\u{202e}\u{1b}[2J"],
    ];
    questions.extend(ids.iter().step_by(7).map(|(id,)| vec!["quarantine", "show", id.as_str()]));
    for question in &questions {
        for output in ["table", "json"] {
            let both =
                if question[0] == "checkpoint" { question.clone() } else { [&question[..], &["-o", output]].concat() };
            let said = Said::by(&flow, &both)?;
            ensure!(!said.stdout.contains(steers), "{both:?}: {}", around(&said.stdout));
            ensure!(!said.stderr.contains(steers), "{both:?} on stderr: {}", around(&said.stderr));
        }
    }
    for format in ["hledger", "beancount", "ledger"] {
        let said = Said::by(&flow, &["export", "--format", format])?;
        ensure!(said.code == 0 && !said.stdout.contains(steers), "{format}: {}", around(&said.stdout));
    }
    flow.check()
}

fn around(text: &str) -> String {
    let at = text.find(steers).unwrap_or(0);
    text[text.floor_char_boundary(at.saturating_sub(80))..text.floor_char_boundary(at + 80)].escape_debug().to_string()
}

/// As a spreadsheet reads it: a cell with one of these in front is computed.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

fn no_cell_of_a_spreadsheet_is_a_formula() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("formula")?, "formula", 1)?;
    let names = [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-1+1",
        "@SUM(1)",
        " =1+1",
        "＝1+1",
        "'=1",
        "''",
        "plain/a/1",
        "a=b",
        "=\"a,b\"",
        "=HYPERLINK(\"http://x\",\"y\")",
    ];
    let time = "2026-01-02T00:00:00Z";
    flow.send(names.map(|name| payment(&name.replace('"', "\\\""), "succeeded", time, 100)))?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    consumer.finish()?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM resources")?, i64::try_from(names.len())?);
    let export = PostonceProcess::run(&["export", "--format", "csv"], &[("DATABASE_URL", &flow.ledger.url)], LIMIT)?;
    // Python's reader: somebody else's idea of CSV.
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), &export)?;
    let script =
        "import csv,json,sys; print(json.dumps(list(csv.reader(open(sys.argv[1], newline='', encoding='utf-8')))))";
    let read = std::process::Command::new("python3").args(["-c", script]).arg(file.path()).output()?;
    let rows: Vec<Vec<String>> = serde_json::from_slice(&read.stdout)?;
    let (resource, numbers) = (3, [10, 11]);
    let mut seen = Vec::new();
    for row in &rows[1..] {
        for (column, cell) in row.iter().enumerate() {
            let number = numbers.contains(&column) && cell.parse::<f64>().is_ok();
            ensure!(number || !cell.trim_start().starts_with(FORMULA), "column {column}: {cell}");
        }
        // What --help says: one apostrophe in front, and only there, is ours.
        seen.push(row[resource].strip_prefix('\'').unwrap_or(&row[resource]).to_owned());
    }
    seen.sort_unstable();
    seen.dedup();
    let mut expected = names.map(str::to_owned).to_vec();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    flow.check()
}

/// Zeros: 200 MB of them are 200 KB in Kafka.
const SWOLLEN: usize = 200_000_000;

/// Packs what nobody else would.
fn bomber(kafka: &Kafka, codec: &str) -> Result<Sender> {
    Sender::with(
        &kafka.bootstrap(),
        &[
            ("compression.type", codec),
            ("message.max.bytes", "300000000"),
            ("batch.size", "300000000"),
            ("batch.num.messages", "1000000"),
            ("queue.buffering.max.kbytes", "1000000"),
            ("queue.buffering.max.messages", "1000000"),
            ("linger.ms", "2000"),
        ],
    )
}

/// zstd is unpacked up to a limit of the client: the consumer stops in front of the batch,
/// and goes on where a person has raised it.
fn a_batch_that_swells_beyond_the_clients_limit() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("limit")?, "limit", 1)?;
    flow.send(payments("before", 10))?;
    bomber(&kafka, "zstd")?.send(&flow.topic, [Message::new(vec![b' '; SWOLLEN])])?;
    flow.send(payments("after", 10))?;
    let mut consumer = flow.consume(&["--workers", "1"])?;
    assert_eq!(consumer.exit_code(LIMIT)?, 15, "{}", consumer.stderr());
    assert_eq!(flow.ledger.offsets()?, 10, "all before it is posted, and nothing is passed over");
    let consumer = flow.consume(&["--workers", "1", "-X", "receive.message.max.bytes=300000000"])?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    consumer.finish()?;
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM events")?, 20);
    // The auditor's client has the usual limit, too.
    flow.ledger.check()
}

/// Within what the broker takes. In memory it must not be more than the unpacked batch and
/// what a consumer needs anyway, and the money goes on.
fn a_batch_that_swells_when_it_is_unpacked() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("bomb")?, "bomb", 1)?;
    let bomber = bomber(&kafka, "gzip")?;
    flow.send(payments("before", 10))?;
    bomber.send(&flow.topic, [Message::new(vec![b' '; SWOLLEN])])?;
    // The same in many messages of one batch, each small enough.
    bomber.send(&flow.topic, (0..200).map(|_| Message::new(vec![b' '; SWOLLEN / 200])))?;
    flow.send(payments("after", 10))?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    let peak = peak_megabytes(consumer.pid())?;
    consumer.finish()?;
    eprintln!("peak memory of the consumer: {peak} MB");
    ensure!(peak < 1_000, "the consumer needed {peak} MB");
    let stored: i64 =
        flow.ledger.db.one("SELECT max(octet_length(value))::bigint FROM quarantine WHERE code = 'too_large'")?;
    assert_eq!(stored, i64::try_from(SWOLLEN)?);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM events")?, 20);
    flow.check()
}

/// The most memory that a process has had.
fn peak_megabytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? / 1_024)
}
