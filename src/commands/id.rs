//! `postonce id`: which event is this? The same decoder as the consumer's.

use super::lines::{Line, Lines};
use crate::args::{Output, OutputArgs, RulesArgs};
use crate::table;
use postonce_schema::{
    Decoder, Event, EventId, Header, Kinds, MAX_MESSAGE_BYTES, Message, Position, PostingAmount, Reject,
};
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
The id is SHA-256 over four lines (postonce:v1, type, resource, updatedAt in UTC with
six decimals), so anyone can compute it; --explain shows the bytes. The consumer's
own decoder reads the event: what is refused here would land in quarantine, with the
same code. (Only the consumer can judge updatedAt against the clock of Kafka and
whether its topic may carry journals.)

Exit codes: 0 every event is valid; 1 one was refused or another error; 2 wrong usage.

Examples:
  postonce id < event.json
  postonce id --explain event.json
  postonce generate --events 100 | postonce id | sort | uniq -d";

/// Print the id of events, or why they would be refused
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// One event, or JSONL with an event a line; `-` is standard input
    #[arg(env = "POSTONCE_ID_FILE", default_value = "-")]
    pub file: PathBuf,

    /// Show what the id and the fingerprint are made of, and what the event would post
    #[arg(long, env = "POSTONCE_EXPLAIN")]
    pub explain: bool,

    /// The events are CloudEvents 1.0 in structured mode
    #[arg(long, env = "POSTONCE_STRUCTURED")]
    pub structured: bool,

    #[command(flatten)]
    pub rules: RulesArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// What is known of one event of the input.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Event(Box<Explained>),
    Refused { line: usize, code: &'static str, place: String, reason: String },
}

