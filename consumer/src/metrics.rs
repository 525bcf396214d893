//! What a consumer process tells Prometheus. The doc comment of a field is its help
//! text, and `docs/metrics.md` is written from it; times are in seconds.

use crate::apply::{Applied, Posted};
use crate::batch::Received;
use crate::distance::Distance;
use crate::failure::Failure;
use crate::message::Outcome;
use crate::stop::Reason;
use crate::turnover::OTHER;
use crate::unposted;
use postonce_schema::Reject;
use prometheus::core::Collector;
use prometheus::{
    CounterVec, Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

/// 0.5 ms to 16 s.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
/// 1 ms to 60 s.
const LONG_SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// 1 to 65,536 messages.
const MESSAGES: [f64; 9] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0];

/// What a metric is.
#[derive(Debug, Clone, Copy)]
pub struct Described {
    pub name: &'static str,
    /// As Prometheus names it.
    pub kind: &'static str,
    pub labels: &'static [&'static str],
    pub help: &'static str,
    /// The upper bounds of a histogram.
    pub buckets: &'static [f64],
}

/// Each kind of metric is made from its name, help and labels.
trait Metric: Collector + Clone + Sized + 'static {
    const KIND: &'static str;
    fn make(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> prometheus::Result<Self>;
}

macro_rules! metric {
    ($type:ty, $kind:literal, |$options:ident, $labels:ident| $make:expr) => {
        impl Metric for $type {
            const KIND: &'static str = $kind;
            fn make(name: &str, help: &str, $labels: &[&str], _: &[f64]) -> prometheus::Result<Self> {
                let $options = Opts::new(name, help);
                $make
            }
        }
    };
}

metric!(IntCounter, "counter", |options, _labels| Self::with_opts(options));
metric!(IntCounterVec, "counter", |options, labels| Self::new(options, labels));
metric!(CounterVec, "counter", |options, labels| Self::new(options, labels));
metric!(IntGauge, "gauge", |options, _labels| Self::with_opts(options));
metric!(IntGaugeVec, "gauge", |options, labels| Self::new(options, labels));
metric!(GaugeVec, "gauge", |options, labels| Self::new(options, labels));

impl Metric for Histogram {
    const KIND: &'static str = "histogram";
    fn make(name: &str, help: &str, _: &[&str], buckets: &[f64]) -> prometheus::Result<Self> {
        Self::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
    }
}

impl Metric for HistogramVec {
    const KIND: &'static str = "histogram";
    fn make(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> prometheus::Result<Self> {
        Self::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)
    }
}

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $field:ident: $type:ty = $name:literal [$($label:literal),*] $(in $buckets:ident)?;)+) => {
        /// The metrics of a consumer process.
        #[derive(Clone)]
        pub struct Metrics {
            registry: Registry,
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl Metrics {
            /// All of them, those too whose labels have no value yet.
            pub const DESCRIBED: &'static [Described] = &[$(Described {
                name: $name,
                kind: <$type as Metric>::KIND,
                labels: &[$($label),*],
                help: concat!($($help),+).trim_ascii(),
                buckets: [$($buckets.as_slice(),)? &[]][0],
            }),+];

            /// Registers all of them, and those of the process.
            pub fn new() -> prometheus::Result<Self> {
                let registry = Registry::new();
                $(
                    let help = concat!($($help),+).trim_ascii();
                    let buckets: &[f64] = [$($buckets.as_slice(),)? &[]][0];
                    let $field = <$type as Metric>::make($name, help, &[$($label),*], buckets)?;
                    registry.register(Box::new($field.clone()))?;
                )+
                #[cfg(target_os = "linux")]
                registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
                let metrics = Self { registry, $($field),+ };
                metrics.begin();
                Ok(metrics)
            }
        }
    };
}

