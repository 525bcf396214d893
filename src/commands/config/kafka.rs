//! What Kafka says to `config check --connect`.

use super::check::Finding;
use anyhow::Context;
use postonce_consumer::config::Kafka;
use postonce_consumer::topic;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::base_consumer::BaseConsumer;
use rdkafka::consumer::{Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use std::sync::{Mutex, PoisonError};

/// Keeps the last that librdkafka says: why nobody answers is known to it alone.
#[derive(Default)]
struct Listener(Mutex<String>);

impl ClientContext for Listener {
    fn error(&self, _: KafkaError, reason: &str) {
        reason.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl ConsumerContext for Listener {}

/// Which cluster and topic it is, and whether a ledger may rest on it. `place` is where the
/// brokers are set.
pub fn ask(kafka: &Kafka, place: &str) -> Vec<Finding> {
    let client = BaseConsumer::from_config_and_context(&kafka.client_config(), Listener::default());
    let client: BaseConsumer<Listener> = match client {
        Ok(client) => client,
        Err(error) => return vec![Finding::problem("kafka", format!("{place}: {error}"))],
    };
    let Some(cluster) = client.client().fetch_cluster_id(topic::ASK_TIMEOUT) else {
        // Errors are handed over by a poll.
        let _ = client.poll(std::time::Duration::from_millis(100));
        let said = client.context().0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let brokers = &kafka.brokers;
        let error = anyhow::anyhow!("{brokers} has not answered within {:?}: {said}", topic::ASK_TIMEOUT);
        return vec![Finding::failed("kafka", place, &error)];
    };
    let mut found = vec![Finding::ok("kafka", format!("cluster {cluster} at {}", kafka.brokers))];
    match topic::lineage(client.client(), &kafka.topic, false) {
        Ok(lineage) => found.push(Finding::ok("topic", format!("{}, id {}", kafka.topic, lineage.topic_id))),
        Err(error) => {
            found.push(Finding::problem("topic", error.to_string()));
            return found;
        }
    }
    found.extend(settings(kafka).unwrap_or_else(|error| vec![Finding::problem("topic", format!("{error:#}"))]));
    found
}

/// Whether messages can vanish from the topic before or after they were read.
fn settings(kafka: &Kafka) -> anyhow::Result<Vec<Finding>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
    let admin: AdminClient<DefaultClientContext> = kafka.client_config().create()?;
    let options = AdminOptions::new().request_timeout(Some(topic::ASK_TIMEOUT));
    let answers = runtime.block_on(admin.describe_configs(&[ResourceSpecifier::Topic(&kafka.topic)], &options))?;
    let answer = answers.into_iter().next().context("Kafka says nothing of the topic's settings")?;
    let answer = answer.map_err(KafkaError::AdminOp)?;
    let setting = |name| answer.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
    let mut found = Vec::new();
    let policy = setting("cleanup.policy");
    found.push(if policy == "delete" {
        Finding::ok("topic", format!("cleanup.policy=delete, retention.ms={}", setting("retention.ms")))
    } else {
        Finding::problem("topic", format!("cleanup.policy={policy} loses states before they are read: set delete"))
    });
    if setting("unclean.leader.election.enable") == "true" {
        let what = "unclean.leader.election.enable=true: a new leader may lack what was confirmed; set false";
        found.push(Finding::problem("topic", what));
    }
    if setting("min.insync.replicas") == "1" {
        let what = "min.insync.replicas=1: a confirmed message may be on one disk alone; set 2 with 3 replicas";
        found.push(Finding::warning("topic", what));
    }
    Ok(found)
}
