//! `postonce incidents show`

use super::list::state;
use crate::args::{ClientArgs, DatabaseArgs, Output, OutputArgs};
use crate::cases;
use crate::payload::{self, Extent, HeaderPayload, Payload};
use crate::{reader, table};
use anyhow::{Context, ensure};
use postonce_consumer::cases::incidents::{Content, Detail, show};
use postonce_consumer::cases::name::Name;
use postonce_consumer::chain::{decode_headers, encode_headers};
use postonce_consumer::config::{GroupProtocol, Kafka};
use postonce_consumer::reread::{Ranges, Source, Watch};
use postonce_consumer::stream;
use postonce_schema::StreamId;
use std::fmt::Write as _;
use std::process::ExitCode;

const HELP: &str = "\
For a conflict: every content that came under the event's id, * is the one that
stands. The ledger keeps the bytes of the later ones; those of the first arrival are
read from the topic, if --brokers are given and the topic still has them.

The history lists every event of the resource; `postonce trace` explains it.

Examples:
  postonce incidents show payments/3/1042
  postonce incidents show evt_6a0f93c1 --code conflict -b localhost:9092";

/// Show one incident: what happened, the resource's events, and the bytes of a conflict
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// topic/partition/offset, or an event id (evt_ and eight hex digits or more)
    #[arg(env = "POSTONCE_INCIDENT", value_name = "PLACE|EVENT-ID", value_parser = Name::of_event)]
    name: Name,

    /// The incident of this code, where one event has several
    #[arg(long, env = "POSTONCE_CODE")]
    code: Option<String>,

    /// Kafka bootstrap servers, for the bytes of the first arrival
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    brokers: Option<String>,

    #[command(flatten)]
    client: ClientArgs,

    /// All bytes, however many
    #[arg(long, env = "POSTONCE_FULL")]
    full: bool,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut detail =
        reader::ask(&args.database, async |connection| Ok(show(connection, &args.name, args.code.as_deref()).await?))?;
    let lost = args.brokers.as_deref().and_then(|brokers| fetch_bytes(&mut detail, brokers, &args.client).err());
    if let Some(error) = lost {
        eprintln!("the bytes of the first arrival are not known: {error:#}");
    }
    let extent = if args.full { Extent::Full } else { Extent::Cut };
    table::print(&match args.output.output {
        Output::Json => as_json(&detail, extent)?,
        Output::Table => as_text(&detail, extent)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads from the topic what the ledger does not keep: the first arrival of a conflict.
fn fetch_bytes(detail: &mut Detail, brokers: &str, client: &ClientArgs) -> anyhow::Result<()> {
    if detail.contents.len() > 1 {
        for content in detail.contents.iter_mut().filter(|content| !content.kept) {
            fetch(content, brokers, client)?;
        }
    }
    Ok(())
}

fn fetch(content: &mut Content, brokers: &str, client: &ClientArgs) -> anyhow::Result<()> {
    let (topic, partition) =
        content.topic.clone().zip(content.partition).context("its stream is not known any more")?;
    let kafka = Kafka {
        brokers: brokers.to_owned(),
        topic,
        group: String::new(),
        protocol: GroupProtocol::Classic,
        properties: client.properties.clone(),
        unidentified_topic: false,
    };
    let source = Source::open(&kafka)?;
    let lineage = source.lineage();
    let same = content.cluster_id.as_ref() == Some(&lineage.cluster_id)
        && content.topic_id.as_ref() == Some(&lineage.topic_id);
    ensure!(same, "the topic at {brokers} is another one than {} was read from", content.place);
    let (start, end) = source.bounds(partition)?;
    ensure!((start..end).contains(&content.offset), "{} is not in the log any more", content.place);
    let mut ranges = Ranges::new([(partition, content.offset, content.offset + 1)]);
    source.seek(&ranges)?;
    let mut watch = Watch::start(&ranges);
    while !ranges.is_done() {
        for message in source.next(&mut ranges, 1)?.messages {
            let message = stream::message(&message, StreamId::from_i64(0));
            content.kept = true;
            (content.key, content.value) = (message.key.map(<[u8]>::to_vec), message.value.map(<[u8]>::to_vec));
            content.headers = encode_headers(&message.headers);
        }
        watch.check(&ranges)?;
    }
    Ok(())
}

/// Of several contents of one id the greatest fingerprint stands.
fn stands(detail: &Detail, content: &Content) -> bool {
    detail.contents.iter().all(|other| other.fingerprint <= content.fingerprint)
}

fn as_json(detail: &Detail, extent: Extent) -> anyhow::Result<String> {
    let mut contents = Vec::new();
    for content in &detail.contents {
        let headers = decode_headers(&content.headers).context("the stored headers are damaged")?;
        let payload = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(|bytes| Payload::of(bytes, extent));
        contents.push(serde_json::json!({
            "fingerprint": content.fingerprint,
            "stands": stands(detail, content),
            "place": content.place,
            "message_time": content.message_time,
            "source": content.source,
            "bytes_known": content.kept,
            "key": payload(&content.key),
            "value": payload(&content.value),
            "headers": headers.iter().map(|header| HeaderPayload::of(header, extent)).collect::<Vec<_>>(),
        }));
    }
    table::json(&serde_json::json!({
        "incident": detail.incident,
        "contents": contents,
        "history": detail.history,
        "actions": detail.actions,
    }))
}

fn as_text(detail: &Detail, extent: Extent) -> anyhow::Result<String> {
    let incident = &detail.incident;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{} {}, {}", incident.code, table::visible(&incident.place), state(incident));
    let _ = writeln!(out, "  what      {}", table::visible(&incident.detail));
    let (kind, resource) = (table::or_dash(incident.kind.as_ref()), table::or_dash(incident.resource.as_ref()));
    let _ = writeln!(out, "  resource  {kind} {resource}");
    let _ = writeln!(out, "  event     {} of {}", incident.event_id, incident.updated_at);
    let _ = writeln!(out, "  opened    {}", incident.opened_at);
    if detail.contents.len() > 1 {
        let _ = writeln!(out, "\nContents of the event, * is the one that stands:");
        for content in &detail.contents {
            push_content(&mut out, content, stands(detail, content), extent)?;
        }
    }
    let _ = writeln!(out, "\nHistory of the resource, * is its state; `postonce trace {resource}` explains it:");
    for event in detail.history.iter().flat_map(|history| &history.events) {
        let mark = if event.stands { "*" } else { " " };
        let (topic, partition) = (table::or_dash(event.topic.as_ref()), table::or_dash(event.partition));
        let place = format!("{topic}/{partition}/{}", event.offset);
        let type_name = table::visible(&event.event_type);
        let _ = writeln!(out, "{mark} {} {type_name} {} {place} {}", event.updated_at, event.outcome, event.event_id);
    }
    cases::push_actions(&mut out, &detail.actions);
    Ok(out)
}

fn push_content(out: &mut String, content: &Content, stands: bool, extent: Extent) -> anyhow::Result<()> {
    let mark = if stands { "*" } else { " " };
    let (source, time) = (table::or_dash(content.source.as_ref()), table::or_dash(content.message_time));
    let _ = writeln!(out, "{mark} {} of {time}, source {source}", table::visible(&content.place));
    let _ = writeln!(out, "  fingerprint {}", content.fingerprint);
    if !content.kept {
        let _ = writeln!(out, "  its bytes are in the topic; --brokers shows them");
        return Ok(());
    }
    let _ = writeln!(out, "  key {}", payload::line(content.key.as_deref(), extent));
    for header in decode_headers(&content.headers).context("the stored headers are damaged")? {
        let name = payload::line(Some(header.name), extent);
        let _ = writeln!(out, "  header {name}: {}", payload::line(header.value, extent));
    }
    out.push_str(&payload::block(content.value.as_deref(), extent));
    Ok(())
}
