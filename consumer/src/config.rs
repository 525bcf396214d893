//! Everything that can be set about a consumer, in one place.

use crate::accept::Accepted;
use crate::database::Database;
use postonce_schema::Decoder;
use rdkafka::config::ClientConfig;
use std::net::SocketAddr;
use std::time::Duration;

/// The configuration of a consumer process. Not Debug: properties hold passwords.
pub struct Config {
    pub database: Database,
    pub kafka: Kafka,
    /// The rules, the allowed kinds, the clock's tolerance.
    pub decoder: Decoder,
    /// Threads, each with a Kafka consumer and a Postgres connection of its own.
    pub workers: usize,
    /// The most messages in one transaction.
    pub batch_messages: usize,
    /// Where `/metrics`, `/livez` and `/readyz` are served.
    pub listen: Option<SocketAddr>,
    /// How long these go on when a person is needed, before the process ends.
    pub stop_linger: Duration,
    /// What a person accepts, so that the consumer goes on where it has stopped.
    pub accepted: Accepted,
    /// A partition of which nothing comes for so long, although it has something, ends the
    /// worker's life.
    pub stuck_after: Duration,
    /// How far back the ledger may have to be healed from the topic.
    pub recovery_window: Duration,
}

/// How the topic is read.
#[derive(Clone)]
pub struct Kafka {
    pub brokers: String,
    pub topic: String,
    pub group: String,
    pub protocol: GroupProtocol,
    /// librdkafka properties of the user's own.
    pub properties: Vec<(String, String)>,
    /// The broker cannot tell topic ids and policies; go on without.
    pub unidentified_topic: bool,
}

/// Which protocol shares the partitions out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupProtocol {
    /// Cooperative-sticky.
    Classic,
    /// KIP-848: the broker assigns.
    Consumer,
}

/// A last stable offset that an open transaction holds back for so long is told, again and
/// again after as long.
pub const HELD_BACK_AFTER: Duration = Duration::from_secs(60);

/// The most messages in one transaction, unless the user says otherwise. Behind a backlog a
/// batch is full; a larger one has fewer rows of balances and accounts for each event (10,000
/// costs Postgres a tenth more), and keeps more in memory.
pub const BATCH_MESSAGES: u32 = 20_000;

/// The most bytes of messages in one transaction; a single larger one still goes.
pub const BATCH_BYTES: usize = 8 << 20;

/// What a promise rests on: not the user's to set.
const FIXED: [(&str, &str); 7] = [
    // The offset lives in Postgres, beside the money.
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // A missing offset is a gap that a person must acknowledge, never a silent jump.
    ("auto.offset.reset", "error"),
    // An aborted producer transaction never happened.
    ("isolation.level", "read_committed"),
    // librdkafka may skip a damaged batch after one error that names no partition.
    ("check.crcs", "true"),
    // A mistyped topic must not come into being.
    ("allow.auto.create.topics", "false"),
    ("enable.partition.eof", "false"),
];

/// Where we differ from librdkafka, and a user may differ from us.
const DEFAULTS: [(&str, &str); 8] = [
    // Every wait of a worker is bounded below this.
    ("max.poll.interval.ms", "60000"),
    // The default of 1000 lets a fast reader wait a second for each full queue.
    ("fetch.queue.backoff.ms", "2"),
    // The default of 64 MB for each consumer is memory without use.
    ("queued.max.messages.kbytes", "8192"),
    ("fetch.max.bytes", "4194304"),
    // New partitions are read when a client hears of them: by default after five minutes.
    ("topic.metadata.refresh.interval.ms", "10000"),
    ("socket.keepalive.enable", "true"),
    ("reconnect.backoff.max.ms", "2000"),
    // What the client measures of itself is among the metrics; by default it measures nothing.
    ("statistics.interval.ms", "5000"),
];

/// Only where the group speaks the classic protocol; the new one refuses them.
const CLASSIC: [(&str, &str); 3] = [
    ("partition.assignment.strategy", "cooperative-sticky"),
    // How long a crashed worker's partitions rest.
    ("session.timeout.ms", "6000"),
    ("heartbeat.interval.ms", "1500"),
];

/// A property that the user must not set.
#[derive(Debug, thiserror::Error)]
#[error("-X {name}: the promises of the ledger rest on {name}={value}; leave it out")]
pub struct FixedProperty {
    name: &'static str,
    value: &'static str,
}

impl Kafka {
    /// Refuses properties that would break a promise.
    pub fn check(&self) -> Result<(), FixedProperty> {
        for (name, value) in FIXED {
            if self.properties.iter().any(|(key, set)| key == name && set != value) {
                return Err(FixedProperty { name, value });
            }
        }
        Ok(())
    }

    /// For questions to the brokers.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", "postonce");
        for (key, value) in &self.properties {
            config.set(key, value);
        }
        config
    }

    /// For a worker's consumer.
    pub fn consumer_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", "postonce").set("group.id", &self.group);
        for (key, value) in DEFAULTS {
            config.set(key, value);
        }
        match self.protocol {
            GroupProtocol::Classic => CLASSIC.iter().for_each(|(key, value)| {
                config.set(*key, *value);
            }),
            GroupProtocol::Consumer => {
                config.set("group.protocol", "consumer");
            }
        }
        for (key, value) in &self.properties {
            config.set(key, value);
        }
        for (key, value) in FIXED {
            config.set(key, value);
        }
        config
    }
}
