//! What a collector of OpenTelemetry hears.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use postonce_tests::{Flow, Ledger, Trial, kafka, payment, trials};
use serde_json::{Value, json};

pub fn tests() -> Vec<Trial> {
    trials![a_batch_is_a_span_that_is_linked_to_the_traces_of_its_messages]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Takes OTLP over HTTP and hands the requests out.
fn collector() -> Result<(u16, Receiver<Value>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let (requests, received) = channel();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let requests = requests.clone();
            thread::spawn(move || serve(connection, &requests));
        }
    });
    Ok((port, received))
}

fn serve(connection: TcpStream, requests: &Sender<Value>) -> Result<()> {
    let mut answers = connection.try_clone()?;
    let mut reader = BufReader::new(connection);
    loop {
        let mut length = 0;
        let mut head = String::new();
        while reader.read_line(&mut head)? > 2 {
            let line = head.lines().last().unwrap_or_default().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        if head.is_empty() {
            return Ok(());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        ensure!(head.starts_with("POST /v1/traces "), "{head}");
        requests.send(serde_json::from_slice(&body)?)?;
        answers.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")?;
    }
}

fn a_batch_is_a_span_that_is_linked_to_the_traces_of_its_messages() -> Result<()> {
    let (port, requests) = collector()?;
    let flow = Flow::new(&kafka(), Ledger::fresh("traces")?, "traces", 1)?;
    let (one, two) = ("4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c");
    let traced = |n: i64, trace: &str| {
        payment(&format!("stripe/traces/pi_{n}"), "succeeded", "2026-01-02T03:04:05Z", n)
            .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"))
    };
    let untraced = payment("stripe/traces/pi_4", "succeeded", "2026-01-02T03:04:05Z", 1);
    flow.send([traced(1, one), traced(2, one), traced(3, two), untraced])?;
    let endpoint = format!("http://127.0.0.1:{port}");
    let consumer = flow.consume_in(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)], &["--workers", "1"])?;

    let mut links = Vec::new();
    let mut messages = 0;
    let began = Instant::now();
    while messages < 4 {
        let left = LIMIT.checked_sub(began.elapsed()).context("no span in time")?;
        let request = requests.recv_timeout(left)?;
        let resource = &request["resourceSpans"][0];
        let service = json!([{"key": "service.name", "value": {"stringValue": "postonce"}}]);
        ensure!(resource["resource"]["attributes"] == service, "{request}");
        for span in resource["scopeSpans"][0]["spans"].as_array().context("no spans")? {
            messages += checked(span, &flow.topic)?;
            links.extend(span["links"].as_array().context("no links")?.clone());
        }
    }
    let expected = |trace: &str| json!({"traceId": trace, "spanId": "00f067aa0ba902b7"});
    ensure!(links.contains(&expected(one)) && links.contains(&expected(two)), "{links:?}");
    // The four may have come in more than one batch. The log shows no links.
    ensure!((2..=3).contains(&links.len()) && !consumer.stderr().contains(one), "{links:?}\n{}", consumer.stderr());
    consumer.finish()?;
    flow.check()
}

/// How many messages the span is of.
fn checked(span: &Value, topic: &str) -> Result<u64> {
    ensure!(span["name"] == format!("process {topic}") && span["kind"] == 5, "{span}");
    ensure!(span["traceId"].as_str().is_some_and(|id| id.len() == 32), "{span}");
    ensure!(span["spanId"].as_str().is_some_and(|id| id.len() == 16), "{span}");
    let nanoseconds = |name: &str| span[name].as_str().and_then(|text| text.parse::<u64>().ok());
    ensure!(
        nanoseconds("startTimeUnixNano").is_some_and(|start| Some(start) <= nanoseconds("endTimeUnixNano")),
        "{span}"
    );
    let attributes = span["attributes"].as_array().context("no attributes")?;
    let count = attributes.iter().find(|one| one["key"] == "messaging.batch.message_count");
    Ok(count.and_then(|one| one["value"]["intValue"].as_str()).context("no count")?.parse()?)
}