#[derive(Serialize)]
struct Explained {
    line: usize,
    id: String,
    preimage: String,
    #[serde(rename = "type")]
    type_name: String,
    kind: String,
    state: String,
    rank: u16,
    rules_version: i32,
    resource: String,
    resource_id: String,
    updated_at: String,
    source: Option<String>,
    fingerprint: String,
    fingerprint_preimage: String,
    /// What the resource holds in this state.
    position: Vec<serde_json::Value>,
    #[serde(skip)]
    postings: Vec<PostingAmount>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rules = args.rules.read()?;
    let decoder = Decoder { kinds: Kinds::All, ..Decoder::new(rules) };
    let mut any_refused = false;
    let mut answers = Vec::new();
    let read = each_event(&mut Lines::open(&args.file)?, |line, bytes| {
        let answer = answer(&decoder, args.structured, line, bytes);
        any_refused |= matches!(answer, Answer::Refused { .. });
        match args.output.output {
            Output::Json => answers.push(answer),
            Output::Table => show(&answer, args.explain)?,
        }
        Ok(())
    });
    match read {
        // Whoever reads the ids has seen enough (`| head`): no reason to read on.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {}
        read => read?,
    }
    if args.output.output == Output::Json {
        table::print(&table::json(&answers)?)?;
    }
    Ok(if any_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Calls `act` for each event: a line, or the whole input if its first line is not
/// JSON by itself and all of it is, as when one event stands on many lines.
fn each_event(input: &mut Lines, mut act: impl FnMut(usize, &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut held: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut bytes = 0;
    // Held back only as long as this may still be one event.
    while bytes <= MAX_MESSAGE_BYTES {
        match input.next()? {
            Line::Text(number, line) => {
                bytes += line.len() + 1;
                held.push((number, line.to_vec()));
            }
            Line::TooLong(number) => {
                held.push((number, vec![b' '; MAX_MESSAGE_BYTES + 1]));
                break;
            }
            Line::End | Line::Interrupted => break,
        }
        if held.len() == 1 && is_json(&held[0].1) {
            break;
        }
    }
    let whole = held.iter().map(|(_, line)| line.as_slice()).collect::<Vec<_>>().join(&b'\n');
    match held.first() {
        Some((first, _)) if held.len() > 1 && is_json(&whole) => return act(*first, &whole),
        _ => held.iter().try_for_each(|(number, line)| act(*number, line))?,
    }
    loop {
        match input.next()? {
            Line::Text(number, line) => act(number, line)?,
            Line::TooLong(number) => act(number, &vec![b' '; MAX_MESSAGE_BYTES + 1])?,
            Line::End | Line::Interrupted => return Ok(()),
        }
    }
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

fn answer(decoder: &Decoder, structured: bool, line: usize, bytes: &[u8]) -> Answer {
    let content_type = Header { name: b"content-type", value: Some(b"application/cloudevents+json") };
    let headers: &[Header<'_>] = if structured { &[content_type] } else { &[] };
    match decoder.decode(Message { value: Some(bytes), headers, timestamp: None }) {
        Ok(event) => Answer::Event(Box::new(Explained::new(line, &event))),
        Err(reject) => refused(line, &reject),
    }
}

fn refused(line: usize, reject: &Reject) -> Answer {
    Answer::Refused { line, code: reject.code(), place: reject.place().to_owned(), reason: reject.to_string() }
}

impl Explained {
    fn new(line: usize, event: &Event<'_>) -> Self {
        let (kind, state) = (event.kind, event.state);
        let postings = Position::of(state, &event.facts).minus(Position::default());
        let position = postings.iter().map(|posting| {
            let PostingAmount { debit, credit, amount } = posting;
            json!({
                "debit": debit.path.as_str(), "credit": credit.path.as_str(),
                "amount": amount.to_string(), "asset": debit.asset.as_str(),
            })
        });
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Self {
            line,
            id: event.id.to_string(),
            preimage: EventId::preimage(&kind.name, &state.name, &event.resource, event.updated_at),
            type_name: event.type_name(),
            kind: kind.name.clone(),
            state: state.name.clone(),
            rank: state.rank,
            rules_version: event.version.number,
            resource: event.resource.clone().into_owned(),
            resource_id: hex(event.resource_id.as_bytes()),
            updated_at: event.updated_at.to_string(),
            source: event.source.clone().map(|source| source.into_owned()),
            fingerprint: hex(event.fingerprint.as_bytes()),
            fingerprint_preimage: event.facts.preimage(kind, state, &event.resource, event.updated_at),
            position: position.collect(),
            postings,
        }
    }
}

fn show(answer: &Answer, explain: bool) -> anyhow::Result<()> {
    match answer {
        Answer::Refused { line, code, place, reason } => {
            let place = if place.is_empty() { "the message" } else { place };
            eprintln!("line {line}: {code} at {}: {}", table::visible(place), table::visible(reason));
        }
        Answer::Event(event) if explain => io::stdout().write_all(explanation(event).as_bytes())?,
        Answer::Event(event) => writeln!(io::stdout(), "{}", event.id)?,
    }
    Ok(())
}

fn explanation(event: &Explained) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{}", event.id);
    let _ = writeln!(out, "  kind         {}", event.kind);
    let _ =
        writeln!(out, "  state        {} (rank {}, rules version {})", event.state, event.rank, event.rules_version);
    let _ = writeln!(out, "  resource     {}", table::visible(&event.resource));
    let _ = writeln!(out, "  resource id  {}", event.resource_id);
    let _ = writeln!(out, "  updatedAt    {}", event.updated_at);
    let _ = writeln!(out, "  source       {}", table::or_dash(event.source.as_ref()));
    let _ = writeln!(out, "\n  The id is SHA-256 over these lines, no line feed at the end:");
    push_lines(&mut out, &event.preimage);
    let _ = writeln!(out, "  {}", shell(event));
    let _ = writeln!(out, "\n  The fingerprint {} is the first 16 bytes of SHA-256 over", event.fingerprint);
    let _ = writeln!(out, "  these lines, each with a line feed:");
    push_lines(&mut out, &event.fingerprint_preimage);
    let _ = writeln!(
        out,
        "\n  In this state the resource holds{}",
        if event.postings.is_empty() { " no money." } else { ":" }
    );
    for PostingAmount { debit, credit, amount } in &event.postings {
        let units = postonce_consumer::read::MinorUnits(i128::from(*amount));
        let asset = debit.asset.as_str();
        let _ = writeln!(
            out,
            "    {} <- {}  {} {asset}",
            debit.path.as_str(),
            credit.path.as_str(),
            table::amount(units, asset)
        );
    }
    out
}

fn push_lines(out: &mut String, preimage: &str) {
    for line in preimage.lines() {
        let _ = writeln!(out, "    {}", table::visible(line));
    }
}

/// The same id without Postonce.
fn shell(event: &Explained) -> String {
    let quoted = |text: &str| format!("'{}'", table::visible(text).replace('\'', r"'\''"));
    let (type_name, resource) = (quoted(&event.type_name), quoted(&event.resource));
    format!(r"printf 'postonce:v1\n%s\n%s\n%s' {type_name} {resource} {} | sha256sum", event.updated_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(content: &str) -> Vec<(usize, String)> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        std::fs::write(&path, content).unwrap();
        let mut found = Vec::new();
        each_event(&mut Lines::open(&path).unwrap(), |line, bytes| {
            found.push((line, String::from_utf8(bytes.to_vec()).unwrap()));
            Ok(())
        })
        .unwrap();
        found
    }

    fn pairs(expected: &[(usize, &str)]) -> Vec<(usize, String)> {
        expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn one_event_may_stand_on_many_lines() {
        assert_eq!(events("{\n \"a\": 1\n}\n"), pairs(&[(1, "{\n \"a\": 1\n}")]));
        assert_eq!(events("{\"a\":1}\n\n{\"b\":2}\n"), pairs(&[(1, "{\"a\":1}"), (3, "{\"b\":2}")]));
        assert_eq!(events("{\"a\n{\"b\":2}\n"), pairs(&[(1, "{\"a"), (2, "{\"b\":2}")]), "a torn first line");
        assert_eq!(events(""), pairs(&[]));
    }

    #[test]
    fn the_golden_id_comes_out_and_a_refusal_has_its_code() {
        let decoder = Decoder {
            kinds: Kinds::All,
            ..Decoder::new(postonce_schema::Rules::parse(postonce_schema::POSITIONS_TOML).unwrap())
        };
        let event = br#"{"type":"payment.succeeded","resource":"o'b","updatedAt":"2026-01-02T04:04:05.1234567+01:00",
            "data":{"provider":"p","merchant":"m","amount":5,"fee":0,"currency":"EUR"}}"#;
        let Answer::Event(event) = answer(&decoder, false, 1, event) else { panic!("refused") };
        assert_eq!(event.preimage, "postonce:v1\npayment.succeeded\no'b\n2026-01-02T03:04:05.123456Z");
        assert!(explanation(&event).contains(r"'o'\''b' 2026-01-02T03:04:05.123456Z | sha256sum"));
        assert_eq!(event.position.len(), 1, "no fee, no posting");
        let Answer::Refused { code, .. } = answer(&decoder, true, 1, b"{}") else { panic!("accepted") };
        assert_eq!(code, "missing_field");
    }
}
