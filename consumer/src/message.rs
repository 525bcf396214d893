//! A Kafka message, and what becomes of it.

use postonce_schema::{Event, Header, Reject, StreamId, Timestamp};

/// One message of a batch; its bytes stay where the Kafka client put them.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    pub at: At,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: Vec<Header<'a>>,
    /// The Kafka timestamp, milliseconds since 1970.
    pub timestamp: Option<i64>,
    /// The epoch of the leader that took it; none in a log older than Kafka 0.11.
    pub leader_epoch: Option<i32>,
}

/// Where a message stands. A posting is named by this place and a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct At {
    pub stream: StreamId,
    pub offset: i64,
}

/// What the bytes of a message turned out to be.
pub type Decoded<'a> = Result<Event<'a>, Reject>;

/// What became of one message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// Accepted, and money moved.
    Posted,
    /// Accepted, and no money moved.
    Noted,
    /// Known already, with the same content.
    Duplicate,
    /// Accepted, but its resource was already in a greater state.
    Superseded,
    /// The id is known with another content. Kept, and a person should look.
    Conflict,
    /// Refused: in quarantine with its bytes and its reason.
    Rejected,
}

impl Outcome {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 6] =
        [Self::Posted, Self::Noted, Self::Duplicate, Self::Superseded, Self::Conflict, Self::Rejected];

    /// Its byte in `batches.outcomes`, and in `events.outcome`.
    pub fn byte(self) -> u8 {
        match self {
            Self::Posted => b'P',
            Self::Noted => b'N',
            Self::Duplicate => b'D',
            Self::Superseded => b'S',
            Self::Conflict => b'C',
            Self::Rejected => b'R',
        }
    }

    /// Back from its byte.
    pub fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.byte() == byte)
    }

    /// Its name in metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::Noted => "noted",
            Self::Duplicate => "duplicate",
            Self::Superseded => "superseded",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
        }
    }
}

impl Message<'_> {
    /// The Kafka timestamp as the database holds it; none where the message has
    /// none or it lies outside the years 1970 to 9999.
    pub fn time(&self) -> Option<Timestamp> {
        Timestamp::from_micros(self.timestamp?.checked_mul(1000)?)
    }
}
