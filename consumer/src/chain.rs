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

/// The three hashes of a message's parts. Absent key or value: 32 zero bytes, which
/// tells them from empty ones.
pub struct Parts {
    key: Hash,
    value: Hash,
    headers: Hash,
}

impl Parts {
    pub fn of(message: &Message<'_>) -> Self {
        let hash = |bytes: Option<&[u8]>| bytes.map_or(START, |bytes| Sha256::digest(bytes).into());
        Self {
            key: hash(message.key),
            value: hash(message.value),
            headers: Sha256::digest(encode_headers(&message.headers)).into(),
        }
    }

    /// Names a message's content wherever it stands.
    pub fn content(&self) -> Hash {
        Sha256::new().chain_update(self.key).chain_update(self.value).chain_update(self.headers).finalize().into()
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
pub fn encode_headers(headers: &[Header<'_>]) -> Vec<u8> {
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
