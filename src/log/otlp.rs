//! Spans for OpenTelemetry, as OTLP over HTTP in JSON.
//!
//! Only where `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) names a collector, such
//! as `http://localhost:4318`. It speaks plain HTTP, so the collector stands on this machine
//! or in this network. Money does not wait for it: what the collector does not take is
//! dropped.

use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// So many spans wait for the collector at most.
const WAITING: usize = 4_096;
const MOST_AT_ONCE: usize = 512;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// At its end the process waits so long for the collector.
const LAST_WITHIN: Duration = Duration::from_secs(2);
/// SPAN_KIND_CONSUMER
const CONSUMER: u8 = 5;

/// Sends what the consumer does with each batch.
pub struct Export {
    spans: SyncSender<Value>,
    unsent: Unsent,
}

/// How many spans the collector has not been offered yet.
#[derive(Clone, Default)]
pub struct Unsent(Arc<AtomicUsize>);

impl Unsent {
    /// At the end of the process.
    pub fn wait(&self) {
        let until = Instant::now() + LAST_WITHIN;
        while self.0.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A span that is not over yet.
struct Open {
    began: SystemTime,
    fields: Fields,
    links: Vec<Value>,
}

#[derive(Default)]
struct Fields(Vec<(&'static str, Value)>);

/// Whether it is of interest here: batches, and what they are linked to.
pub fn is_exported(metadata: &Metadata<'_>) -> bool {
    (metadata.is_span() && metadata.name() == "batch") || is_link(metadata)
}

/// What links a batch to its messages' traces is for the collector alone.
pub fn is_link(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "traceparent"
}

impl Export {
    /// None where the environment names no collector.
    pub fn from_environment(unsent: &Unsent) -> Option<Self> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let whole = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let base =
            || set("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| format!("{}/v1/traces", base.trim_end_matches('/')));
        let url = whole.or_else(base)?;
        let service = set("OTEL_SERVICE_NAME").unwrap_or_else(|| "postonce".to_owned());
        let (spans, waiting) = sync_channel(WAITING);
        let counted = unsent.clone();
        let export = move || export(&url, &service, &waiting, &counted);
        match std::thread::Builder::new().name("otlp".to_owned()).spawn(export) {
            Ok(_) => Some(Self { spans, unsent: unsent.clone() }),
            Err(error) => {
                eprintln!("postonce: no traces are exported: {error}");
                None
            }
        }
    }
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Export {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(Open { began: SystemTime::now(), fields, links: Vec::new() });
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event) else { return };
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            open.links.extend(fields.text("link").and_then(link));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let open = context.span(&id).and_then(|span| span.extensions_mut().remove::<Open>());
        if let Some(open) = open {
            // A collector that is away must not become a memory that grows.
            self.unsent.0.fetch_add(1, Ordering::Relaxed);
            if self.spans.try_send(open.ended()).is_err() {
                self.unsent.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Open {
    fn ended(self) -> Value {
        let topic = self.fields.text("topic").unwrap_or_default();
        let mut attributes = vec![
            attribute("messaging.system", json!({"stringValue": "kafka"})),
            attribute("messaging.operation.type", json!({"stringValue": "process"})),
            attribute("messaging.destination.name", json!({"stringValue": topic})),
            attribute("postonce.offsets", json!({"stringValue": self.fields.text("offsets")})),
        ];
        if let Some((_, count)) = self.fields.0.iter().find(|(name, _)| *name == "messages") {
            attributes.push(attribute("messaging.batch.message_count", json!({"intValue": count.to_string()})));
        }
        json!({
            "traceId": format!("{:032x}", rand::random::<u128>()),
            "spanId": format!("{:016x}", rand::random::<u64>()),
            "name": format!("process {topic}"),
            "kind": CONSUMER,
            "startTimeUnixNano": nanoseconds(self.began),
            "endTimeUnixNano": nanoseconds(SystemTime::now()),
            "attributes": attributes,
            "links": self.links,
        })
    }
}

fn attribute(key: &str, value: Value) -> Value {
    json!({"key": key, "value": value})
}

fn link(traceparent: &str) -> Option<Value> {
    let mut parts = traceparent.split('-').skip(1);
    Some(json!({"traceId": parts.next()?, "spanId": parts.next()?}))
}

/// 64-bit numbers are strings in the JSON of protobuf.
fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// Sends what is waiting, until the process ends.
fn export(url: &str, service: &str, waiting: &Receiver<Value>, unsent: &Unsent) {
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(ANSWER_WITHIN)).build().into();
    while let Ok(first) = waiting.recv() {
        let spans: Vec<Value> = std::iter::once(first).chain(waiting.try_iter().take(MOST_AT_ONCE)).collect();
        let request = json!({"resourceSpans": [{
            "resource": {"attributes": [attribute("service.name", json!({"stringValue": service}))]},
            "scopeSpans": [{"scope": {"name": "postonce", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
        }]});
        let sent = agent.post(url).header("content-type", "application/json").send(request.to_string());
        if let Err(error) = sent {
            tracing::warn!(target: "otlp", spans = spans.len(), %error, "the collector took no spans");
        }
        unsent.0.fetch_sub(spans.len(), Ordering::Relaxed);
    }
}

impl Fields {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| *field == name).and_then(|(_, value)| value.as_str())
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}").into()));
    }
}
