//! The way of a refused message back to the topic.

use crate::args::ClientArgs;
use anyhow::{Context, bail, ensure};
use postonce_consumer::cases::quarantine::Original;
use postonce_consumer::chain::{RETRY_HEADER, decode_headers};
use postonce_producer::{Config, Headers, Message, Producer};
use postonce_schema::Header;
use std::collections::BTreeMap;
use std::time::Duration;

/// For one answer of Kafka.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(15);
/// Longer than a message's own two minutes: each is settled by then.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(150);

/// The topics that messages are sent to, each connected when first needed.
pub struct Destinations<'a> {
    pub brokers: &'a str,
    pub client: &'a ClientArgs,
    /// This topic on these brokers, wherever the message was refused.
    pub to: Option<&'a str>,
    open: BTreeMap<String, Destination>,
}

struct Destination {
    producer: Producer,
    cluster: String,
    partitions: usize,
}

/// A copy that Kafka did not take.
pub struct Undelivered {
    pub tag: usize,
    pub reason: String,
}

impl<'a> Destinations<'a> {
    pub fn new(brokers: &'a str, client: &'a ClientArgs, to: Option<&'a str>) -> Self {
        Self { brokers, client, to, open: BTreeMap::new() }
    }

    /// Whether the message may be sent from here at all: asked before anything is recorded.
    pub fn check(&mut self, original: &Original) -> anyhow::Result<()> {
        let (to, brokers) = (self.to, self.brokers);
        let destination = self.of(original)?;
        let cluster = original.cluster_id.as_deref().unwrap_or("(not known)");
        ensure!(
            to.is_some() || destination.cluster == cluster,
            "the message was refused on cluster {cluster}, and {brokers} is cluster {}; give the brokers of the first, \
             or, if the ledger reads from these now, name the topic there with --to",
            destination.cluster
        );
        Ok(())
    }

    /// Queues a copy: key, value and headers as they came and the mark, with the time of
    /// now. It goes to the partition of the first, and not where its key would lead today:
    /// whoever reads the topic from its beginning then meets the first before its copy.
    pub fn send(&mut self, original: &Original, tag: usize) -> anyhow::Result<()> {
        let mut headers = decode_headers(&original.headers).context("the stored headers are damaged")?;
        let (topic, partition) =
            (original.topic.as_deref().unwrap_or_default(), original.partition.unwrap_or_default());
        let first = format!("{topic}/{partition}/{}", original.offset);
        headers.push(Header { name: RETRY_HEADER.as_bytes(), value: Some(first.as_bytes()) });
        let to = self.to.unwrap_or(topic);
        let destination = self.of(original)?;
        let same_topic = original.cluster_id.as_ref() == Some(&destination.cluster) && to == topic;
        let there = usize::try_from(partition).is_ok_and(|partition| partition < destination.partitions);
        Ok(destination.producer.send(Message {
            key: original.key.as_deref(),
            partition: (same_topic && there).then_some(partition),
            value: original.value.as_deref(),
            headers: Headers::Bytes(&headers),
            tag,
        })?)
    }

    /// Waits until each is confirmed or given up; names those that Kafka did not take.
    pub fn flush(&self) -> anyhow::Result<Vec<Undelivered>> {
        let mut undelivered = Vec::new();
        for destination in self.open.values() {
            destination.producer.flush(FLUSH_TIMEOUT)?;
            let failures = destination.producer.take_failures().into_iter();
            undelivered.extend(failures.map(|failure| Undelivered { tag: failure.tag, reason: failure.reason }));
        }
        Ok(undelivered)
    }

    fn of(&mut self, original: &Original) -> anyhow::Result<&Destination> {
        let Some(topic) = self.to.or(original.topic.as_deref()) else {
            bail!("the ledger does not know any more which topic the message came from; name one with --to");
        };
        if !self.open.contains_key(topic) {
            let properties = self.client.properties.clone();
            let producer = Producer::new(&Config { properties, ..Config::new(self.brokers, topic) })?;
            let (cluster, partitions) = producer.destination(KAFKA_TIMEOUT)?;
            self.open.insert(topic.to_owned(), Destination { producer, cluster, partitions });
        }
        self.open.get(topic).context("no producer")
    }
}
