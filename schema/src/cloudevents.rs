//! CloudEvents 1.0 over Kafka, structured and binary mode:
//! <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md>.

use crate::event::{self, Envelope, Places};
use crate::json::{self, Members};
use crate::reject::excerpt;
use crate::{Header, Reject};
use std::borrow::Cow;

/// In which envelope a message brings its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The event is the value.
    Plain,
    /// The value is a CloudEvent in JSON format.
    Structured,
    /// The attributes are headers, the value is `data`.
    Binary,
}

const STRUCTURED: Places = Places { type_: "/type", resource: "/subject", updated_at: "/time", data: "/data" };
const BINARY: Places =
    Places { type_: "header:ce_type", resource: "header:ce_subject", updated_at: "header:ce_time", data: "" };

/// A content type that starts with `application/cloudevents` is structured mode,
/// else `ce_specversion` is binary mode, else the message is plain.
pub fn mode(headers: &[Header<'_>]) -> Result<Mode, Reject> {
    const PREFIX: &str = "application/cloudevents";
    let content_type = headers.iter().rev().find(|header| header.name == b"content-type");
    let content_type = content_type.and_then(|header| header.value).unwrap_or_default();
    let content_type = String::from_utf8_lossy(content_type).trim().to_ascii_lowercase();
    if let Some(rest) = content_type.strip_prefix(PREFIX) {
        return match rest.split(';').next().unwrap_or_default().trim() {
            "" | "+json" => Ok(Mode::Structured),
            _ => Err(Reject::BadCloudEvent {
                at: "header:content-type".to_owned(),
                why: format!("{} is not the JSON format of one event", excerpt(&content_type)),
            }),
        };
    }
    let binary = headers.iter().any(|header| header.name == b"ce_specversion");
    Ok(if binary { Mode::Binary } else { Mode::Plain })
}

pub(crate) fn structured(text: &str) -> Result<Envelope<'_>, Reject> {
    const NAMES: [&str; 7] = ["specversion", "type", "subject", "time", "source", "data", "data_base64"];
    let members = Members::read(text, &NAMES, "")?;
    let version = event::required_string(&members, 0, "/specversion")?;
    check_version(&version, "/specversion")?;
    if members.has(6) {
        return Err(Reject::BadCloudEvent {
            at: "/data_base64".to_owned(),
            why: "the data is base64, not JSON".to_owned(),
        });
    }
    Ok(Envelope {
        type_: event::required_string(&members, 1, STRUCTURED.type_)?,
        resource: event::required_string(&members, 2, STRUCTURED.resource)?,
        updated_at: event::required_string(&members, 3, STRUCTURED.updated_at)?,
        source: event::source(&members, 4),
        data: event::required_object(&members, 5, STRUCTURED.data)?,
        places: &STRUCTURED,
    })
}

pub(crate) fn binary<'a>(text: &'a str, headers: &[Header<'a>]) -> Result<Envelope<'a>, Reject> {
    let required = |name: &str, at: &str| attribute(headers, name)?.ok_or_else(|| event::missing(at));
    check_version(&required("ce_specversion", "header:ce_specversion")?, "header:ce_specversion")?;
    if !text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{') {
        // Whether it is JSON at all decides which reason is the true one.
        let raw: &serde_json::value::RawValue = serde_json::from_str(text)
            .map_err(|error| Reject::BadJson { at: String::new(), why: error.to_string() })?;
        return Err(Reject::WrongType { at: String::new(), expected: "an object", found: json::type_of(raw) });
    }
    Ok(Envelope {
        type_: required("ce_type", BINARY.type_)?,
        resource: required("ce_subject", BINARY.resource)?,
        updated_at: required("ce_time", BINARY.updated_at)?,
        source: attribute(headers, "ce_source").ok().flatten().filter(|text| event::is_source(text)),
        data: text,
        places: &BINARY,
    })
}

/// A header that is read must stand once, with a text.
fn attribute<'a>(headers: &[Header<'a>], name: &str) -> Result<Option<Cow<'a, str>>, Reject> {
    let at = || format!("header:{name}");
    let mut found = headers.iter().filter(|header| header.name == name.as_bytes());
    let first = found.next();
    if found.next().is_some() {
        return Err(Reject::RepeatedHeader { at: at() });
    }
    let Some(bytes) = first.and_then(|header| header.value) else {
        return Ok(None);
    };
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(Cow::Borrowed(text))),
        Err(_) => Err(Reject::BadCloudEvent { at: at(), why: "the header is not UTF-8".to_owned() }),
    }
}

fn check_version(version: &str, at: &str) -> Result<(), Reject> {
    if version == "1.0" {
        return Ok(());
    }
    Err(Reject::BadCloudEvent { at: at.to_owned(), why: format!("specversion {} is not 1.0", excerpt(version)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_type_decides_first() {
        let header =
            |name: &'static str, value: &'static str| Header { name: name.as_bytes(), value: Some(value.as_bytes()) };
        let binary = header("ce_specversion", "1.0");
        assert_eq!(mode(&[]), Ok(Mode::Plain));
        assert_eq!(mode(&[header("content-type", "application/json")]), Ok(Mode::Plain));
        assert_eq!(mode(&[binary, header("content-type", "application/json")]), Ok(Mode::Binary));
        for structured in ["application/cloudevents", "Application/CloudEvents+JSON; charset=utf-8"] {
            assert_eq!(mode(&[binary, header("content-type", structured)]), Ok(Mode::Structured));
        }
        for refused in ["application/cloudevents-batch+json", "application/cloudevents+avro"] {
            assert_eq!(mode(&[header("content-type", refused)]).unwrap_err().code(), "bad_cloudevent");
        }
        assert_eq!(mode(&[header("Content-Type", "application/cloudevents")]), Ok(Mode::Plain), "names are exact");
    }
}
