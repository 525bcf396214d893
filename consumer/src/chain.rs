//! The two hash chains. ARCHITECTURE.md defines them byte for byte.
//!
//! The *message chain* of a stream runs over every message and can be recomputed
//! from the topic alone. The *batch chain* runs over the rows that each batch wrote
//! and can be recomputed from the tables alone. All integers are big-endian.

use crate::message::Message;
use postonce_schema::Header;
use sha2::{Digest, Sha256};

/// A SHA-256 hash.
pub type Hash = [u8; 32];

/// A hash as 64 lower-case hex digits, in JSON and for people.
pub mod hex {
    use super::Hash;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn text(hash: &Hash) -> String {
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn parse(text: &str) -> Option<Hash> {
        let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
        let bytes = digits.chunks_exact(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok());
        if digits.len() == 64 { bytes.collect::<Option<Vec<u8>>>()?.try_into().ok() } else { None }
    }

    pub fn serialize<S: Serializer>(hash: &Hash, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(hash))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Hash, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom("a SHA-256 is 64 hex digits"))
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn a_hash_survives_its_text() {
            let hash = std::array::from_fn(|n| u8::try_from(n * 7 + 9).unwrap_or_default());
            assert_eq!(super::parse(&super::text(&hash)), Some(hash));
            for wrong in ["", "0", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64), &"é".repeat(64)] {
                assert_eq!(super::parse(wrong), None, "{wrong}");
            }
        }
    }
}

/// Before the first message, and before the first batch.
pub const START: Hash = [0; 32];

/// SHA-256 of no bytes at all: of most messages' headers.
const OF_NOTHING: Hash = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41,
    0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// The header that marks a copy of a quarantined message, sent again on a person's word.
/// Its value is the place of the first, `topic/partition/offset`.
pub const RETRY_HEADER: &str = "postonce-retry";

/// The three hashes of a message's parts. Absent key or value: 32 zero bytes, which
/// tells them from empty ones.
pub struct Parts {
    key: Hash,
    value: Hash,
    headers: Hash,
    /// Only of a copy sent again: the headers without the mark, as the first had them.
    first_headers: Option<Hash>,
}

impl Parts {
    pub fn of(message: &Message<'_>) -> Self {
        let hash = |bytes: Option<&[u8]>| bytes.map_or(START, |bytes| Sha256::digest(bytes).into());
        let marked = message.headers.iter().any(is_mark);
        Self {
            key: hash(message.key),
            value: hash(message.value),
            headers: match message.headers.as_slice() {
                [] => OF_NOTHING,
                headers => Sha256::digest(encode_headers(headers)).into(),
            },
            first_headers: marked.then(|| Sha256::digest(encode_headers(unmarked(&message.headers))).into()),
        }
    }

    /// Whether this is a copy that was sent again.
    pub fn is_retry(&self) -> bool {
        self.first_headers.is_some()
    }

    /// Names a message's content wherever it stands. A copy that was sent again has the
    /// name of the first: the mark does not count.
    pub fn content(&self) -> Hash {
        let headers = self.first_headers.unwrap_or(self.headers);
        Sha256::new().chain_update(self.key).chain_update(self.value).chain_update(headers).finalize().into()
    }

    /// The next link: SHA-256(h, offset, SHA-256 of key, of value, of headers).
    pub fn link(&self, before: Hash, offset: i64) -> Hash {
        Sha256::new()
            .chain_update(before)
            .chain_update(offset.to_be_bytes())
            .chain_update(self.key)
            .chain_update(self.value)
            .chain_update(self.headers)
            .finalize()
            .into()
    }
}

/// For each header: length of the name (4 bytes), name, length of the value
/// (4 bytes, `FFFFFFFF` for null), value.
pub fn encode_headers<'h, 'a: 'h>(headers: impl IntoIterator<Item = &'h Header<'a>>) -> Vec<u8> {
    // Kafka's own lengths are 32-bit and signed, so they fit.
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
    let mut out = Vec::new();
    for header in headers {
        out.extend_from_slice(&length(header.name.len()));
        out.extend_from_slice(header.name);
        match header.value {
            Some(value) => {
                out.extend_from_slice(&length(value.len()));
                out.extend_from_slice(value);
            }
            None => out.extend_from_slice(&u32::MAX.to_be_bytes()),
        }
    }
    out
}

