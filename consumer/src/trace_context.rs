//! Which traces the messages of a batch belong to (W3C Trace Context, header `traceparent`).
//!
//! A batch holds messages of many traces, so none of them is its parent: it is *linked* to
//! each, as OpenTelemetry's conventions for messaging want it of whoever reads in batches.

use crate::batch::Received;
use std::collections::BTreeSet;

/// More links than this say nothing more, and some receivers cut them off.
const MOST_LINKS: usize = 32;

/// Tells whoever exports traces what the span that is entered belongs to. Where nobody
/// does, nothing is looked at.
pub(crate) fn link(received: &[Received<'_>]) {
    if !tracing::enabled!(target: "traceparent", tracing::Level::INFO) {
        return;
    }
    let headers = received.iter().flat_map(|one| &one.message.headers);
    let values = headers.filter(|header| header.name == b"traceparent").filter_map(|header| header.value);
    for link in distinct(values) {
        tracing::info!(target: "traceparent", link, "linked");
    }
}

fn distinct<'v>(values: impl Iterator<Item = &'v [u8]>) -> BTreeSet<&'v str> {
    let mut found = BTreeSet::new();
    for value in values.filter_map(|value| std::str::from_utf8(value).ok()).filter(|value| is_valid(value)) {
        found.insert(value);
        if found.len() == MOST_LINKS {
            break;
        }
    }
    found
}

/// `00-TRACE_ID-SPAN_ID-FLAGS` in lower-case hex, neither id all zeros. Later versions may
/// have more behind it.
fn is_valid(value: &str) -> bool {
    let mut parts = value.split('-');
    let hex = |part: Option<&str>, length: usize| {
        part.is_some_and(|part| part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
    };
    let id = |part: Option<&str>, length| hex(part, length) && part.is_some_and(|part| part.bytes().any(|b| b != b'0'));
    let version = parts.next();
    let known = hex(version, 2) && version != Some("ff");
    known
        && id(parts.next(), 32)
        && id(parts.next(), 16)
        && hex(parts.next(), 2)
        && (version != Some("00") || parts.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_what_the_standard_allows_is_a_context() {
        assert!(is_valid(RIGHT));
        assert!(is_valid("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"));
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(!is_valid(wrong), "{wrong}");
        }
    }

    #[test]
    fn links_are_distinct_and_bounded() {
        let many: Vec<String> = (1..100).flat_map(|n| vec![format!("00-{n:032x}-{n:016x}-01"); 2]).collect();
        let found = distinct(many.iter().map(|value| value.as_bytes()));
        assert_eq!(found.len(), MOST_LINKS);
        assert_eq!(distinct([b"\xff".as_slice(), RIGHT.as_bytes()].into_iter()).len(), 1);
    }
}
