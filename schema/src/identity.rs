//! Who is who: ids are hashes of what they name, so no database hands them out,
//! two workers agree on them without talking, and anyone can recompute them.

use crate::Timestamp;
use sha2::{Digest, Sha256};
use std::fmt;

macro_rules! bytes_id {
    ($(#[$doc:meta])* $name:ident, $length:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $length]);

        impl $name {
            /// Back from its bytes, as the database holds them.
            pub fn from_bytes(bytes: [u8; $length]) -> Self {
                Self(bytes)
            }

            /// Its raw bytes.
            pub fn as_bytes(&self) -> &[u8; $length] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), ":"))?;
                hex(&self.0, f)
            }
        }
    };
}

bytes_id!(
    /// Which event: SHA-256 over `postonce:v1 LF type LF resource LF updatedAt`,
    /// the time as [`Timestamp`] prints it. Type and resource hold no control
    /// characters, so the lines cannot run into each other.
    EventId, 32
);
bytes_id!(
    /// Which resource: the first 16 bytes of SHA-256 over
    /// `postonce:resource:v1 LF kind LF path`.
    ResourceId, 16
);
bytes_id!(
    /// Which account: the first 16 bytes of SHA-256 over
    /// `postonce:account:v1 LF path LF asset`.
    AccountId, 16
);
bytes_id!(
    /// What an event says, as far as the ledger reads it: the first 16 bytes of
    /// SHA-256 over the preimage that [`Facts`](crate::Facts) defines.
    Fingerprint, 16
);

/// Which stream, the lineage of one partition's offsets: the first 8 bytes
/// of SHA-256 over `postonce:stream:v1 LF cluster LF topic LF topic id LF
/// partition`, the top bit cleared so that it is a positive `bigint`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(i64);

impl EventId {
    /// `kind` and `state` are the two halves of the type.
    pub fn new(kind: &str, state: &str, resource: &str, updated_at: Timestamp) -> Self {
        Self(Sha256::digest(Self::preimage(kind, state, resource, updated_at)).into())
    }

    /// The bytes that are hashed: `printf '%s' … | sha256sum` gives the id.
    pub fn preimage(kind: &str, state: &str, resource: &str, updated_at: Timestamp) -> String {
        let mut out = String::with_capacity(64 + kind.len() + state.len() + resource.len());
        for text in ["postonce:v1\n", kind, ".", state, "\n", resource, "\n"] {
            out.push_str(text);
        }
        updated_at.write(&mut out);
        out
    }

    /// Reads `evt_` and 64 hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("evt_")?.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? * 16 + nibble(pair[1])?;
        }
        Some(Self(bytes))
    }
}

/// `evt_` and 64 lower-case hex digits.
impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("evt_")?;
        hex(&self.0, f)
    }
}

impl ResourceId {
    /// `path` is the event's `resource`, such as `stripe/acct_1/pi_3Nf`.
    pub fn new(kind: &str, path: &str) -> Self {
        Self(first_16(&["postonce:resource:v1", kind, path]))
    }
}

impl AccountId {
    /// The same path in two assets is two accounts.
    pub fn new(path: &str, asset: &str) -> Self {
        Self(first_16(&["postonce:account:v1", path, asset]))
    }
}

impl Fingerprint {
    /// Over a preimage that is complete.
    pub fn of(preimage: &[u8]) -> Self {
        Self(head(&Sha256::digest(preimage).into()))
    }
}

impl StreamId {
    /// `topic_id` as Kafka prints it (base64).
    pub fn new(cluster: &str, topic: &str, topic_id: &str, partition: i32) -> Self {
        let preimage = ["postonce:stream:v1", cluster, topic, topic_id, &partition.to_string()].join("\n");
        let hash: [u8; 32] = Sha256::digest(preimage).into();
        Self(i64::from_be_bytes(head(&hash)) & i64::MAX)
    }

    /// Back from the database.
    pub fn from_i64(id: i64) -> Self {
        Self(id)
    }

    /// As the database holds it.
    pub fn as_i64(self) -> i64 {
        self.0
    }
}

fn first_16(lines: &[&str]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            hash.update(b"\n");
        }
        hash.update(line.as_bytes());
    }
    head(&hash.finalize().into())
}

fn head<const N: usize>(hash: &[u8; 32]) -> [u8; N] {
    std::array::from_fn(|i| hash[i])
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}
