//! Why nothing more can be sent. What befalls one event alone is a
//! [`DeliveryFailure`](crate::DeliveryFailure), not an error.

use std::time::Duration;

use rdkafka::error::KafkaError;

/// A failure of the producer, never of one event.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A property is unknown, has a wrong value, or contradicts another.
    #[error("the Kafka client refuses its configuration: {0}")]
    Config(#[source] KafkaError),

    /// No broker answered.
    #[error("no answer from Kafka at {brokers} within {} s: {reason}", .timeout.as_secs_f32())]
    Unreachable { brokers: String, timeout: Duration, reason: String },

    /// The topic is not there, or this client may not write to it.
    #[error("cannot write to topic {topic}: {reason}")]
    Topic { topic: String, reason: String },

    /// The client has ended for good: its promise of no gap and no repeat
    /// within a partition no longer holds. What was not confirmed must be sent
    /// by a new producer; a copy that arrives twice is one event to the ledger.
    #[error("the Kafka producer has failed for good: {0}")]
    Fatal(String),

    /// Not every event was confirmed or refused in time. They are still under way.
    #[error("{in_flight} events still unconfirmed after {} s", .timeout.as_secs_f32())]
    FlushTimeout { in_flight: usize, timeout: Duration },
}
