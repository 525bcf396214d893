//! How a person names a case: by the first digits of a hash, or by a place in the topic.

use crate::chain::{Hash, hex};
use std::fmt;

/// Fewer would soon be ambiguous.
const LEAST_DIGITS: usize = 8;
/// Of a SHA-256 hash.
const MOST_DIGITS: usize = 64;

/// One case, or one message with several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Prefix(Prefix),
    Place(Place),
}

/// The first hex digits of a SHA-256 hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    digits: String,
    /// All hashes that begin so lie between these two: a range of the index.
    pub least: Hash,
    pub greatest: Hash,
}

/// `topic/partition/offset`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
}

/// A text that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write {LEAST_DIGITS} to {MOST_DIGITS} hex digits of {0}, or topic/partition/offset")]
pub struct BadName(&'static str);

impl Name {
    /// A refused message, by its id or by a place where it was refused.
    pub fn of_message(text: &str) -> Result<Self, BadName> {
        Self::parse(text).ok_or(BadName("the id that `list` shows"))
    }

    /// An incident, by its event (`evt_…`) or by its place.
    pub fn of_event(text: &str) -> Result<Self, BadName> {
        Self::parse(text.strip_prefix("evt_").unwrap_or(text)).ok_or(BadName("an event id (evt_…)"))
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(place) = Place::parse(text) {
            return Some(Self::Place(place));
        }
        Prefix::parse(text).map(Self::Prefix)
    }
}

impl Prefix {
    fn parse(digits: &str) -> Option<Self> {
        let digits = digits.to_ascii_lowercase();
        let named = (LEAST_DIGITS..=MOST_DIGITS).contains(&digits.len());
        let (least, greatest) = (hex::parse(&format!("{digits:0<64}"))?, hex::parse(&format!("{digits:f<64}"))?);
        named.then_some(Self { digits, least, greatest })
    }
}

impl Place {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplitn(3, '/');
        let offset = parts.next()?.parse().ok()?;
        let partition = parts.next()?.parse().ok()?;
        let topic = parts.next().filter(|topic| !topic.is_empty())?.to_owned();
        Some(Self { topic, partition, offset })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => f.write_str(&prefix.digits),
            Self::Place(place) => place.fmt(f),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.partition, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_range_and_places_are_places() {
        let Ok(Name::Prefix(prefix)) = Name::of_message("ABCDEF012") else { panic!("no prefix") };
        assert_eq!(prefix.least[..6], [0xab, 0xcd, 0xef, 0x01, 0x20, 0x00]);
        assert_eq!(prefix.greatest[..6], [0xab, 0xcd, 0xef, 0x01, 0x2f, 0xff]);
        let place = Place { topic: "payments.eu".to_owned(), partition: 3, offset: 17 };
        assert_eq!(Name::of_message("payments.eu/3/17"), Ok(Name::Place(place.clone())));
        assert_eq!(Name::of_event("payments.eu/3/17"), Ok(Name::Place(place)));
        assert_eq!(Name::of_event("evt_abcdef012"), Name::of_message("abcdef012"));
    }

    #[test]
    fn other_text_names_nothing() {
        for text in ["", "abcdef0", "abcdefgh", "/1/2", "t/1", "t/x/2", "evt_abcdef01", &"a".repeat(65)] {
            assert!(Name::of_message(text).is_err(), "{text}");
        }
    }
}
