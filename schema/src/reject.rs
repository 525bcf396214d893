//! Why a message is refused.

use std::fmt::Write;

/// One reason to refuse a message. Each has a stable code (for dashboards and
/// filters), a place, and a sentence that tells the producer what to change.
///
/// The place is a JSON pointer (RFC 6901) into the message's value, `""` for the
/// whole of it, or `header:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    #[error("the message has no value (a tombstone means nothing here); send the event as the value")]
    Empty,
    #[error("the value has {bytes} bytes; send at most {max}", max = crate::MAX_MESSAGE_BYTES)]
    TooLarge { bytes: usize },
    #[error("the value is not UTF-8 from byte {offset} on; encode the JSON as UTF-8")]
    NotUtf8 { offset: usize },
    #[error("{why}; send one JSON object (RFC 8259) without a byte order mark")]
    BadJson { at: String, why: String },
    #[error("objects and arrays are nested more than {max} deep", max = crate::json::MAX_DEPTH)]
    TooDeep,
    #[error("the key stands more than once, and readers differ on which one counts; send it once")]
    RepeatedKey { at: String },
    #[error("the header stands more than once; send it once")]
    RepeatedHeader { at: String },
    #[error("{why}; send CloudEvents 1.0 in JSON format or binary mode with JSON data")]
    BadCloudEvent { at: String, why: String },
    #[error("the field is missing; {why}")]
    MissingField { at: String, why: String },
    #[error("expected {expected}, found {found}; null is not absence: leave the field out instead")]
    WrongType { at: String, expected: &'static str, found: &'static str },
    #[error(
        "{text} is not a type; send KIND.STATE such as payment.succeeded, each [a-z][a-z0-9_]*, together at most 64 bytes"
    )]
    BadType { at: String, text: String },
    #[error("{text} is not in the rules in force at that time; known: {known}")]
    UnknownType { at: String, text: String, known: String },
    #[error("events of kind {kind} are not allowed on this topic; start the consumer with --kinds to allow them")]
    KindNotAllowed { at: String, kind: String },
    #[error("a resource is 1 to 255 bytes without control characters, such as stripe/acct_1/pi_3Nf; {why}")]
    BadResource { at: String, why: String },
    #[error("{text} is not a time: {why}; send RFC 3339 such as 2026-01-02T03:04:05.123456Z")]
    BadTime { at: String, text: String, why: &'static str },
    #[error("{updated_at} is {hours} hours ahead of the message's own Kafka timestamp; check the producer's clock")]
    FutureTime { at: String, updated_at: String, hours: i64 },
    #[error("{why}; send {max} bytes at most, at least one, without control characters")]
    BadText { at: String, why: String, max: usize },
    #[error(
        "{text} is not an amount; send minor units as a JSON integer from 0 to 9007199254740991 (12.34 EUR is 1234)"
    )]
    BadAmount { at: String, text: String },
    #[error("{text} is no ISO 4217 code of the table; send an upper-case code such as EUR")]
    UnknownCurrency { at: String, text: String },
    #[error("{text} is no asset; send [A-Z][A-Z0-9._-]{{0,31}} that does not spell a currency code")]
    BadAsset { at: String, text: String },
    #[error("{text} is no account: {why}; send ROOT:SEGMENT[:SEGMENT…] such as assets:bank:main")]
    BadAccount { at: String, text: String, why: &'static str },
    #[error("{why}")]
    BadJournal { at: String, why: &'static str },
    /// Not the producer's fault: the database refused what the rules accept.
    #[error("Postonce could not post this event and set it aside: {why}; please report it")]
    Internal { why: String },
}

impl Reject {
    /// All codes.
    pub const CODES: [&str; 23] = [
        "empty",
        "too_large",
        "not_utf8",
        "bad_json",
        "too_deep",
        "repeated_key",
        "repeated_header",
        "bad_cloudevent",
        "missing_field",
        "wrong_type",
        "bad_type",
        "unknown_type",
        "kind_not_allowed",
        "bad_resource",
        "bad_time",
        "future_time",
        "bad_text",
        "bad_amount",
        "unknown_currency",
        "bad_asset",
        "bad_account",
        "bad_journal",
        "internal",
    ];

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooLarge { .. } => "too_large",
            Self::NotUtf8 { .. } => "not_utf8",
            Self::BadJson { .. } => "bad_json",
            Self::TooDeep => "too_deep",
            Self::RepeatedKey { .. } => "repeated_key",
            Self::RepeatedHeader { .. } => "repeated_header",
            Self::BadCloudEvent { .. } => "bad_cloudevent",
            Self::MissingField { .. } => "missing_field",
            Self::WrongType { .. } => "wrong_type",
            Self::BadType { .. } => "bad_type",
            Self::UnknownType { .. } => "unknown_type",
            Self::KindNotAllowed { .. } => "kind_not_allowed",
            Self::BadResource { .. } => "bad_resource",
            Self::BadTime { .. } => "bad_time",
            Self::FutureTime { .. } => "future_time",
            Self::BadText { .. } => "bad_text",
            Self::BadAmount { .. } => "bad_amount",
            Self::UnknownCurrency { .. } => "unknown_currency",
            Self::BadAsset { .. } => "bad_asset",
            Self::BadAccount { .. } => "bad_account",
            Self::BadJournal { .. } => "bad_journal",
            Self::Internal { .. } => "internal",
        }
    }

    /// Where in the message.
    pub fn place(&self) -> &str {
        match self {
            Self::Empty | Self::TooLarge { .. } | Self::NotUtf8 { .. } | Self::TooDeep | Self::Internal { .. } => "",
            Self::BadJson { at, .. }
            | Self::RepeatedKey { at }
            | Self::RepeatedHeader { at }
            | Self::BadCloudEvent { at, .. }
            | Self::MissingField { at, .. }
            | Self::WrongType { at, .. }
            | Self::BadType { at, .. }
            | Self::UnknownType { at, .. }
            | Self::KindNotAllowed { at, .. }
            | Self::BadResource { at, .. }
            | Self::BadTime { at, .. }
            | Self::FutureTime { at, .. }
            | Self::BadText { at, .. }
            | Self::BadAmount { at, .. }
            | Self::UnknownCurrency { at, .. }
            | Self::BadAsset { at, .. }
            | Self::BadAccount { at, .. }
            | Self::BadJournal { at, .. } => at,
        }
    }
}

/// At most 64 characters of what was sent, quoted, with control characters made
/// visible: it ends in terminals, logs and a text column, which cannot hold U+0000.
pub(crate) fn excerpt(text: &str) -> String {
    let mut out = String::from('"');
    for (i, c) in text.chars().enumerate() {
        if i == 64 {
            out.push('…');
            break;
        }
        // Writing to a string does not fail.
        let _ = write!(out, "{}", c.escape_debug());
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::Reject;

    #[test]
    fn all_codes_are_those_that_code_gives() {
        let code = include_str!("reject.rs").split("pub fn code").nth(1).unwrap();
        let code = code.split("pub fn place").next().unwrap();
        let given: Vec<&str> = code.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(given, Reject::CODES);
    }
}
