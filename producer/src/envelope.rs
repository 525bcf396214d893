//! An event as it comes from upstream: which key it gets, and its two other
//! forms, CloudEvents structured and binary.
//!
//! This is no check of the event; the consumer judges and says why. Here only
//! what a producer needs is read: a resource to choose the key by.

use std::borrow::Cow;
use std::fmt;

use postonce_schema::{EventId, Timestamp};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The `source` of an event that names none; CloudEvents requires one.
const NO_SOURCE: &str = "postonce";

/// How an event stands in its Kafka message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// The JSON as given, byte for byte, without headers.
    #[default]
    Plain,
    /// CloudEvents 1.0 structured mode: one JSON object with the attributes
    /// and `data`; header `content-type: application/cloudevents+json`.
    CloudEventsStructured,
    /// CloudEvents 1.0 binary mode: the attributes as `ce_` headers, the value
    /// is `data` alone; header `content-type: application/json`.
    CloudEventsBinary,
}

/// Why a line cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The text is not one JSON object, or `resource` is not a string.
    #[error("not an event: {0}")]
    NotAnEvent(String),
    /// Without it the event has no key.
    #[error("no \"resource\": a string such as stripe/acct_1/pi_3Nf")]
    NoResource,
    /// Only for CloudEvents: of two members, one would be lost.
    #[error("\"{0}\" stands twice, so it cannot be written as a CloudEvent")]
    RepeatedMember(&'static str),
}

/// The members of an event that a producer looks at. The others are not
/// carried over into CloudEvents; a plain event stays as it is.
#[derive(Debug)]
pub struct Envelope<'a> {
    json: &'a [u8],
    resource: Cow<'a, str>,
    partition_key: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    type_: Option<&'a RawValue>,
    updated_at: Option<&'a RawValue>,
    source: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    repeated: Option<&'static str>,
}

/// An event ready to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Encoded<'a> {
    /// The resource, or the event's `partitionkey` (the CloudEvents extension).
    pub key: Cow<'a, str>,
    /// Names and values; empty for a plain event.
    pub headers: Vec<(&'static str, Cow<'a, str>)>,
    /// The message's value.
    pub value: Cow<'a, [u8]>,
}

impl<'a> Envelope<'a> {
    /// Reads one JSON object: `type`, `resource`, `updatedAt`, `source`,
    /// `data`, and the optional `id` and `partitionkey`.
    ///
    /// # Errors
    /// [`Malformed`], if the text is not one JSON object with a `resource`.
    pub fn parse(json: &'a [u8]) -> Result<Self, Malformed> {
        let members: Members<'a> = serde_json::from_slice(json).map_err(|error| not_an_event(&error))?;
        Ok(Self {
            json,
            resource: text(members.resource.ok_or(Malformed::NoResource)?).ok_or(Malformed::NoResource)?,
            partition_key: members.partition_key.and_then(text),
            id: members.id.and_then(text),
            type_: members.type_,
            updated_at: members.updated_at,
            source: members.source,
            data: members.data,
            repeated: members.repeated,
        })
    }

    /// What decides the partition: `partitionkey`, else the resource.
    pub fn key(&self) -> &str {
        self.partition_key.as_ref().unwrap_or(&self.resource)
    }

