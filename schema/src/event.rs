//! One message becomes one event, or the reason why it is none.

use crate::cloudevents::{self, Mode};
use crate::json::{self, Members};
use crate::reject::excerpt;
use crate::rules::is_name;
use crate::{EventId, Facts, Fingerprint, Kind, Reject, ResourceId, Rules, State, Timestamp, Version};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

/// The largest value of a message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The longest type, in bytes.
pub const MAX_TYPE_BYTES: usize = 64;
/// The longest resource, in bytes.
pub const MAX_RESOURCE_BYTES: usize = 255;

/// A Kafka message as far as an event is in it.
#[derive(Clone, Copy, Debug)]
pub struct Message<'h, 'a> {
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    pub headers: &'h [Header<'a>],
    /// The message's Kafka timestamp, in milliseconds since 1970.
    pub timestamp: Option<i64>,
}

/// One header of a Kafka message.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Kafka asks for UTF-8 but no broker checks it.
    pub name: &'a [u8],
    /// `None` is a null value.
    pub value: Option<&'a [u8]>,
}

/// One fact from upstream: a full snapshot of one resource at one time.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    pub id: EventId,
    pub resource_id: ResourceId,
    /// The rules in force at `updated_at`.
    pub version: &'a Version,
    pub kind: &'a Kind,
    pub state: &'a State,
    /// The resource's path, such as `stripe/acct_1/pi_3Nf`.
    pub resource: Cow<'a, str>,
    pub updated_at: Timestamp,
    /// Who spoke. Provenance only: no rule and no fingerprint knows it.
    pub source: Option<Cow<'a, str>>,
    pub facts: Facts<'a>,
    pub fingerprint: Fingerprint,
}

/// Which kinds of events a topic may carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Every kind of the rules but journals: who can write to the topic of the
    /// payments cannot also write the books by hand.
    AllButJournals,
    All,
    Only(BTreeSet<String>),
}

/// Turns messages into events.
#[derive(Debug)]
pub struct Decoder {
    pub rules: Rules,
    pub kinds: Kinds,
    /// How far `updatedAt` may be ahead of the message's Kafka timestamp.
    pub max_ahead: Duration,
}

/// The parts of an event, whichever envelope brought them.
pub(crate) struct Envelope<'a> {
    pub type_: Cow<'a, str>,
    pub resource: Cow<'a, str>,
    pub updated_at: Cow<'a, str>,
    pub source: Option<Cow<'a, str>>,
    pub data: &'a str,
    pub places: &'static Places,
}

/// Where each part stands in its envelope.
pub(crate) struct Places {
    pub type_: &'static str,
    pub resource: &'static str,
    pub updated_at: &'static str,
    pub data: &'static str,
}

const PLAIN: Places = Places { type_: "/type", resource: "/resource", updated_at: "/updatedAt", data: "/data" };

impl Decoder {
    /// With the kinds and the clock tolerance that Postonce starts with.
    pub fn new(rules: Rules) -> Self {
        Self { rules, kinds: Kinds::AllButJournals, max_ahead: Duration::from_secs(24 * 3600) }
    }

    /// Reads one message.
    pub fn decode<'a>(&'a self, message: Message<'_, 'a>) -> Result<Event<'a>, Reject> {
        let text = text_of(message.value)?;
        let envelope = match cloudevents::mode(message.headers)? {
            Mode::Plain => plain(text)?,
            Mode::Structured => cloudevents::structured(text)?,
            Mode::Binary => cloudevents::binary(text, message.headers)?,
        };
        self.event(envelope, message.timestamp)
    }

    fn event<'a>(&'a self, envelope: Envelope<'a>, timestamp: Option<i64>) -> Result<Event<'a>, Reject> {
        let Envelope { type_, resource, updated_at, source, data, places } = envelope;
        let (kind_name, state_name) = split_type(&type_, places.type_)?;
        check_resource(&resource, places.resource)?;
        let updated_at = read_time(&updated_at, places.updated_at)?;
        self.check_clock(updated_at, timestamp, places.updated_at)?;
        let version = self.rules.at(updated_at);
        let found = version.kind(kind_name).and_then(|kind| kind.state(state_name).map(|state| (kind, state)));
        let (kind, state) = found.ok_or_else(|| unknown_type(version, &type_, kind_name, places.type_))?;
        if !self.kinds.allow(kind) {
            return Err(Reject::KindNotAllowed { at: places.type_.to_owned(), kind: kind.name.clone() });
        }
        let facts = Facts::read(kind, state, data, places.data)?;
        Ok(Event {
            id: EventId::new(&kind.name, &state.name, &resource, updated_at),
            resource_id: ResourceId::new(&kind.name, &resource),
            fingerprint: facts.fingerprint(kind, state, &resource, updated_at),
            version,
            kind,
            state,
            resource,
            updated_at,
            source,
            facts,
        })
    }

    /// A time far ahead would win against every honest event of its resource.
    fn check_clock(&self, updated_at: Timestamp, timestamp: Option<i64>, at: &str) -> Result<(), Reject> {
        let Some(sent) = timestamp else {
            return Ok(());
        };
        let ahead = i128::from(updated_at.micros()) - i128::from(sent) * 1000;
        let allowed = i128::try_from(self.max_ahead.as_micros()).unwrap_or(i128::MAX);
        if ahead <= allowed {
            return Ok(());
        }
        let hours = i64::try_from(ahead / 3_600_000_000).unwrap_or(i64::MAX);
        Err(Reject::FutureTime { at: at.to_owned(), updated_at: updated_at.to_string(), hours })
    }
}

