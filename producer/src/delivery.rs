//! What became of each event: counted in the delivery callback, waited for by
//! the sender.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;

/// The reasons of this many failures are kept until they are taken; beyond,
/// only the count grows. An unreachable broker must not fill the memory.
const FAILURES_KEPT: usize = 1_000;

/// An event that Kafka did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFailure {
    /// As given with the message: a line number, a place in a list.
    pub tag: usize,
    /// What the client or the broker said.
    pub reason: String,
}

/// Counts over the whole life of a producer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Events handed to the producer. After a flush: delivered + failed.
    pub sent: u64,
    /// Confirmed by all in-sync replicas.
    pub delivered: u64,
    /// Given up, or refused at once.
    pub failed: u64,
    /// The failures that nobody has taken yet, oldest first, at most 1,000.
    pub failures: Vec<DeliveryFailure>,
}

#[derive(Default)]
struct State {
    sent: u64,
    delivered: u64,
    failed: u64,
    in_flight: usize,
    failures: VecDeque<DeliveryFailure>,
    fatal: Option<String>,
    /// Somebody sleeps until no more than this many are in flight. Without it
    /// every confirmation would wake the sender.
    wake_at: Option<usize>,
    /// What went wrong last and did not end the client.
    last_error: String,
}

/// The counts, and the one lock around them.
#[derive(Default)]
pub(crate) struct Deliveries {
    state: Mutex<State>,
    changed: Condvar,
}

/// What ended a wait.
pub(crate) enum Waited {
    /// No more than the wanted number are in flight.
    Reached,
    /// Time is over; so many are in flight.
    TimedOut(usize),
    /// The client has failed for good.
    Fatal(String),
}

impl Deliveries {
    /// Before the message is handed over: its confirmation may be faster than
    /// the return of the call.
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        state.sent += 1;
        state.in_flight += 1;
    }

    /// The message was confirmed, refused or given up.
    pub(crate) fn end(&self, tag: usize, failure: Option<String>) {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        match failure {
            None => state.delivered += 1,
            Some(reason) => {
                state.failed += 1;
                if state.failures.len() < FAILURES_KEPT {
                    state.failures.push_back(DeliveryFailure { tag, reason });
                }
            }
        }
        if state.wake_at.is_some_and(|target| state.in_flight <= target) {
            state.wake_at = None;
            self.changed.notify_all();
        }
    }

    /// Takes back a [`begin`](Self::begin): the message was never handed over.
    pub(crate) fn forget(&self) {
        let mut state = self.lock();
        state.sent = state.sent.saturating_sub(1);
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.lock().in_flight
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        Some(self.lock().last_error.clone()).filter(|error| !error.is_empty())
    }

    pub(crate) fn take_failures(&self) -> Vec<DeliveryFailure> {
        self.lock().failures.drain(..).collect()
    }

    pub(crate) fn report(&self) -> Report {
        let state = self.lock();
        Report {
            sent: state.sent,
            delivered: state.delivered,
            failed: state.failed,
            failures: state.failures.iter().cloned().collect(),
        }
    }

    /// Sleeps until at most `target` events are in flight.
    pub(crate) fn wait(&self, target: usize, timeout: Duration) -> Waited {
        let started = Instant::now();
        let mut state = self.lock();
        loop {
            // Before the count: after a fatal error the rest fails too and the
            // count falls to zero, which must not look like success.
            if let Some(reason) = &state.fatal {
                return Waited::Fatal(reason.clone());
            }
            if state.in_flight <= target {
                return Waited::Reached;
            }
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Waited::TimedOut(state.in_flight);
            }
            state.wake_at = Some(state.wake_at.map_or(target, |other| other.max(target)));
            // Another sleeper with a greater target may use up the wake-up, so
            // nobody sleeps for long.
            let nap = left.min(Duration::from_millis(100));
            state = match self.changed.wait_timeout(state, nap) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole after each statement, so a panic elsewhere under
        // the lock does not make it wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            // A failed connection also comes as an error, see below.
            _ if facility == "FAIL" => tracing::debug!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(target: "librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }

    /// Brokers that come and go are the client's own business: it retries until
    /// the message's time is over. They are told once, not at every attempt.
    fn error(&self, error: KafkaError, reason: &str) {
        let mut state = self.lock();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Fatal) => {
                state.fatal = Some(reason.to_owned());
                self.changed.notify_all();
            }
            Some(RDKafkaErrorCode::AllBrokersDown) => tracing::debug!(target: "librdkafka", "{reason}"),
            _ => {
                // Behind it stand the milliseconds and the repeats.
                let what = reason.split(" (after ").next().unwrap_or(reason);
                if state.last_error != what {
                    what.clone_into(&mut state.last_error);
                    tracing::warn!(target: "librdkafka", "{reason}");
                }
            }
        }
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        let failure = result.as_ref().err().map(|(error, _)| describe(error));
        self.end(tag, failure);
    }
}

/// The reason without rdkafka's wrapping.
pub(crate) fn describe(error: &KafkaError) -> String {
    error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string())
}