metrics! {
    /// 1, with the versions of Postonce and of its Kafka client as labels.
    build_info: IntGaugeVec = "postonce_build_info" ["version", "librdkafka"];
    /// Messages with a committed outcome: posted, noted, duplicate, superseded, conflict or rejected.
    events: IntCounterVec = "postonce_events_total" ["outcome"];
    /// Messages that were refused and are in quarantine, by the code of the reason.
    rejected: IntCounterVec = "postonce_rejected_total" ["code"];
    /// Duplicates by how far their Kafka timestamp is from that of the original: same_batch, or up to a minute,
    /// an hour, a day, or older.
    duplicates: IntCounterVec = "postonce_duplicates_total" ["distance"];
    /// Postings written, by the kind of the event and the ISO 4217 code; all other units are counted as `other`.
    postings: IntCounterVec = "postonce_postings_total" ["kind", "asset"];
    /// Sum of the amounts of the postings written, in minor units of the currency.
    posted_minor_units: CounterVec = "postonce_posted_minor_units_total" ["kind", "asset"];
    /// Seconds from a message's Kafka timestamp to the commit of its outcome.
    end_to_end_seconds: Histogram = "postonce_end_to_end_seconds" [] in LONG_SECONDS;
    /// Messages in each committed transaction.
    batch_messages: Histogram = "postonce_batch_messages" [] in MESSAGES;
    /// Seconds that each step of a committed transaction took.
    step_seconds: HistogramVec = "postonce_transaction_step_seconds" ["step"] in SECONDS;
    /// Seconds from the first read to the commit of a transaction.
    transaction_seconds: Histogram = "postonce_transaction_seconds" [] in SECONDS;
    /// Transactions rolled back, by reason: race, fence_lost, commit_unknown, unavailable, bad_data, damage or
    /// timed_out.
    failures: IntCounterVec = "postonce_transaction_failures_total" ["reason"];
    /// Batches run again after a lost race.
    retries: IntCounter = "postonce_retries_total" [];
    /// Batches that died on the fence because another worker had claimed one of their streams.
    fence_losses: IntCounter = "postonce_fence_losses_total" [];
    /// Transactions of frozen former owners that were ended because they blocked a batch.
    former_owners_ended: IntCounter = "postonce_former_owners_ended_total" [];
    /// Times that the group assigned or revoked partitions.
    rebalances: IntCounter = "postonce_rebalances_total" [];
    /// Seconds from the group's word to the last claim of what it assigned.
    rebalance_seconds: Histogram = "postonce_rebalance_seconds" [] in LONG_SECONDS;
    /// Times that a worker has begun: one for each worker at the start, more after failures.
    worker_lives: IntCounter = "postonce_worker_lives_total" [];
    /// Lives ended because nothing came of a partition that had something (--stuck-after).
    stuck_partitions: IntCounter = "postonce_stuck_partitions_total" [];
    /// Workers that are connected to Kafka and Postgres.
    workers_ready: IntGauge = "postonce_workers_ready" [];
    /// 1 while the process has stopped and waits for a person, by reason: lineage, gap, ahead_of_log, cut_off, rules,
    /// damage or unreadable. It ends after --stop-linger.
    stopped: IntGaugeVec = "postonce_stopped" ["reason"];
    /// Messages between the ledger's offset and the end of the log, for the partitions of this process.
    lag: IntGaugeVec = "postonce_lag_messages" ["topic", "partition"];
    /// Age of the oldest message without an outcome by its Kafka timestamp, 0 where there is none; an upper bound
    /// where the message has not been read yet.
    oldest_unposted: GaugeVec = "postonce_oldest_unposted_seconds" ["topic", "partition"];
    /// The first offset that has no outcome yet, for the partitions of this process.
    next_offset: IntGaugeVec = "postonce_next_offset" ["topic", "partition"];
    /// First offset that the log still has: what retention deletes ends before it, and it must never pass the next offset.
    log_start: IntGaugeVec = "postonce_log_start_offset" ["topic", "partition"];
    /// Seconds that the topic keeps its messages; not there if it keeps them for ever.
    retention: IntGaugeVec = "postonce_topic_retention_seconds" ["topic"];
    /// Seconds until the oldest message without an outcome is as old as the topic keeps its messages: then it may be
    /// deleted unread. Not there if it keeps them for ever.
    retention_margin: GaugeVec = "postonce_retention_margin_seconds" ["topic", "partition"];
    /// Seconds that the topic should keep its messages (--recovery-window-hours).
    recovery_window: IntGauge = "postonce_recovery_window_seconds" [];
    /// Offsets between the last stable one and the end of the log: open transactions, and what waits behind them.
    unstable: IntGaugeVec = "postonce_unstable_offsets" ["topic", "partition"];
    /// Seconds that the last stable offset has been standing still behind the end of the log.
    held_back_seconds: IntGaugeVec = "postonce_last_stable_offset_held_seconds" ["topic", "partition"];
    /// Seconds that nothing has come of a partition although it has something to read.
    still_seconds: IntGaugeVec = "postonce_partition_still_seconds" ["topic", "partition"];
    /// Refused messages of the whole ledger that nobody has closed yet, by the code of the reason; each code that the
    /// ledger has ever seen.
    quarantine_open: IntGaugeVec = "postonce_quarantine_open" ["code"];
    /// Incidents of the whole ledger that nobody has closed yet: conflict, regression or restatement; each code that
    /// the ledger has ever seen.
    incidents_open: IntGaugeVec = "postonce_incidents_open" ["code"];
    /// Findings of the last `verify` that ended; not there before the first.
    verify_findings: IntGaugeVec = "postonce_verify_last_findings" [];
    /// When the last `verify` ended, in seconds since 1970; not there before the first.
    verify_finished: IntGaugeVec = "postonce_verify_last_finished_timestamp_seconds" [];
    /// TCP connections to Postgres that this process has open.
    postgres_connections: IntGauge = "postonce_postgres_connections" [];
    /// Write-ahead log that the whole Postgres server has written (pg_stat_wal), as of the last quarter of a minute.
    wal_bytes: IntCounter = "postonce_postgres_wal_bytes_total" [];
    /// Seconds from a request to the broker's answer over the last five seconds, of the worst worker. A fetch that
    /// finds nothing waits at the broker: half a second is a quiet topic (fetch.wait.max.ms).
    broker_round_trip: GaugeVec = "postonce_kafka_broker_round_trip_seconds" ["broker", "quantile"];
    /// Connections to a broker that were lost.
    broker_disconnects: IntCounterVec = "postonce_kafka_broker_disconnects_total" ["broker"];
    /// Messages that the Kafka client has fetched and no worker has taken yet.
    fetch_queue_messages: IntGaugeVec = "postonce_kafka_fetch_queue_messages" ["topic", "partition"];
    /// Bytes of these messages.
    fetch_queue_bytes: IntGaugeVec = "postonce_kafka_fetch_queue_bytes" ["topic", "partition"];
}

