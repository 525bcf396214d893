//! What librdkafka complains of while it has no connection: its own answer is then only
//! that nobody answered in time.

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a client that could not ask is given to find out why.
const FIND_OUT: Duration = Duration::from_secs(3);
/// How long its complaints are listened to.
const HEAR: Duration = Duration::from_millis(200);

/// Says what librdkafka says for those who search, and keeps its last complaint.
#[derive(Default)]
pub struct Heard(Mutex<Option<String>>);

impl Heard {
    fn keep(&self, words: &str) {
        // Before it stands the thread's name, behind it the milliseconds and the repeats.
        let words = words.split_once("]: ").map_or(words, |(_, words)| words);
        let words = words.split(" (after ").next().unwrap_or(words);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(words.to_owned());
    }
}

impl ClientContext for Heard {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", ?level, facility, "{message}");
        if facility == "FAIL" {
            self.keep(message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
        // That all of them are down is no reason why.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.keep(reason);
        }
    }
}

impl ConsumerContext for Heard {}

/// A client for questions, of no group.
pub fn client(config: &ClientConfig) -> KafkaResult<BaseConsumer<Heard>> {
    let mut config = config.clone();
    // librdkafka wants a name for a group even where none is joined.
    config.set("group.id", "postonce-asks");
    BaseConsumer::from_config_and_context(&config, Heard::default())
}

/// Why this client has no connection, in librdkafka's words.
pub fn complaint(client: &BaseConsumer<Heard>) -> Option<String> {
    // Complaints wait in the client until somebody polls.
    let _ = client.poll(HEAR);
    client.context().0.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Why a client of this configuration gets none: one of another kind cannot be asked.
pub fn find_out(config: &ClientConfig) -> Option<String> {
    let client = client(config).ok()?;
    // It connects for a question only; the answer is not wanted.
    let _ = client.fetch_metadata(None, FIND_OUT);
    complaint(&client)
}