/// The headers of a message but for the mark of a copy that was sent again.
pub fn unmarked<'h, 'a>(headers: &'h [Header<'a>]) -> impl Iterator<Item = &'h Header<'a>> {
    headers.iter().filter(|header| !is_mark(header))
}

fn is_mark(header: &Header<'_>) -> bool {
    header.name == RETRY_HEADER.as_bytes()
}

/// Reads what [`encode_headers`] has written; `None` where the bytes are damaged.
pub fn decode_headers(mut bytes: &[u8]) -> Option<Vec<Header<'_>>> {
    let mut headers = Vec::new();
    while !bytes.is_empty() {
        let name = take_bytes(&mut bytes)??;
        headers.push(Header { name, value: take_bytes(&mut bytes)? });
    }
    Some(headers)
}

/// A length and so many bytes; the inner `None` is null.
fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    let length = u32::from_be_bytes(*length);
    if length == u32::MAX {
        return Some(None);
    }
    let (taken, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = after;
    Some(Some(taken))
}

/// The hash of one batch: over what it says of its stream, and over the rows that it
/// wrote, in the order of their offsets.
pub struct BatchHash(Sha256);

impl BatchHash {
    /// `postonce:batch:v1 LF`, the previous hash, stream, seq, from, next, the length
    /// of the outcomes and the outcomes, the message chain.
    pub fn new(
        previous: Hash,
        stream: i64,
        seq: i64,
        (from, next): (i64, i64),
        outcomes: &[u8],
        messages: Hash,
    ) -> Self {
        let length = u64::try_from(outcomes.len()).unwrap_or(u64::MAX);
        Self(
            Sha256::new()
                .chain_update(b"postonce:batch:v1\n")
                .chain_update(previous)
                .chain_update(stream.to_be_bytes())
                .chain_update(seq.to_be_bytes())
                .chain_update(from.to_be_bytes())
                .chain_update(next.to_be_bytes())
                .chain_update(length.to_be_bytes())
                .chain_update(outcomes)
                .chain_update(messages),
        )
    }

    /// One row's canonical bytes.
    pub fn row(&mut self, row: &[u8]) {
        self.0.update(row);
    }

    pub fn finish(self) -> Hash {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::At;
    use postonce_schema::StreamId;

    fn header(name: &'static str, value: Option<&'static str>) -> Header<'static> {
        Header { name: name.as_bytes(), value: value.map(str::as_bytes) }
    }

    fn parts(headers: Vec<Header<'_>>) -> Parts {
        let at = At { stream: StreamId::from_i64(1), offset: 0 };
        Parts::of(&Message { at, key: None, value: Some(b"v"), headers, timestamp: None, leader_epoch: None })
    }

    #[test]
    fn a_copy_has_the_name_of_the_first_and_a_link_of_its_own() {
        let (a, b) = (header("a", Some("1")), header("b", None));
        let mark = header(RETRY_HEADER, Some("payments/0/1"));
        let (first, copy) = (parts(vec![a, b]), parts(vec![a, mark, b]));
        assert_eq!(first.content(), copy.content());
        assert_ne!(first.link(START, 0), copy.link(START, 0), "the chain covers every header");
        assert!(copy.is_retry() && !first.is_retry());
        assert_ne!(parts(vec![b, a]).content(), first.content(), "the order of the others counts");
        assert_ne!(parts(vec![header("postonce-Retry", None)]).content(), parts(vec![]).content());
    }

    #[test]
    fn no_headers_are_hashed_as_no_bytes() {
        assert_eq!(parts(vec![]).headers, Hash::from(Sha256::digest(encode_headers(&[]))));
    }

    #[test]
    fn headers_are_read_back() {
        let headers = vec![header("", Some("")), header("n", None), header("n", Some("\0\u{ff}"))];
        let bytes = encode_headers(&headers);
        let told = |headers: &[Header<'_>]| encode_headers(headers);
        assert_eq!(told(&decode_headers(&bytes).unwrap()), bytes);
        assert_eq!(decode_headers(&bytes).unwrap().len(), 3);
        for damaged in [&bytes[..bytes.len() - 1], &bytes[1..], &[0xff; 4]] {
            assert!(decode_headers(damaged).is_none(), "{damaged:?}");
        }
    }
}
