//! One life of a worker: its turns, from the claims to the first failure.

use crate::apply::{Applied, apply};
use crate::batch::{Batch, Received};
use crate::claim::{self, Claims, Lineage};
use crate::database::Database;
use crate::failure::Failure;
use crate::health::Condition;
use crate::metrics::Metrics;
use crate::registry;
use crate::stop::{LineageChanged, Stop};
use crate::store::KnownAccounts;
use crate::stream::{self, Moves, Stream};
use crate::trouble::{Next, Trouble};
use crate::worker::{BackOff, End, Worker};
use postonce_schema::StreamId;
use rdkafka::Message as _;
use rdkafka::consumer::CommitMode;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use sqlx::PgConnection;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::time::{Duration, Instant};

/// How long a quiet worker waits for a message before it looks around.
const PATIENCE: Duration = Duration::from_millis(100);
/// A transaction that takes longer is given up. Below `max.poll.interval.ms`.
pub(crate) const APPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// A batch that waits for so long asks who blocks it.
const BLOCKED_AFTER: Duration = Duration::from_secs(1);
/// Postgres may be away for so long within one life.
const SHORT_OUTAGE: Duration = Duration::from_secs(10);
/// How often lag tools hear of the offset, and an idle position is written down.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How often topic and database are asked whether they are still the same: librdkafka keeps
/// its offset when a topic is deleted and made again, and nothing else tells. Until then
/// messages of the new one are read at the old one's offsets (seen), so it is short.
const IDENTIFY_EVERY: Duration = Duration::from_secs(5);
/// What a worker knows and must forget when its life ends.
pub(crate) struct Life<'w, 'p, 's> {
    pub(crate) worker: &'w mut Worker<'p>,
    stream: &'s Stream,
    lineage: Lineage,
    connection: PgConnection,
    backend_pid: i32,
    accounts: KnownAccounts,
    claims: Claims,
    told: Instant,
    identified: Instant,
}

impl<'w, 'p, 's> Life<'w, 'p, 's> {
    pub(crate) fn begin(
        worker: &'w mut Worker<'p>,
        stream: &'s Stream,
        lineage: Lineage,
        connection: PgConnection,
        backend_pid: i32,
    ) -> Self {
        let now = Instant::now();
        Self {
            worker,
            stream,
            lineage,
            connection,
            backend_pid,
            accounts: KnownAccounts::default(),
            claims: Claims::new(),
            told: now,
            identified: now,
        }
    }

