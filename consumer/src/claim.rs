//! What a worker holds of the streams it has claimed: where each goes on, and the
//! chains so far. It is what the fence compares, and it lives no longer than the
//! worker's life.

use crate::chain::Hash;
use postonce_schema::StreamId;
use uuid::Uuid;

/// One lineage of offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    pub cluster_id: String,
    pub topic: String,
    /// As Kafka prints it, base64.
    pub topic_id: String,
    pub partition: i32,
}

impl Lineage {
    pub fn stream(&self) -> StreamId {
        StreamId::new(&self.cluster_id, &self.topic, &self.topic_id, self.partition)
    }
}

/// A claimed stream, as the last commit left it.
#[derive(Debug, Clone)]
pub struct Claim {
    pub stream: StreamId,
    pub partition: i32,
    /// The random token that makes the claim ours.
    pub token: Uuid,
    pub epoch: i64,
    /// The first offset without an outcome.
    pub next_offset: i64,
    pub batch_seq: i64,
    pub message_chain: Hash,
    pub batch_chain: Hash,
}
