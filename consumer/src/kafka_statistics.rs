//! What librdkafka measures of itself, as far as it says where the time goes:
//! <https://github.com/confluentinc/librdkafka/blob/master/STATISTICS.md>.

use crate::metrics::Metrics;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One report of one client.
#[derive(Debug, Default, PartialEq)]
pub struct Statistics {
    /// By `HOST:PORT/ID`.
    brokers: BTreeMap<String, Broker>,
    /// Messages and bytes that were fetched and not taken yet, by partition.
    queues: BTreeMap<i32, (i64, i64)>,
}

#[derive(Debug, PartialEq)]
struct Broker {
    /// Since this client was made.
    disconnects: u64,
    /// `None` where nothing was asked since the last report.
    round_trip: Option<RoundTrip>,
}

/// Seconds from a request to its answer, since the last report.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RoundTrip {
    median: f64,
    p99: f64,
}

/// Of librdkafka's report, which has some hundred figures more.
#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    brokers: HashMap<String, ReportedBroker>,
    #[serde(default)]
    topics: HashMap<String, ReportedTopic>,
}

#[derive(Deserialize)]
struct ReportedBroker {
    name: String,
    /// Negative for the addresses of the start, and for the group's coordinator, which is
    /// one of the others.
    nodeid: i64,
    disconnects: u64,
    rtt: Window,
}

/// Microseconds.
#[derive(Deserialize)]
struct Window {
    cnt: i64,
    p50: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct ReportedTopic {
    #[serde(default)]
    partitions: HashMap<String, ReportedPartition>,
}

#[derive(Deserialize)]
struct ReportedPartition {
    partition: i32,
    fetchq_cnt: i64,
    fetchq_size: i64,
}

impl Statistics {
    /// Reads a report as far as it is about brokers and this topic.
    pub fn read(json: &[u8], topic: &str) -> serde_json::Result<Self> {
        let report: Report = serde_json::from_slice(json)?;
        let broker = |broker: ReportedBroker| {
            let seconds = |micros: f64| micros / 1e6;
            let Window { cnt, p50, p99 } = broker.rtt;
            let round_trip = (cnt > 0).then(|| RoundTrip { median: seconds(p50), p99: seconds(p99) });
            (broker.name, Broker { disconnects: broker.disconnects, round_trip })
        };
        let brokers = report.brokers.into_values().filter(|broker| broker.nodeid >= 0).map(broker).collect();
        let partitions = report.topics.into_iter().filter(|(name, _)| name == topic).flat_map(|(_, of)| of.partitions);
        let queue = |(_, of): (String, ReportedPartition)| (of.partition, (of.fetchq_cnt, of.fetchq_size));
        Ok(Self { brokers, queues: partitions.map(queue).collect() })
    }
}

/// The last report of each worker of a process.
#[derive(Default)]
pub struct Reports(Mutex<BTreeMap<usize, Statistics>>);

impl Reports {
    /// A worker's client is gone, and its figures with it: the next one counts from 0.
    pub fn forget(&self, worker: usize) {
        self.lock().remove(&worker);
    }

    /// Shows what is new in a worker's report; of a round trip that of the worst worker.
    /// `held` are the partitions that the worker reads.
    pub fn show(
        &self,
        worker: usize,
        report: Statistics,
        metrics: &Metrics,
        topic: &str,
        held: impl Iterator<Item = i32>,
    ) {
        for partition in held {
            let labels = [topic, &partition.to_string()];
            let (messages, bytes) = report.queues.get(&partition).copied().unwrap_or_default();
            metrics.fetch_queue_messages.with_label_values(&labels).set(messages);
            metrics.fetch_queue_bytes.with_label_values(&labels).set(bytes);
        }
        let mut reports = self.lock();
        let before = reports.insert(worker, report).unwrap_or_default();
        let Some(now) = reports.get(&worker) else { return };
        for (name, broker) in &now.brokers {
            let counted = before.brokers.get(name).map_or(0, |broker| broker.disconnects);
            let new = broker.disconnects.saturating_sub(counted);
            metrics.broker_disconnects.with_label_values(&[name]).inc_by(new);
        }
        for name in before.brokers.keys().chain(now.brokers.keys()) {
            show_worst(&reports, name, metrics);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Statistics>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn show_worst(reports: &BTreeMap<usize, Statistics>, broker: &str, metrics: &Metrics) {
    let of_each = reports.values().filter_map(|report| report.brokers.get(broker)?.round_trip);
    let worst =
        of_each.reduce(|one, other| RoundTrip { median: one.median.max(other.median), p99: one.p99.max(other.p99) });
    for (quantile, value) in [("0.5", worst.map(|worst| worst.median)), ("0.99", worst.map(|worst| worst.p99))] {
        let labels = [broker, quantile];
        match value {
            Some(seconds) => metrics.broker_round_trip.with_label_values(&labels).set(seconds),
            // Nobody has asked it anything: it may never have been set.
            None => drop(metrics.broker_round_trip.remove_label_values(&labels)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(disconnects: u64, count: u64, p99: u32) -> Statistics {
        let json = format!(
            r#"{{"name":"x","brokers":{{
                 "b:9092/1":{{"name":"b:9092/1","nodeid":1,"disconnects":{disconnects},"tx":5,
                              "rtt":{{"min":1,"cnt":{count},"p50":2000,"p99":{p99}}}}},
                 "b:9092/bootstrap":{{"name":"b:9092/bootstrap","nodeid":-1,"disconnects":9,
                                      "rtt":{{"cnt":1,"p50":1,"p99":1}}}}}},
               "topics":{{"t":{{"partitions":{{"0":{{"partition":0,"fetchq_cnt":7,"fetchq_size":700}},
                                              "-1":{{"partition":-1,"fetchq_cnt":0,"fetchq_size":0}}}}}},
                         "u":{{"partitions":{{"0":{{"partition":0,"fetchq_cnt":1,"fetchq_size":1}}}}}}}}}}"#
        );
        Statistics::read(json.as_bytes(), "t").expect("a report")
    }

    #[test]
    fn the_worst_worker_is_told_and_a_new_client_counts_from_0() {
        let (reports, metrics) = (Reports::default(), Metrics::new().expect("metrics"));
        let round_trip = |quantile| metrics.broker_round_trip.with_label_values(&["b:9092/1", quantile]).get();
        let disconnects = || metrics.broker_disconnects.with_label_values(&["b:9092/1"]).get();
        let show = |worker, report| reports.show(worker, report, &metrics, "t", [0, 3].into_iter());
        show(0, report(1, 5, 3_000));
        show(1, report(2, 5, 9_000));
        assert_eq!((round_trip("0.5"), round_trip("0.99"), disconnects()), (0.002, 0.009, 3));
        show(1, report(3, 0, 0));
        assert_eq!((round_trip("0.99"), disconnects()), (0.003, 4), "the other one was not asked");
        reports.forget(1);
        show(1, report(1, 5, 1_000));
        assert_eq!((round_trip("0.99"), disconnects()), (0.003, 5));
        let queue = |partition| metrics.fetch_queue_messages.with_label_values(&["t", partition]).get();
        assert_eq!((queue("0"), queue("3")), (7, 0));
        assert_eq!(metrics.fetch_queue_bytes.with_label_values(&["t", "0"]).get(), 700);
        assert!(!metrics.render().expect("a page").contains("bootstrap"));
    }
}