    /// The event as the value and headers of a Kafka message.
    ///
    /// # Errors
    /// [`Malformed::RepeatedMember`], for CloudEvents only.
    pub fn encode(&self, encoding: Encoding) -> Result<Encoded<'_>, Malformed> {
        let key = Cow::Borrowed(self.key());
        match (encoding, self.repeated) {
            (Encoding::Plain, _) => Ok(Encoded { key, headers: Vec::new(), value: Cow::Borrowed(self.json) }),
            (_, Some(member)) => Err(Malformed::RepeatedMember(member)),
            (Encoding::CloudEventsStructured, None) => Ok(Encoded {
                key,
                headers: vec![("content-type", Cow::Borrowed("application/cloudevents+json"))],
                value: Cow::Owned(self.structured().into_bytes()),
            }),
            (Encoding::CloudEventsBinary, None) => Ok(Encoded {
                key,
                headers: self.binary_headers(),
                value: Cow::Borrowed(self.data.map_or(&[][..], |data| data.get().as_bytes())),
            }),
        }
    }

    /// The id that upstream gave, else the ledger's own event id, so that the
    /// same event has the same id whoever sends it again. Of an event that has
    /// no id because the ledger will refuse it, its parts. The ledger does not
    /// read this id.
    fn cloud_event_id(&self) -> Cow<'_, str> {
        if let Some(id) = self.id.as_deref().filter(|id| !id.is_empty()) {
            return Cow::Borrowed(id);
        }
        let type_ = header(self.type_).unwrap_or_default();
        let time = header(self.updated_at).unwrap_or_default();
        match (type_.split_once('.'), Timestamp::parse(&time)) {
            (Some((kind, state)), Ok(time)) => Cow::Owned(EventId::new(kind, state, &self.resource, time).to_string()),
            _ => Cow::Owned(format!("{type_}:{}@{time}", self.resource)),
        }
    }

    fn structured(&self) -> String {
        let mut json = String::with_capacity(self.json.len() + 160);
        json.push_str("{\"specversion\":\"1.0\",\"id\":");
        json.push_str(&quoted(&self.cloud_event_id()));
        json.push_str(",\"source\":");
        match self.source {
            Some(source) => json.push_str(source.get()),
            None => json.push_str(&quoted(NO_SOURCE)),
        }
        // Raw, whatever they are: a number as a time is the consumer's to refuse.
        for (name, member) in [(",\"type\":", self.type_), (",\"time\":", self.updated_at)] {
            if let Some(member) = member {
                json.push_str(name);
                json.push_str(member.get());
            }
        }
        json.push_str(",\"subject\":");
        json.push_str(&quoted(&self.resource));
        if let Some(key) = &self.partition_key {
            json.push_str(",\"partitionkey\":");
            json.push_str(&quoted(key));
        }
        json.push_str(",\"datacontenttype\":\"application/json\"");
        if let Some(data) = self.data {
            json.push_str(",\"data\":");
            json.push_str(data.get());
        }
        json.push('}');
        json
    }

    fn binary_headers(&self) -> Vec<(&'static str, Cow<'_, str>)> {
        let mut headers = vec![
            ("content-type", Cow::Borrowed("application/json")),
            ("ce_specversion", Cow::Borrowed("1.0")),
            ("ce_id", self.cloud_event_id()),
            ("ce_source", header(self.source).unwrap_or(Cow::Borrowed(NO_SOURCE))),
        ];
        headers.extend(header(self.type_).map(|value| ("ce_type", value)));
        headers.push(("ce_subject", Cow::Borrowed(&*self.resource)));
        headers.extend(header(self.updated_at).map(|value| ("ce_time", value)));
        headers.extend(self.partition_key.as_deref().map(|key| ("ce_partitionkey", Cow::Borrowed(key))));
        headers
    }
}

/// serde's reason, without its "line 1": the text is one line of somebody's file.
fn not_an_event(error: &serde_json::Error) -> Malformed {
    let text = error.to_string();
    match text.strip_suffix(&format!(" at line 1 column {}", error.column())) {
        Some(reason) => Malformed::NotAnEvent(format!("{reason} at column {}", error.column())),
        None => Malformed::NotAnEvent(text),
    }
}

/// The content of a JSON string, `None` if it is something else.
fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    struct Text;
    impl<'de> Visitor<'de> for Text {
        type Value = Cow<'de, str>;
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a string")
        }
        fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
            Ok(Cow::Borrowed(value))
        }
        fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
            Ok(Cow::Owned(value.to_owned()))
        }
    }
    serde_json::Deserializer::from_str(raw.get()).deserialize_str(Text).ok()
}

/// A member as a header: the content of a string, else its JSON.
fn header(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    raw.map(|raw| text(raw).unwrap_or(Cow::Borrowed(raw.get())))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The members as they stand; of a repeated one, the first.
#[derive(Default)]
struct Members<'a> {
    type_: Option<&'a RawValue>,
    resource: Option<&'a RawValue>,
    updated_at: Option<&'a RawValue>,
    source: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    partition_key: Option<&'a RawValue>,
    repeated: Option<&'static str>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    // By hand, because serde's derive refuses a repeated member and a plain
    // event that has one still has to reach the consumer.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Members::default();
                while let Some(name) = map.next_key::<Name>()? {
                    let Some(name) = name.0 else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    let value = map.next_value()?;
                    let member = members.named(name);
                    if member.is_none() {
                        *member = Some(value);
                    } else {
                        members.repeated = Some(name);
                    }
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'a> Members<'a> {
    fn named(&mut self, name: &'static str) -> &mut Option<&'a RawValue> {
        match name {
            "type" => &mut self.type_,
            "resource" => &mut self.resource,
            "updatedAt" => &mut self.updated_at,
            "source" => &mut self.source,
            "data" => &mut self.data,
            "id" => &mut self.id,
            _ => &mut self.partition_key,
        }
    }
}

/// A member's name, if it is one that is read.
struct Name(Option<&'static str>);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyName;
        impl Visitor<'_> for AnyName {
            type Value = Name;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a member's name")
            }
            fn visit_str<E>(self, name: &str) -> Result<Name, E> {
                const READ: [&str; 7] = ["type", "resource", "updatedAt", "source", "data", "id", "partitionkey"];
                Ok(Name(READ.into_iter().find(|read| *read == name)))
            }
        }
        deserializer.deserialize_str(AnyName)
    }
}

#[cfg(test)]
#[path = "envelope_tests.rs"]
mod tests;
