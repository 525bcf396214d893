//! The topic again, through the real transaction: what `replay --execute` and `rebuild` do.

use super::ReplayError;
use super::crew::Job;
use crate::apply::{Applied, apply};
use crate::batch::{Batch, Position, Positions, Received};
use crate::claim::{self, Claims, Lineage};
use crate::config::Kafka;
use crate::database::Database;
use crate::failure::Failure;
use crate::message::Outcome;
use crate::reread::{Ranges, Source, Stretch, Watch};
use crate::store::KnownAccounts;
use crate::stream;
use crate::trouble::{Next, Trouble};
use postonce_schema::Decoder;
use rdkafka::Message as _;
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap};
use tokio::runtime::Runtime;

/// Messages in one transaction.
const BATCH: usize = 10_000;

/// Where the topic goes again.
pub struct Posting<'r> {
    pub database: &'r Database,
    pub kafka: &'r Kafka,
    pub decoder: &'r Decoder,
    /// Which topic is read.
    pub topic: &'r Lineage,
    /// Under which lineage it is posted.
    pub lineage: &'r Lineage,
    pub job: &'r Job,
}

/// What has become of the messages.
#[derive(Debug, Default)]
pub struct Posted {
    pub outcomes: BTreeMap<Outcome, u64>,
    pub offsets: u64,
}

impl Posted {
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(&outcome).copied().unwrap_or(0)
    }

    pub fn messages(&self) -> u64 {
        self.outcomes.values().sum()
    }

    pub fn add(&mut self, other: Self) {
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.offsets += other.offsets;
    }
}

impl Posting<'_> {
    /// Posts one share of the partitions to its end. It must be claimed by nobody else.
    pub fn post(&self, mut ranges: Ranges) -> Result<Posted, ReplayError> {
        let runtime = super::runtime()?;
        let mut connection = runtime.block_on(self.database.connect_worker())?;
        let source = Source::open(self.kafka)?;
        if source.lineage() != self.topic {
            return Err(ReplayError::TopicChanged(self.topic.topic.clone()));
        }
        let claims = runtime.block_on(self.claim(&mut connection, &ranges))?;
        let mut worker = Worker { posting: self, runtime, connection, claims, accounts: KnownAccounts::default() };
        source.seek(&ranges)?;
        let (mut watch, mut posted) = (Watch::start(&ranges), Posted::default());
        while !ranges.is_done() {
            self.job.go_on()?;
            let before = ranges.left();
            let stretch = source.next(&mut ranges, BATCH)?;
            watch.check(&ranges)?;
            let passed = before - ranges.left();
            if passed > 0 {
                posted.add(worker.apply_all(&stretch)?);
            }
            posted.offsets += passed;
            self.job.add(passed);
        }
        Ok(posted)
    }

    async fn claim(&self, connection: &mut PgConnection, ranges: &Ranges) -> Result<Claims, Failure> {
        let mut claims = Claims::new();
        for (partition, from, _) in ranges.iter() {
            let claim = claim::claim(connection, self.lineage, partition, from).await?;
            if claim.next_offset != from {
                let at = claim.next_offset;
                return Err(Failure::Damage(format!("partition {partition} stands at {at} and should at {from}")));
            }
            claims.insert(claim.stream, claim);
        }
        Ok(claims)
    }
}

struct Worker<'p, 'r> {
    posting: &'p Posting<'r>,
    runtime: Runtime,
    connection: PgConnection,
    claims: Claims,
    accounts: KnownAccounts,
}

impl Worker<'_, '_> {
    /// In one transaction or, where an event makes the database refuse, in several.
    fn apply_all(&mut self, stretch: &Stretch<'_>) -> Result<Posted, ReplayError> {
        let decoder = self.posting.decoder;
        let lineage = self.posting.lineage;
        let stream = |partition| lineage.stream(partition);
        // Nobody fetches on from where a replay ends, so the leader's epoch there is of no use.
        let at = |offset| Position { offset, leader_epoch: None };
        let positions: Positions =
            stretch.positions.iter().map(|(partition, position)| (stream(*partition), at(*position))).collect();
        let read = |message| Received::read(stream::message(message, stream(message.partition())), decoder);
        let mut received: Vec<Received<'_>> = stretch.messages.iter().map(read).collect();
        let (nowhere, mut trouble, mut posted) = (HashMap::new(), Trouble::default(), Posted::default());
        let mut most = received.len().max(1);
        loop {
            let now = most.min(received.len());
            let last = now == received.len();
            let batch = Batch { received: &received[..now], positions: if last { &positions } else { &nowhere } };
            match self.attempt(&batch) {
                Ok(applied) => {
                    trouble.committed(applied.rejected.contains_key("internal"));
                    self.claims.extend(applied.claims.into_iter().map(|claim| (claim.stream, claim)));
                    posted.add(Posted { outcomes: applied.outcomes, offsets: 0 });
                    received.drain(..now);
                    most = most.saturating_mul(2);
                    if last {
                        return Ok(posted);
                    }
                }
                Err(failure) => match trouble.next(failure, now)? {
                    Next::Again(pause) => std::thread::sleep(pause),
                    Next::Halve => most = now.div_ceil(2),
                    Next::SetAside(why) => received[0].reject(why),
                },
            }
        }
    }

    fn attempt(&mut self, batch: &Batch<'_, '_>) -> Result<Applied, Failure> {
        let rules = &self.posting.decoder.rules;
        self.runtime.block_on(apply(&mut self.connection, &mut self.accounts, rules, &self.claims, batch))
    }
}
