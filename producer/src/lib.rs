//! From upstream to topic.
//!
//! - [`Producer`] sends messages to Kafka and confirms the delivery of each.
//! - [`Envelope`] reads an event as JSON, chooses its Kafka key and writes it
//!   as it is or as CloudEvents 1.0, structured or binary.
//! - [`generate`] makes a workload: the same seed gives the same bytes.
//! - [`send_all`] sends a workload and counts what was confirmed.
//!
//! ```no_run
//! use std::time::Duration;
//! use postonce_producer::{Config, Encoding, Envelope, Message, Producer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let producer = Producer::new(&Config::new("localhost:9092", "payments"))?;
//! let json = br#"{"type":"payment.succeeded","resource":"stripe/acct_1/pi_3Nf",
//!     "updatedAt":"2026-01-02T03:04:05.678901Z",
//!     "data":{"provider":"stripe","merchant":"m_1","currency":"EUR","amount":1999,"fee":58}}"#;
//! let envelope = Envelope::parse(json)?;
//! let encoded = envelope.encode(Encoding::Plain)?;
//! producer.send(Message::of(&encoded, 1))?;
//! let report = producer.flush(Duration::from_secs(30))?;
//! assert_eq!(report.delivered, 1);
//! # Ok(())
//! # }
//! ```

mod delivery;
mod envelope;
mod error;
pub mod generate;
mod producer;

pub use delivery::{DeliveryFailure, Report};
pub use envelope::{Encoded, Encoding, Envelope, Malformed};
pub use error::Error;
pub use producer::{Config, Headers, Message, Producer, send_all};
