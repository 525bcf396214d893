//! Reading the members that the ledger needs from a JSON object, and no others.
//!
//! serde_json does the parsing. What is added here is what a ledger needs beside
//! it: a repeated key is seen where it is read, the depth is bounded also where
//! serde_json skips, and numbers stay the text that was sent.

use crate::Reject;
use crate::reject::excerpt;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Objects and arrays within each other, the outermost counted.
pub const MAX_DEPTH: usize = 127;

/// The members of one object that were asked for, in the order of the names.
pub struct Members<'a>(Vec<Member<'a>>);

#[derive(Clone, Copy)]
enum Member<'a> {
    Absent,
    /// Its JSON text.
    Once(&'a RawValue),
    Repeated,
}

impl<'a> Members<'a> {
    /// Reads the members `names` of the object `text`. `at` is the object's
    /// place, for the error.
    pub fn read<S: AsRef<str>>(text: &'a str, names: &[S], at: &str) -> Result<Self, Reject> {
        if !text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{') {
            return Err(Reject::BadJson { at: at.to_owned(), why: "the text is not a JSON object".to_owned() });
        }
        let bad = |error: serde_json::Error| Reject::BadJson { at: at.to_owned(), why: error.to_string() };
        let mut json = serde_json::Deserializer::from_str(text);
        let members = MembersSeed(names).deserialize(&mut json).map_err(bad)?;
        json.end().map_err(bad)?;
        Ok(members)
    }

    /// The member at `index`, if its key stood once at most.
    pub fn get(&self, index: usize, at: impl FnOnce() -> String) -> Result<Option<&'a RawValue>, Reject> {
        match self.0[index] {
            Member::Absent => Ok(None),
            Member::Once(raw) => Ok(Some(raw)),
            Member::Repeated => Err(Reject::RepeatedKey { at: at() }),
        }
    }

    /// Whether the member's key stood at all.
    pub fn has(&self, index: usize) -> bool {
        !matches!(self.0[index], Member::Absent)
    }
}

struct MembersSeed<'n, S>(&'n [S]);

impl<'de, S: AsRef<str>> DeserializeSeed<'de> for MembersSeed<'_, S> {
    type Value = Members<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de, S: AsRef<str>> Visitor<'de> for MembersSeed<'_, S> {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = vec![Member::Absent; self.0.len()];
        while let Some(name) = map.next_key_seed(NameSeed(self.0))? {
            match name {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(index) => {
                    let value = map.next_value()?;
                    members[index] = match members[index] {
                        Member::Absent => Member::Once(value),
                        Member::Once(_) | Member::Repeated => Member::Repeated,
                    };
                }
            }
        }
        Ok(Members(members))
    }
}

/// A key becomes its place in the list of names; escapes in it are resolved.
struct NameSeed<'n, S>(&'n [S]);

impl<'de, S: AsRef<str>> DeserializeSeed<'de> for NameSeed<'_, S> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        // As bytes, serde_json lets a lone surrogate pass: the name of a member that
        // is not read refuses no event.
        json.deserialize_bytes(self)
    }
}

impl<S: AsRef<str>> Visitor<'_> for NameSeed<'_, S> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bytes<E>(self, key: &[u8]) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|name| name.as_ref().as_bytes() == key))
    }
}

/// Refuses what is nested too deep. serde_json bounds the depth only of what it
/// builds; members that it skips may be as deep as they like.
pub fn check_depth(text: &str) -> Result<(), Reject> {
    // No text is deeper than it has opening brackets, so nearly all are done here.
    if memchr::memchr2_iter(b'{', b'[', text.as_bytes()).nth(MAX_DEPTH).is_none() {
        return Ok(());
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(Reject::TooDeep);
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// The string that `raw` holds, borrowed from the message unless it has escapes.
pub fn string<'a>(raw: &'a RawValue, at: impl FnOnce() -> String) -> Result<Cow<'a, str>, Reject> {
    let text = raw.get();
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Err(Reject::WrongType { at: at(), expected: "a string", found: type_of(raw) });
    };
    if !inner.contains('\\') {
        return Ok(Cow::Borrowed(inner));
    }
    match serde_json::from_str(text) {
        Ok(owned) => Ok(Cow::Owned(owned)),
        Err(error) => Err(Reject::BadJson { at: at(), why: format!("{} is no text: {error}", excerpt(text)) }),
    }
}

/// Whether a text holds a control character (Unicode Cc: below U+0020, and U+007F to U+009F).
pub fn has_control(text: &str) -> bool {
    if text.is_ascii() { text.bytes().any(|byte| byte.is_ascii_control()) } else { text.chars().any(char::is_control) }
}

/// What a JSON value is, for an error's sentence.
pub fn type_of(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// One more step of a JSON pointer (RFC 6901: `~` and `/` are escaped).
pub fn pointer(parent: &str, member: &str) -> String {
    format!("{parent}/{}", member.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_bounded_also_in_members_that_are_skipped() {
        let nested = |depth: usize| format!(r#"{{"skipped":{}1{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert_eq!(check_depth(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(check_depth(&nested(MAX_DEPTH + 1)), Err(Reject::TooDeep));
        let in_a_string = format!(r#"{{"a":"{}\""}}"#, "[".repeat(500));
        assert_eq!(check_depth(&in_a_string), Ok(()));
    }

    #[test]
    fn every_control_character_is_seen() {
        for c in (0..=0x2_ffff).filter_map(char::from_u32) {
            assert_eq!(has_control(&format!("a{c}b")), c.is_control(), "{c:?}");
        }
        assert!(has_control("é\u{7}") && has_control("\u{7}é"));
    }

    #[test]
    fn a_repeated_key_is_seen_through_its_escapes() {
        let text = r#"{"amount":1,"other":1,"other":2,"\u0061mount":2}"#;
        let members = Members::read(text, &["amount"], "").expect("JSON");
        assert_eq!(members.get(0, || "/amount".to_owned()).unwrap_err().code(), "repeated_key");
    }

    #[test]
    fn members_that_are_not_read_are_not_judged() {
        let text = r#"{"a":"\ud800","b":1e400,"c":5}"#;
        let members = Members::read(text, &["c"], "").expect("JSON");
        assert_eq!(members.get(0, String::new).map(|raw| raw.map(RawValue::get)), Ok(Some("5")));
    }
}
