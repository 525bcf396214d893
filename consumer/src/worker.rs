//! A worker: one plain thread, one Kafka consumer, one Postgres connection, one
//! loop. It polls what is waiting, applies it, and begins again.
//!
//! There is one way to fail and one way to start. Whatever goes wrong ends the
//! worker's *life* ([`life`](crate::life)): what is open is rolled back, the Kafka
//! consumer is dropped, everything in memory is forgotten, and the next life begins
//! by asking the database where the streams go on. A short outage of Postgres is the exception:
//! the life waits for it, so that no partition moves for nothing.

use crate::accept;
use crate::claim::{self, Claims, Lineage};
use crate::clock::Polls;
use crate::config::Config;
use crate::error::DatabaseError;
use crate::failure::Failure;
use crate::health::{Condition, Health};
use crate::kafka_statistics::Reports;
use crate::life::{APPLY_TIMEOUT, Life};
use crate::metrics::Metrics;
use crate::observer::Observed;
use crate::registry::{self, RulesRefused};
use crate::stop::{LineageChanged, Stop};
use crate::stream::Stream;
use crate::topic::TopicError;
use crate::unposted::Unposted;
use rdkafka::error::KafkaError;
use sqlx::PgConnection;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Unreadable so often at one offset is not a passing fault.
const MOST_UNREADABLE: u32 = 3;

/// Why a life has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// A person is needed.
    #[error(transparent)]
    Stop(#[from] Stop),
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error(transparent)]
    Topic(#[from] TopicError),
    #[error("Postgres has not answered within {APPLY_TIMEOUT:?}")]
    TimedOut,
    #[error("the topic is another one by now, and the ledger knows that one")]
    LineageMoved,
    #[error(transparent)]
    Stuck(#[from] Stuck),
    #[error("this machine's clock was set back")]
    ClockSetBack,
}

/// A partition of which nothing comes, although the broker says that there is something.
#[derive(Debug, Clone, thiserror::Error)]
#[error("partition {partition} has messages from offset {next_offset} on, and none has come for {} s", .still.as_secs())]
pub(crate) struct Stuck {
    pub(crate) partition: i32,
    pub(crate) next_offset: i64,
    pub(crate) still: Duration,
}

impl From<RulesRefused> for End {
    fn from(refused: RulesRefused) -> Self {
        match refused {
            RulesRefused::Failure(failure) => Self::Failure(failure),
            refused => Self::Stop(refused.into()),
        }
    }
}

/// What the workers of a process share.
pub struct Shared {
    pub config: Config,
    pub metrics: Metrics,
    pub health: Health,
    pub observed: Observed,
    pub polls: Polls,
    pub unposted: Unposted,
    pub reports: Reports,
    /// Set when the process shall end.
    pub stop: AtomicBool,
}

/// One worker.
pub struct Worker<'p> {
    pub(crate) number: usize,
    pub(crate) shared: &'p Shared,
    pub(crate) runtime: Runtime,
    /// How librdkafka has told the last place that could not be read, and how often.
    unreadable: Option<(String, u32)>,
    /// What has ended the last life. Until it moves, the worker is not ready.
    stuck: Option<Stuck>,
}

impl<'p> Worker<'p> {
    pub fn new(number: usize, shared: &'p Shared) -> Result<Self, Stop> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Stop::Start(format!("no runtime for worker {number}: {error}")))?;
        Ok(Self { number, shared, runtime, unreadable: None, stuck: None })
    }

    /// Lives until the process shall end or a person is needed.
    pub fn run(mut self) -> Result<(), Stop> {
        let mut back_off = BackOff::new();
        while !self.stopping() {
            let began = Instant::now();
            let end = match self.live() {
                Ok(()) => break,
                Err(End::Stop(stop)) => return Err(stop),
                Err(End::Stuck(stuck)) => {
                    self.shared.metrics.stuck_partitions.inc();
                    self.stuck = Some(stuck.clone());
                    stuck.into()
                }
                Err(end) => end,
            };
            if began.elapsed() > Duration::from_secs(60) {
                back_off = BackOff::new();
            }
            let pause = back_off.next();
            tracing::warn!(worker = self.number, reason = %end, next_life_in = ?pause, "life ended");
            self.shared.health.say(self.number, Condition::Waiting(end.to_string()));
            self.sleep(pause);
        }
        Ok(())
    }

