//! What a consumer process tells Prometheus. The doc comment of a field is its help
//! text; times are in seconds.

use crate::apply::Applied;
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// 0.5 ms to 16 s.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
/// 1 to 65,536 messages.
const MESSAGES: [f64; 9] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0];

/// Each kind of metric is made from its name, help and labels.
trait Metric: Collector + Clone + Sized + 'static {
    fn make(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> prometheus::Result<Self>;
}

macro_rules! metric {
    ($type:ty, |$options:ident, $labels:ident| $make:expr) => {
        impl Metric for $type {
            fn make(name: &str, help: &str, $labels: &[&str], _: &[f64]) -> prometheus::Result<Self> {
                let $options = Opts::new(name, help);
                $make
            }
        }
    };
}

metric!(IntCounter, |options, _labels| Self::with_opts(options));
metric!(IntGauge, |options, _labels| Self::with_opts(options));
metric!(IntCounterVec, |options, labels| Self::new(options, labels));
metric!(IntGaugeVec, |options, labels| Self::new(options, labels));

impl Metric for Histogram {
    fn make(name: &str, help: &str, _: &[&str], buckets: &[f64]) -> prometheus::Result<Self> {
        Self::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
    }
}

impl Metric for HistogramVec {
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
            /// Registers all of them, and those of the process.
            pub fn new() -> prometheus::Result<Self> {
                let registry = Registry::new();
                $(
                    let help = concat!($($help),+).trim();
                    let buckets: &[f64] = [$($buckets.as_slice(),)? &[]][0];
                    let $field = <$type as Metric>::make($name, help, &[$($label),*], buckets)?;
                    registry.register(Box::new($field.clone()))?;
                )+
                #[cfg(target_os = "linux")]
                registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
                Ok(Self { registry, $($field),+ })
            }
        }
    };
}

metrics! {
    /// Messages with a committed outcome: posted, noted, duplicate, superseded, conflict or rejected.
    events: IntCounterVec = "postonce_events_total" ["outcome"];
    /// Messages that were refused and are in quarantine, by the code of the reason.
    rejected: IntCounterVec = "postonce_rejected_total" ["code"];
    /// Postings written.
    postings: IntCounter = "postonce_postings_total" [];
    /// Messages in each committed transaction.
    batch_messages: Histogram = "postonce_batch_messages" [] in MESSAGES;
    /// Seconds that each step of a committed transaction took.
    step_seconds: HistogramVec = "postonce_transaction_step_seconds" ["step"] in SECONDS;
    /// Seconds from the first read to the commit of a transaction.
    transaction_seconds: Histogram = "postonce_transaction_seconds" [] in SECONDS;
    /// Transactions rolled back, by reason: race, fence_lost, commit_unknown, unavailable, bad_data or damage.
    failures: IntCounterVec = "postonce_transaction_failures_total" ["reason"];
    /// Batches run again after a lost race.
    retries: IntCounter = "postonce_retries_total" [];
    /// Batches that died on the fence because another worker had claimed one of their streams.
    fence_losses: IntCounter = "postonce_fence_losses_total" [];
    /// Transactions of frozen former owners that were ended because they blocked a batch.
    former_owners_ended: IntCounter = "postonce_former_owners_ended_total" [];
    /// Times that the group assigned or revoked partitions.
    rebalances: IntCounter = "postonce_rebalances_total" [];
    /// Times that a worker has begun: one for each worker at the start, more after failures.
    worker_lives: IntCounter = "postonce_worker_lives_total" [];
    /// Workers that are connected to Kafka and Postgres.
    workers_ready: IntGauge = "postonce_workers_ready" [];
    /// Messages between the ledger's offset and the end of the log, for the partitions of this process.
    lag: IntGaugeVec = "postonce_lag_messages" ["topic", "partition"];
    /// The first offset that has no outcome yet, for the partitions of this process.
    next_offset: IntGaugeVec = "postonce_next_offset" ["topic", "partition"];
    /// First offset that the log still has: what retention deletes ends before it, and it must never pass the next offset.
    log_start: IntGaugeVec = "postonce_log_start_offset" ["topic", "partition"];
    /// Seconds that the topic keeps its messages; not there if it keeps them for ever.
    retention: IntGaugeVec = "postonce_topic_retention_seconds" ["topic"];
    /// Seconds that the topic should keep its messages (--recovery-window-hours).
    recovery_window: IntGauge = "postonce_recovery_window_seconds" [];
    /// Offsets between the last stable one and the end of the log: open transactions, and what waits behind them.
    unstable: IntGaugeVec = "postonce_unstable_offsets" ["topic", "partition"];
    /// Seconds that the last stable offset has been standing still behind the end of the log.
    held_back_seconds: IntGaugeVec = "postonce_last_stable_offset_held_seconds" ["topic", "partition"];
    /// Seconds that nothing has come of a partition although it has something to read.
    still_seconds: IntGaugeVec = "postonce_partition_still_seconds" ["topic", "partition"];
    /// Refused messages of the whole ledger that nobody has closed yet.
    quarantine_open: IntGauge = "postonce_quarantine_open" [];
    /// Incidents of the whole ledger that nobody has closed yet.
    incidents_open: IntGauge = "postonce_incidents_open" [];
}

impl Metrics {
    /// Another process may hold the partition from now on.
    pub fn forget(&self, topic: &str, partition: i32) {
        let of_a_partition = [
            &self.lag,
            &self.next_offset,
            &self.log_start,
            &self.unstable,
            &self.held_back_seconds,
            &self.still_seconds,
        ];
        for gauge in of_a_partition {
            // A gauge that nobody has set yet is not there to be removed.
            let _ = gauge.remove_label_values(&[topic, &partition.to_string()]);
        }
    }

    /// Counts a committed batch.
    pub fn committed(&self, messages: usize, applied: &Applied) {
        for (outcome, count) in &applied.outcomes {
            self.events.with_label_values(&[outcome.name()]).inc_by(*count);
        }
        for (code, count) in &applied.rejected {
            self.rejected.with_label_values(&[*code]).inc_by(*count);
        }
        self.postings.inc_by(u64::try_from(applied.postings).unwrap_or(u64::MAX));
        self.batch_messages.observe(u32::try_from(messages).map_or(f64::MAX, f64::from));
        let mut total = 0.0;
        for (step, time) in &applied.steps {
            self.step_seconds.with_label_values(&[*step]).observe(time.as_secs_f64());
            total += time.as_secs_f64();
        }
        self.transaction_seconds.observe(total);
    }

    /// The text format of Prometheus.
    pub fn render(&self) -> prometheus::Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_sentence_and_a_conventional_name() {
        let metrics = Metrics::new().expect("metrics");
        metrics.events.with_label_values(&["posted"]).inc();
        let page = metrics.render().expect("a page");
        assert!(page.contains("# HELP postonce_events_total Messages with a committed outcome"));
        for line in page.lines().filter(|line| line.starts_with("# HELP postonce_")) {
            assert!(line.ends_with('.'), "{line}");
        }
        for line in page.lines().filter(|line| line.starts_with("# TYPE postonce_")) {
            assert_eq!(line.contains("_total "), line.ends_with(" counter"), "{line}");
        }
    }
}