    /// Polls what is waiting and applies it.
    pub(crate) fn turn(&mut self) -> Result<(), End> {
        let mut waiting = Vec::new();
        let filled = self.stream.fill(&mut waiting, self.worker.shared.config.batch_messages, PATIENCE);
        filled.map_err(|error| self.kafka_error(error))?;
        let moves = self.stream.take_moves();
        self.drop_revoked(&mut waiting, &moves);
        self.claim_assigned(&moves)?;
        self.worker.ready();
        if !waiting.is_empty() {
            self.apply_all(&waiting)?;
        }
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            // Markers behind the last message move the position and nothing else.
            self.apply_all(&[])?;
            self.show_offsets();
            self.tell();
        }
        if self.identified.elapsed() >= IDENTIFY_EVERY {
            self.identified = Instant::now();
            self.identify()?;
            self.look_after_claims()?;
        }
        Ok(())
    }

    /// Where nothing is sent nothing would be noticed: that Postgres is away, or that it has
    /// gone back in time (a backup was put back, a standby has taken over) and wants to be
    /// healed. What it has lost may be the last that anybody sent.
    fn look_after_claims(&mut self) -> Result<(), End> {
        match self.check_claims() {
            Err(End::Failure(Failure::Unavailable(error))) => self.wait_for_postgres(error, &mut None).map(|_| ()),
            checked => checked,
        }
    }

    /// What was revoked is not ours to post, also where it was read before: the next
    /// owner reads it again.
    fn drop_revoked(&mut self, waiting: &mut Vec<BorrowedMessage<'s>>, moves: &Moves) {
        self.worker.shared.metrics.rebalances.inc_by(moves.rebalances);
        if moves.revoked.is_empty() {
            return;
        }
        waiting.retain(|message| !moves.revoked.contains(&message.partition()));
        self.forget(&moves.revoked);
    }

    fn forget(&mut self, revoked: &BTreeSet<i32>) {
        self.claims.retain(|_, claim| !revoked.contains(&claim.partition));
        for partition in revoked {
            let labels = [self.lineage.topic.as_str(), &partition.to_string()];
            // A gauge that nobody has set yet is not there to be removed.
            let _ = self.worker.shared.metrics.lag.remove_label_values(&labels);
            let _ = self.worker.shared.metrics.next_offset.remove_label_values(&labels);
        }
        tracing::info!(worker = self.worker.number, partitions = ?revoked, "partitions revoked");
    }

    /// Claims the streams of what was assigned, and only then begins to read them,
    /// each from the offset that the ledger holds.
    fn claim_assigned(&mut self, moves: &Moves) -> Result<(), End> {
        if moves.assigned.is_empty() {
            return Ok(());
        }
        // The group may have taken its time: what was assigned may be another topic by now.
        self.identify()?;
        let mut offsets = Vec::with_capacity(moves.assigned.len());
        for partition in moves.assigned.iter().copied() {
            let (log_start, log_end) = self.stream.watermarks(partition)?;
            let stream = self.lineage.stream(partition);
            let lineage = &self.lineage;
            let claim = claim::claim(&mut self.connection, lineage, partition, log_start);
            // Nobody's claim of this stream is ours yet: whoever blocks it is a former owner.
            let claiming = [(stream, i64::MAX)];
            let claim = self.worker.answer(watched(
                claim,
                &self.worker.shared.config.database,
                &self.worker.shared.metrics,
                self.backend_pid,
                &claiming,
            ))?;
            tracing::info!(
                worker = self.worker.number, topic = %self.lineage.topic, partition, epoch = claim.epoch,
                next_offset = claim.next_offset, log_start, log_end, "stream claimed"
            );
            check_log(&self.lineage.topic, partition, claim.next_offset, (log_start, log_end))?;
            offsets.push((partition, claim.next_offset));
            self.claims.insert(stream, claim);
        }
        self.stream.assign(&offsets)?;
        Ok(())
    }

    /// Applies messages, all of them, in one transaction or, where an event makes the
    /// database refuse, in several.
    fn apply_all(&mut self, waiting: &[BorrowedMessage<'s>]) -> Result<(), End> {
        let shared = self.worker.shared;
        let mut positions = self.stream.positions(&self.lineage)?;
        if waiting.is_empty() && !self.position_moved(&positions) {
            return Ok(());
        }
        let read = |borrowed| {
            let stream = self.lineage.stream(BorrowedMessage::partition(borrowed));
            Received::read(stream::message(borrowed, stream), &shared.config.decoder)
        };
        let mut received: Vec<Received<'_>> = waiting.iter().map(read).collect();
        let nowhere = HashMap::new();
        let mut trouble = Trouble::default();
        let mut most = received.len().max(1);
        let mut outage = None;
        loop {
            let now = most.min(received.len());
            let last = now == received.len();
            let known = if last { &positions } else { &nowhere };
            match self.attempt(&Batch { received: &received[..now], positions: known }) {
                Ok(applied) => {
                    trouble.committed(applied.rejected.contains_key("internal"));
                    self.committed(now, applied);
                    received.drain(..now);
                    outage = None;
                    most = most.saturating_mul(2);
                }
                Err(End::Failure(failure @ (Failure::Race(_) | Failure::BadData(_)))) => {
                    if matches!(failure, Failure::Race(_)) {
                        self.check_claims()?;
                        shared.metrics.retries.inc();
                    }
                    match trouble.next(failure, now).map_err(ended)? {
                        Next::Again(pause) => self.worker.sleep(pause),
                        Next::Halve => {
                            tracing::error!(
                                worker = self.worker.number,
                                messages = now,
                                "searching for the event that Postgres refuses"
                            );
                            most = now.div_ceil(2);
                        }
                        Next::SetAside(why) => received[0].reject(why),
                    }
                    continue;
                }
                Err(End::Failure(Failure::Unavailable(error))) => {
                    // What was revoked will be read again, by us too if it has come back: its
                    // messages must go, and its position with them, or it would pass for a hole.
                    let revoked = self.wait_for_postgres(error, &mut outage)?;
                    received.retain(|one| !revoked.contains(&one.message.at.stream));
                    positions.retain(|stream, _| !revoked.contains(stream));
                    continue;
                }
                Err(end) => return Err(end),
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Ends the life where the streams are not as this worker left them. After a lost race:
    /// a zombie has lost it to its successor, who has written the same events and the same
    /// batch. It would lose it again and take that for damage.
    fn check_claims(&mut self) -> Result<(), End> {
        if self.worker.answer(claim::are_ours(&mut self.connection, &self.claims))? {
            return Ok(());
        }
        self.worker.shared.metrics.fence_losses.inc();
        Err(Failure::FenceLost.into())
    }

    /// Runs the transaction once, and ends former owners that block it.
    fn attempt(&mut self, batch: &Batch<'_, '_>) -> Result<Applied, End> {
        let shared = self.worker.shared;
        let ours: Vec<(StreamId, i64)> = self.claims.values().map(|claim| (claim.stream, claim.epoch)).collect();
        let work = apply(&mut self.connection, &mut self.accounts, &shared.config.decoder.rules, &self.claims, batch);
        let work = watched(work, &shared.config.database, &shared.metrics, self.backend_pid, &ours);
        let done = self.worker.runtime.block_on(async { tokio::time::timeout(APPLY_TIMEOUT, work).await });
        let failure = match done {
            Ok(Ok(applied)) => return Ok(applied),
            Ok(Err(failure)) => failure,
            // The connection is in the middle of something: the life ends with it.
            Err(_) => {
                shared.metrics.failures.with_label_values(&["timed_out"]).inc();
                return Err(End::TimedOut);
            }
        };
        let (reason, next) = match &failure {
            Failure::Race(_) => ("race", "the batch is run again"),
            Failure::FenceLost => ("fence_lost", "a new life begins"),
            Failure::CommitUnknown(_) => ("commit_unknown", "a new life begins, and its claim shows how it ended"),
            Failure::Unavailable(_) => ("unavailable", "waiting for Postgres"),
            Failure::BadData(_) => ("bad_data", "the event is searched for"),
            Failure::Damage(_) => ("damage", "the consumer stops"),
        };
        shared.metrics.failures.with_label_values(&[reason]).inc();
        tracing::warn!(worker = self.worker.number, messages = batch.received.len(), reason = %failure, next, "batch rolled back");
        match failure {
            Failure::FenceLost => {
                shared.metrics.fence_losses.inc();
                Err(Failure::FenceLost.into())
            }
            failure => Err(ended(failure)),
        }
    }

    fn committed(&mut self, messages: usize, applied: Applied) {
        let metrics = &self.worker.shared.metrics;
        metrics.committed(messages, &applied);
        if !applied.rejected.is_empty() {
            let codes = &applied.rejected;
            tracing::warn!(worker = self.worker.number, topic = %self.lineage.topic, ?codes, "messages quarantined");
        }
        for claim in applied.claims {
            self.claims.insert(claim.stream, claim);
        }
        self.show_offsets();
    }

    /// The lag as the last fetch knew it: also while nothing can be committed.
    fn show_offsets(&self) {
        let metrics = &self.worker.shared.metrics;
        for claim in self.claims.values() {
            let labels = [self.lineage.topic.as_str(), &claim.partition.to_string()];
            metrics.next_offset.with_label_values(&labels).set(claim.next_offset);
            if let Some(end) = self.stream.known_log_end(claim.partition) {
                metrics.lag.with_label_values(&labels).set(end.saturating_sub(claim.next_offset).max(0));
            }
        }
    }

    /// A short outage: the partitions rest, the group is served, the connection is
    /// made anew. The batch stays in memory and is run again under the same claims,
    /// if they still are ours. Returns what the group has revoked meanwhile.
    ///
    /// `outage` lasts until a batch is committed: a server that takes sessions and refuses
    /// every batch (a full disk) is away, too, and must not be asked without a pause.
    fn wait_for_postgres(
        &mut self,
        error: sqlx::Error,
        outage: &mut Option<(Instant, BackOff)>,
    ) -> Result<BTreeSet<StreamId>, End> {
        let (began, back_off) = outage.get_or_insert_with(|| (Instant::now(), BackOff::new()));
        self.worker.shared.health.say(self.worker.number, Condition::Waiting(format!("Postgres is away: {error}")));
        self.stream.pause()?;
        let mut moves = Moves::default();
        loop {
            if began.elapsed() >= SHORT_OUTAGE || self.worker.stopping() {
                return Err(Failure::Unavailable(error).into());
            }
            if self.stream.serve(back_off.next()).map_err(|error| self.kafka_error(error))?.is_some() {
                // It would be lost: a paused partition hands out nothing, so this is a
                // client that we do not understand.
                return Err(Stop::Kafka("a paused partition has handed out a message".to_owned()).into());
            }
            let new = self.stream.take_moves();
            moves.rebalances += new.rebalances;
            moves.revoked.extend(&new.revoked);
            moves.assigned = moves.assigned.difference(&new.revoked).chain(&new.assigned).copied().collect();
            if let Ok(connection) = self.worker.runtime.block_on(self.worker.shared.config.database.connect_worker()) {
                self.connection = connection;
                break;
            }
        }
        self.accounts = KnownAccounts::default();
        self.backend_pid = self.worker.answer(claim::backend_pid(&mut self.connection))?;
        self.worker.answer(registry::register(&mut self.connection, &self.worker.shared.config.decoder.rules))?;
        self.drop_revoked(&mut Vec::new(), &moves);
        for claim in self.claims.values_mut() {
            // Our own former backend may be there still, cut off and holding the stream's row.
            let former = [(claim.stream, claim.epoch.saturating_add(1))];
            let shared = self.worker.shared;
            let renewed = claim::renew(&mut self.connection, claim);
            let renewed = watched(renewed, &shared.config.database, &shared.metrics, self.backend_pid, &former);
            *claim = self.worker.answer(renewed).inspect_err(|end| {
                if matches!(end, End::Failure(Failure::FenceLost)) {
                    shared.metrics.fence_losses.inc();
                }
            })?;
        }
        self.claim_assigned(&moves)?;
        self.stream.resume()?;
        tracing::info!(worker = self.worker.number, after = ?began.elapsed(), "Postgres is back");
        Ok(moves.revoked.iter().map(|partition| self.lineage.stream(*partition)).collect())
    }

    fn position_moved(&self, positions: &HashMap<StreamId, i64>) -> bool {
        self.claims.values().any(|claim| positions.get(&claim.stream).is_some_and(|at| *at > claim.next_offset))
    }

    /// Tells lag tools. Nothing reads these offsets back, so a failure is only noted.
    fn tell(&self) {
        if let Err(error) = self.stream.tell_offsets(&self.claims, CommitMode::Async) {
            tracing::debug!(worker = self.worker.number, %error, "Kafka did not take the offsets");
        }
    }

    /// Stops where the topic of this name is another one by now.
    fn identify(&mut self) -> Result<(), End> {
        let now = self.stream.lineage(self.worker.shared.config.kafka.unidentified_topic)?;
        if now == self.lineage {
            return Ok(());
        }
        // The database knows how much was read of the old one; the group may have taken
        // all of it away already.
        self.worker.check_lineage(&mut self.connection, &now)?;
        let offsets = self.claims.values().map(|claim| claim.next_offset).sum();
        let changed = LineageChanged { now, known: self.lineage.clone(), offsets };
        Err(Stop::LineageChanged(Box::new(changed)).into())
    }

    /// Any error of the client ends the life; one that comes back at the same offset
    /// ends the process.
    fn kafka_error(&mut self, error: KafkaError) -> End {
        if let Some(fatal) = self.stream.fatal_error() {
            return Stop::Kafka(fatal).into();
        }
        if is_about_data(&error)
            && let Some(claim) = self.claims.values().min_by_key(|claim| claim.partition)
            && let Err(stop) = self.worker.unreadable(claim.partition, claim.next_offset, &error)
        {
            return stop.into();
        }
        error.into()
    }

    pub(crate) fn farewell(&mut self) {
        if let Err(error) = self.stream.tell_offsets(&self.claims, CommitMode::Sync) {
            tracing::debug!(worker = self.worker.number, %error, "Kafka did not take the last offsets");
        }
        tracing::info!(worker = self.worker.number, "worker done");
    }
}

/// Waits for `work`; once it has been blocked for a second, ends the transactions of
/// former owners that keep it waiting. A second connection is needed for that, as
/// the first is busy waiting.
async fn watched<T>(
    work: impl Future<Output = Result<T, Failure>>,
    database: &Database,
    metrics: &Metrics,
    backend_pid: i32,
    streams: &[(StreamId, i64)],
) -> Result<T, Failure> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(BLOCKED_AFTER) => {
                let Ok(mut connection) = database.connect().await else { continue };
                match claim::end_former_owners(&mut connection, backend_pid, streams).await {
                    Ok(0) => {}
                    Ok(ended) => {
                        metrics.former_owners_ended.inc_by(ended);
                        tracing::warn!(ended, "ended the transaction of a former owner that blocked this worker");
                    }
                    Err(error) => tracing::warn!(%error, "could not ask who blocks this worker"),
                }
            }
        }
    }
}

/// Whether the log still has what the ledger wants next.
fn check_log(topic: &str, partition: i32, next_offset: i64, (log_start, log_end): (i64, i64)) -> Result<(), Stop> {
    let topic = topic.to_owned();
    if next_offset < log_start {
        return Err(Stop::Gap { topic, partition, next_offset, log_start });
    }
    if next_offset > log_end {
        return Err(Stop::AheadOfLog { topic, partition, next_offset, log_end });
    }
    Ok(())
}

/// Where the ledger contradicts itself, a person is needed and no new life.
fn ended(failure: Failure) -> End {
    match failure {
        Failure::Damage(what) => Stop::Damage(what).into(),
        failure => failure.into(),
    }
}

/// Whether the bytes of the log are at fault, rather than the way to them.
fn is_about_data(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        BadCompression, BadMessage, InvalidMessage, InvalidMessageSize, NotImplemented, UnsupportedCompressionType,
    };
    matches!(
        error,
        KafkaError::MessageConsumption(
            BadCompression
                | BadMessage
                | InvalidMessage
                | InvalidMessageSize
                | NotImplemented
                | UnsupportedCompressionType
        )
    )
}