    /// One life, from the first connection to the first failure.
    fn live(&mut self) -> Result<(), End> {
        let config = &self.shared.config;
        self.shared.metrics.worker_lives.inc();
        let mut connection = self.runtime.block_on(config.database.connect_worker())?;
        self.answer(registry::register(&mut connection, &self.shared.config.decoder.rules))?;
        let backend_pid = self.answer(claim::backend_pid(&mut connection))?;
        let stream = Stream::subscribe(&config.kafka)?;
        self.shared.reports.forget(self.number);
        let poll = self.shared.polls.of(self.number, stream.interrupt()?);
        let lineage = stream.lineage(config.kafka.unidentified_topic)?;
        self.check_lineage(&mut connection, &lineage)?;
        let mut life = Life::begin(self, &stream, lineage, connection, backend_pid);
        life.worker.turning(&Claims::new());
        let end = loop {
            if life.worker.stopping() {
                life.farewell();
                return Ok(());
            }
            if poll.was_interrupted() {
                break End::ClockSetBack;
            }
            if let Err(end) = life.turn() {
                break end;
            }
        };
        // Before the client is dropped: without a broker its end takes a minute.
        self.shared.health.say(self.number, Condition::Waiting(end.to_string()));
        Err(end)
    }

    /// A topic of the same name with other offsets is another lineage. Its offsets
    /// mean other messages, so nobody goes on by himself.
    pub(crate) fn check_lineage(&self, connection: &mut PgConnection, lineage: &Lineage) -> Result<(), End> {
        if self.answer(claim::is_known(connection, lineage))? {
            return Ok(());
        }
        let others = self.answer(claim::other_lineages(connection, lineage))?;
        let Some(known) = others.into_iter().next() else {
            return Ok(());
        };
        let accepted = &self.shared.config.accepted;
        if accepted.topic_id.as_ref() == Some(&lineage.topic_id) {
            self.runtime.block_on(accept::lineage(connection, lineage, &accepted.person))?;
            tracing::warn!(
                worker = self.number, topic = %lineage.topic, topic_id = %lineage.topic_id, person = %accepted.person,
                "another lineage of the topic is accepted: it is read from its start"
            );
            return Ok(());
        }
        let (now, accepted) = (lineage.clone(), accepted.topic_id.clone());
        let changed = LineageChanged { now, known: known.lineage, offsets: known.offsets, accepted };
        Err(Stop::LineageChanged(Box::new(changed)).into())
    }

    /// Waits for an answer of Postgres, but not for ever: a connection whose way was lost
    /// without a word (a firewall that forgot it, a machine that is gone) never breaks.
    pub(crate) fn answer<T, E>(&self, question: impl Future<Output = Result<T, E>>) -> Result<T, End>
    where
        End: From<E>,
    {
        match self.runtime.block_on(async { tokio::time::timeout(APPLY_TIMEOUT, question).await }) {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(End::TimedOut),
        }
    }

    /// Says how the worker is, at each of its turns.
    pub(crate) fn turning(&mut self, claims: &Claims) {
        let at = |stuck: &Stuck| {
            claims.values().any(|claim| (claim.partition, claim.next_offset) == (stuck.partition, stuck.next_offset))
        };
        // Before its claims it holds nothing: that is no progress.
        self.stuck = self.stuck.take().filter(|stuck| claims.is_empty() || at(stuck));
        let condition = match &self.stuck {
            Some(stuck) => Condition::Waiting(stuck.to_string()),
            None => Condition::Ready,
        };
        self.shared.health.say(self.number, condition);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// In short pieces, so that the process can end.
    pub(crate) fn sleep(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.stopping() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50).min(pause));
        }
    }

    /// Counts how often in a row a place could not be read. `words` name its offset; they
    /// name no partition, and another one may go on meanwhile.
    pub(crate) fn is_unreadable(&mut self, words: &str) -> bool {
        let times = match self.unreadable.take() {
            Some((before, times)) if before == words => times + 1,
            _ => 1,
        };
        self.unreadable = Some((words.to_owned(), times));
        times >= MOST_UNREADABLE
    }
}

/// Doubling pauses with jitter, 50 ms to 5 s.
pub(crate) struct BackOff(Duration);

impl BackOff {
    pub(crate) fn new() -> Self {
        Self(Duration::from_millis(50))
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0.mul_f64(rand::random_range(0.5..1.0));
        self.0 = (self.0 * 2).min(Duration::from_secs(5));
        pause
    }
}