impl Metrics {
    /// Where the values of a label are known, each begins at 0: PromQL's `rate` and `increase`
    /// do not see a series that is born at 1, so the first conflict would be no alarm.
    fn begin(&self) {
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        self.build_info.with_label_values(&[env!("CARGO_PKG_VERSION"), &librdkafka]).set(1);
        let zero = |counter: &IntCounterVec, value: &str| drop(counter.with_label_values(&[value]));
        Outcome::ALL.iter().for_each(|outcome| zero(&self.events, outcome.name()));
        Reject::CODES.iter().for_each(|code| zero(&self.rejected, code));
        Distance::ALL.iter().for_each(|distance| zero(&self.duplicates, distance.name()));
        Failure::NAMES.iter().for_each(|name| zero(&self.failures, name));
        Reason::ALL.iter().for_each(|reason| drop(self.stopped.with_label_values(&[reason.name()])));
    }

    /// Another process may hold the partition from now on.
    pub fn forget(&self, topic: &str, partition: i32) {
        let whole = [
            &self.lag,
            &self.next_offset,
            &self.log_start,
            &self.unstable,
            &self.held_back_seconds,
            &self.still_seconds,
            &self.fetch_queue_messages,
            &self.fetch_queue_bytes,
        ];
        let labels = [topic, &partition.to_string()];
        // A gauge that nobody has set yet is not there to be removed.
        whole.iter().for_each(|gauge| drop(gauge.remove_label_values(&labels)));
        let fractions = [&self.oldest_unposted, &self.retention_margin];
        fractions.iter().for_each(|gauge| drop(gauge.remove_label_values(&labels)));
    }

    /// Counts a committed batch.
    pub fn committed(&self, messages: &[Received<'_>], applied: &Applied) {
        self.end_to_end(messages);
        for (outcome, count) in &applied.outcomes {
            self.events.with_label_values(&[outcome.name()]).inc_by(*count);
        }
        for (code, count) in &applied.rejected {
            self.rejected.with_label_values(&[*code]).inc_by(*count);
        }
        for (distance, count) in &applied.duplicates {
            self.duplicates.with_label_values(&[distance.name()]).inc_by(*count);
        }
        applied.posted.iter().for_each(|posted| self.posted(posted));
        self.batch_messages.observe(u32::try_from(messages.len()).map_or(f64::MAX, f64::from));
        let mut total = 0.0;
        for (step, time) in &applied.steps {
            self.step_seconds.with_label_values(&[*step]).observe(time.as_secs_f64());
            total += time.as_secs_f64();
        }
        self.transaction_seconds.observe(total);
    }

    /// Counts locally and adds once: a batch has thousands of messages, and every worker
    /// counts here.
    fn end_to_end(&self, messages: &[Received<'_>]) {
        let (now, seconds) = (unposted::now(), self.end_to_end_seconds.local());
        for time in messages.iter().filter_map(|received| received.message.timestamp) {
            // Of the future, by the producer's clock: no time has passed.
            let passed = u32::try_from(now.saturating_sub(time).max(0)).unwrap_or(u32::MAX);
            seconds.observe(f64::from(passed) / 1e3);
        }
        seconds.flush();
    }

    fn posted(&self, posted: &Posted) {
        let labels = [posted.kind.as_str(), posted.currency.as_deref().unwrap_or(OTHER)];
        self.postings.with_label_values(&labels).inc_by(posted.postings);
        // Minor units of different units must not be added up.
        if posted.currency.is_some() {
            self.posted_minor_units.with_label_values(&labels).inc_by(float(posted.minor_units));
        }
    }

    /// The text format of Prometheus.
    pub fn render(&self) -> prometheus::Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The nearest that a float can hold.
fn float(number: u64) -> f64 {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).map_or(0.0, f64::from);
    half(number >> 32) * 4_294_967_296.0 + half(number)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
