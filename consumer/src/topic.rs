//! Which topic this is: its lineage, and whether a ledger may be built on it.
#![allow(unsafe_code, reason = "raw bindings to librdkafka: rdkafka has no call for a topic's id")]

use crate::claim::Lineage;
use crate::heard;
use crate::retention::Retention;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::{Client, ClientContext, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_int};
use std::ptr;
use std::time::Duration;

/// How long a broker may take to answer a question about the topic.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// The id of a topic whose broker cannot tell: Kafka's own zero UUID.
const ZERO_TOPIC_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The topic cannot be used, or nobody could be asked.
#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    #[error(
        "topic {topic} has cleanup.policy={policy}: compaction may keep a late `created` and drop the `succeeded` \
         before it; set cleanup.policy=delete"
    )]
    Compacted { topic: String, policy: String },
    #[error("topic {0} does not exist on this cluster")]
    NoSuchTopic(String),
    #[error("Kafka did not tell its cluster id within {ASK_TIMEOUT:?}; are the brokers reachable?")]
    NoClusterId,
    #[error("Kafka does not tell the id of topic {topic}: {why}")]
    NoTopicId { topic: String, why: String },
    #[error("Kafka cannot be asked about the topic: {0}")]
    Kafka(#[from] KafkaError),
    #[error("no connection to Kafka: {complaint}")]
    NoConnection { complaint: String },
}

impl TopicError {
    /// The same, with what the client has complained of meanwhile, where nobody answered.
    pub(crate) fn because(self, complaint: impl FnOnce() -> Option<String>) -> Self {
        match self {
            Self::Kafka(_) | Self::NoClusterId | Self::NoTopicId { .. } => match complaint() {
                Some(complaint) => Self::NoConnection { complaint },
                None => self,
            },
            error => error,
        }
    }
}

/// The lineage of a topic's offsets. With `unidentified` the broker is not asked for
/// what only an administrator's protocol tells: a test double knows none of it.
pub fn lineage<C: ClientContext>(client: &Client<C>, topic: &str, unidentified: bool) -> Result<Lineage, TopicError> {
    let cluster_id = client.fetch_cluster_id(ASK_TIMEOUT).ok_or(TopicError::NoClusterId)?;
    let topic_id = if unidentified { ZERO_TOPIC_ID.to_owned() } else { topic_id(client, topic)? };
    Ok(Lineage { cluster_id, topic: topic.to_owned(), topic_id })
}

/// Refuses a compacted topic; how long it keeps its messages.
pub async fn check_policy(config: &ClientConfig, topic: &str) -> Result<Retention, TopicError> {
    let admin: AdminClient<DefaultClientContext> = config.create()?;
    let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT));
    let results = admin.describe_configs(&[ResourceSpecifier::Topic(topic)], &options).await;
    let results = results.map_err(|error| TopicError::Kafka(error).because(|| heard::find_out(config)))?;
    let resource = match results.into_iter().next() {
        Some(Ok(resource)) => resource,
        Some(Err(RDKafkaErrorCode::UnknownTopicOrPartition)) | None => {
            return Err(TopicError::NoSuchTopic(topic.to_owned()));
        }
        Some(Err(code)) => return Err(KafkaError::AdminOp(code).into()),
    };
    let setting = |name| resource.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
    let policy = setting("cleanup.policy");
    if policy.contains("compact") {
        return Err(TopicError::Compacted { topic: topic.to_owned(), policy });
    }
    Ok(Retention::of(&setting("retention.ms"), &setting("retention.bytes")))
}

/// Asks for the topic's id. rdkafka has no call for it, so librdkafka's own is used.
fn topic_id<C: ClientContext>(client: &Client<C>, topic: &str) -> Result<String, TopicError> {
    let failed = |why: String| TopicError::NoTopicId { topic: topic.to_owned(), why };
    let name = CString::new(topic).map_err(|_| failed("the name holds a zero byte".to_owned()))?;
    let timeout = c_int::try_from(ASK_TIMEOUT.as_millis()).unwrap_or(c_int::MAX);
    let client = client.native_ptr();
    // SAFETY: `client` lives as long as the borrow of `Client`. Every object made here
    // is destroyed once below, after the last use of what it owns; the strings that
    // librdkafka lends are copied before that.
    unsafe {
        let mut names = [name.as_ptr()];
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let queue = sys::rd_kafka_queue_new(client);
        let options =
            sys::rd_kafka_AdminOptions_new(client, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS);
        sys::rd_kafka_AdminOptions_set_request_timeout(options, timeout, ptr::null_mut(), 0);
        sys::rd_kafka_DescribeTopics(client, topics, options, queue);
        let event = sys::rd_kafka_queue_poll(queue, timeout);
        let id = if event.is_null() { Err("no answer in time".to_owned()) } else { id_of(event) };
        if !event.is_null() {
            sys::rd_kafka_event_destroy(event);
        }
        sys::rd_kafka_AdminOptions_destroy(options);
        sys::rd_kafka_TopicCollection_destroy(topics);
        sys::rd_kafka_queue_destroy(queue);
        id.map_err(failed)
    }
}

/// # Safety
/// `event` is an event that librdkafka has handed out and that is not destroyed yet.
unsafe fn id_of(event: *mut sys::rd_kafka_event_t) -> Result<String, String> {
    // SAFETY: null is what librdkafka returns for "not there" and is checked for; what
    // it lends lives as long as the event.
    unsafe {
        let text = |pointer| CStr::from_ptr(pointer).to_string_lossy().into_owned();
        if sys::rd_kafka_event_error(event) != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(text(sys::rd_kafka_event_error_string(event)));
        }
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        let mut count = 0;
        let found = if result.is_null() {
            ptr::null_mut()
        } else {
            sys::rd_kafka_DescribeTopics_result_topics(result, &mut count)
        };
        if found.is_null() || count == 0 {
            return Err("the answer names no topic".to_owned());
        }
        let error = sys::rd_kafka_TopicDescription_error(*found);
        if !error.is_null() && sys::rd_kafka_error_code(error) != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(text(sys::rd_kafka_error_string(error)));
        }
        let id = sys::rd_kafka_Uuid_base64str(sys::rd_kafka_TopicDescription_topic_id(*found));
        let id = if id.is_null() { String::new() } else { text(id) };
        if id.is_empty() || id == ZERO_TOPIC_ID {
            return Err("the broker keeps no topic ids (Kafka before 2.8)".to_owned());
        }
        Ok(id)
    }
}