impl Event<'_> {
    /// `payment.succeeded`
    pub fn type_name(&self) -> String {
        format!("{}.{}", self.kind.name, self.state.name)
    }
}

impl Kinds {
    fn allow(&self, kind: &Kind) -> bool {
        match self {
            Self::AllButJournals => !kind.journal,
            Self::All => true,
            Self::Only(names) => names.contains(&kind.name),
        }
    }
}

fn text_of(value: Option<&[u8]>) -> Result<&str, Reject> {
    let value = value.filter(|value| !value.is_empty()).ok_or(Reject::Empty)?;
    if value.len() > MAX_MESSAGE_BYTES {
        return Err(Reject::TooLarge { bytes: value.len() });
    }
    let text = std::str::from_utf8(value).map_err(|error| Reject::NotUtf8 { offset: error.valid_up_to() })?;
    if text.starts_with('\u{feff}') {
        return Err(Reject::BadJson { at: String::new(), why: "the text begins with a byte order mark".to_owned() });
    }
    json::check_depth(text)?;
    Ok(text)
}

fn plain(text: &str) -> Result<Envelope<'_>, Reject> {
    const NAMES: [&str; 5] = ["type", "resource", "updatedAt", "source", "data"];
    let members = Members::read(text, &NAMES, "")?;
    Ok(Envelope {
        type_: required_string(&members, 0, PLAIN.type_)?,
        resource: required_string(&members, 1, PLAIN.resource)?,
        updated_at: required_string(&members, 2, PLAIN.updated_at)?,
        source: source(&members, 3),
        data: required_object(&members, 4, PLAIN.data)?,
        places: &PLAIN,
    })
}

pub(crate) fn required<'a>(members: &Members<'a>, index: usize, at: &str) -> Result<&'a RawValue, Reject> {
    members.get(index, || at.to_owned())?.ok_or_else(|| missing(at))
}

pub(crate) fn required_string<'a>(members: &Members<'a>, index: usize, at: &str) -> Result<Cow<'a, str>, Reject> {
    json::string(required(members, index, at)?, || at.to_owned())
}

pub(crate) fn required_object<'a>(members: &Members<'a>, index: usize, at: &str) -> Result<&'a str, Reject> {
    let raw = required(members, index, at)?;
    if !raw.get().starts_with('{') {
        return Err(Reject::WrongType { at: at.to_owned(), expected: "an object", found: json::type_of(raw) });
    }
    Ok(raw.get())
}

pub(crate) fn missing(at: &str) -> Reject {
    Reject::MissingField { at: at.to_owned(), why: "every event has a type, a resource, a time and data".to_owned() }
}

/// Provenance never refuses an event: a source that is no short plain text, or
/// stands more than once, counts as absent.
pub(crate) fn source<'a>(members: &Members<'a>, index: usize) -> Option<Cow<'a, str>> {
    let raw = members.get(index, String::new).ok()??;
    json::string(raw, String::new).ok().filter(|text| is_source(text))
}

pub(crate) fn is_source(text: &str) -> bool {
    (1..=MAX_RESOURCE_BYTES).contains(&text.len()) && !json::has_control(text)
}

fn split_type<'t>(text: &'t str, at: &str) -> Result<(&'t str, &'t str), Reject> {
    match text.split_once('.') {
        Some((kind, state)) if is_name(kind) && is_name(state) && text.len() <= MAX_TYPE_BYTES => Ok((kind, state)),
        _ => Err(Reject::BadType { at: at.to_owned(), text: excerpt(text) }),
    }
}

fn check_resource(text: &str, at: &str) -> Result<(), Reject> {
    let why = match text {
        "" => "it is empty".to_owned(),
        _ if text.len() > MAX_RESOURCE_BYTES => format!("it has {} bytes", text.len()),
        _ if json::has_control(text) => format!("{} holds a control character", excerpt(text)),
        _ => return Ok(()),
    };
    Err(Reject::BadResource { at: at.to_owned(), why })
}

fn read_time(text: &str, at: &str) -> Result<Timestamp, Reject> {
    Timestamp::parse(text).map_err(|why| Reject::BadTime { at: at.to_owned(), text: excerpt(text), why })
}

fn unknown_type(version: &Version, type_: &str, kind: &str, at: &str) -> Reject {
    let names = match version.kind(kind) {
        Some(kind) => kind.states.iter().map(|state| format!("{}.{}", kind.name, state.name)).collect::<Vec<_>>(),
        None => version.kinds.iter().map(|kind| kind.name.clone()).collect(),
    };
    Reject::UnknownType { at: at.to_owned(), text: excerpt(type_), known: names.join(", ") }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
