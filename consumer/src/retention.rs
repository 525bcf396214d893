//! How long the topic keeps its messages. A ledger that was put back from a backup heals
//! from the topic, as far as the topic still reaches.

use crate::config::Kafka;
use crate::metrics::Metrics;
use crate::topic;
use crate::unposted::Unposted;
use std::time::Duration;

/// How often the brokers are asked. Somebody may change it at any time.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// How long a topic keeps its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// For ever, if there is none.
    pub time: Option<Duration>,
    /// Of each partition so many, if there is a limit.
    pub bytes: Option<u64>,
}

impl Retention {
    /// From `retention.ms` and `retention.bytes`: a negative number is no limit.
    pub fn of(milliseconds: &str, bytes: &str) -> Self {
        Self { time: milliseconds.parse().ok().map(Duration::from_millis), bytes: bytes.parse().ok() }
    }

    /// Why a restore within this window may not heal.
    fn too_short(&self, window: Duration) -> Option<String> {
        match self {
            Self { time: Some(time), .. } if *time < window => Some(format!(
                "it keeps its messages for {time:?} (retention.ms), less than the recovery window of {window:?} \
                 (--recovery-window-hours)"
            )),
            Self { bytes: Some(bytes), .. } => Some(format!(
                "it keeps {bytes} bytes of each partition (retention.bytes), for however short a time that is"
            )),
            _ => None,
        }
    }
}

/// Asks until the process ends, and warns at each change.
pub async fn watch(kafka: &Kafka, window: Duration, metrics: &Metrics, unposted: &Unposted) {
    metrics.recovery_window.set(seconds(window));
    let mut before = None;
    loop {
        match topic::check_policy(&kafka.client_config(), &kafka.topic).await {
            Ok(retention) => {
                show(metrics, &kafka.topic, &retention);
                unposted.retention(retention.time);
                if before.replace(retention) != Some(retention) {
                    warn(&kafka.topic, &retention, window);
                }
            }
            // Whoever starts now is refused. This process knows that it has read all so far.
            Err(error @ topic::TopicError::Compacted { .. }) => tracing::error!("{error}"),
            Err(error) => tracing::debug!(%error, "nobody says how long the topic keeps its messages"),
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

fn show(metrics: &Metrics, topic: &str, retention: &Retention) {
    match retention.time {
        Some(time) => metrics.retention.with_label_values(&[topic]).set(seconds(time)),
        // It may never have been set.
        None => drop(metrics.retention.remove_label_values(&[topic])),
    }
}

fn warn(topic: &str, retention: &Retention, window: Duration) {
    if let Some(why) = retention.too_short(window) {
        tracing::warn!(topic, "a ledger that is put back from an older backup cannot heal from this topic: {why}");
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_must_fit_into_what_the_topic_keeps() {
        let day = Duration::from_secs(86_400);
        let told = |milliseconds: &str, bytes: &str| Retention::of(milliseconds, bytes).too_short(day);
        assert_eq!(told("-1", "-1"), None, "for ever");
        assert_eq!(told("86400000", "-1"), None, "just so");
        assert!(told("86399999", "-1").is_some_and(|why| why.contains("retention.ms")));
        assert!(told("-1", "1000").is_some_and(|why| why.contains("1000 bytes")));
        assert!(told("9223372036854775807", "-1").is_none());
    }
}
