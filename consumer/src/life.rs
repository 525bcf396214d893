//! One life of a worker: its turns, from the claims to the first failure.

use crate::accept;
use crate::apply::{Applied, apply};
use crate::batch::{Batch, Positions, Received};
use crate::claim::{self, Claim, Claims, Lineage};
use crate::config::HELD_BACK_AFTER;
use crate::database::Database;
use crate::failure::Failure;
use crate::health::Condition;
use crate::metrics::Metrics;
use crate::observer::{Seen, Stillness};
use crate::offsets::Offsets;
use crate::registry;
use crate::stop::Stop;
use crate::store::KnownAccounts;
use crate::stream::{self, Moves, Stream};
use crate::trace_context;
use crate::trouble::{Next, Trouble};
use crate::unposted;
use crate::worker::{BackOff, End, Stuck, Worker};
use postonce_schema::StreamId;
use rdkafka::Message as _;
use rdkafka::consumer::CommitMode;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
/// How often the database is asked whether the claims still stand.
const LOOK_AFTER_CLAIMS_EVERY: Duration = Duration::from_secs(5);
/// Who ends before the group has let him in waits for that so long.
const JOINED_WITHIN: Duration = Duration::from_secs(2);
/// If the observer has not heard for so long which topic this is, the worker asks itself.
const IDENTIFIED_WITHIN: Duration = Duration::from_secs(10);

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
    looked_after: Instant,
    /// What this worker held in its last life, until the group has said whose it is now.
    former: BTreeSet<i32>,
    /// For each partition, how long nothing has come of it, and when it was last told that
    /// a transaction holds it back.
    watched: HashMap<i32, (Stillness, Option<Instant>)>,
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
        let former = worker.shared.unposted.held_by(worker.number);
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
            looked_after: now,
            former,
            watched: HashMap::new(),
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
        self.forget_former();
        self.worker.turning(&self.claims);
        if !waiting.is_empty() {
            self.apply_all(&waiting)?;
        }
        if self.told.elapsed() >= TELL_EVERY {
            let turned = self.told.elapsed().min(TELL_EVERY * 2);
            self.told = Instant::now();
            // Markers behind the last message move the position and nothing else.
            self.apply_all(&[])?;
            self.show_offsets();
            self.show_statistics();
            self.tell();
            self.watch(turned)?;
        }
        if self.looked_after.elapsed() >= LOOK_AFTER_CLAIMS_EVERY {
            self.looked_after = Instant::now();
            self.look_after_claims()?;
        }
        self.look_which_topic()
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
        self.claims.retain(|_, claim| !moves.revoked.contains(&claim.partition));
        self.forget(&moves.revoked);
        tracing::info!(worker = self.worker.number, partitions = ?moves.revoked, "partitions revoked");
    }

    /// What another worker of this process has claimed meanwhile is told on.
    fn forget(&mut self, given_up: &BTreeSet<i32>) {
        let shared = self.worker.shared;
        for partition in given_up {
            self.watched.remove(partition);
            if shared.unposted.forget(self.worker.number, *partition) {
                shared.metrics.forget(&self.lineage.topic, *partition);
                shared.observed.forget(*partition);
            }
        }
    }

    /// What an earlier life held and the group has given to somebody else since. Until it has
    /// answered nobody may hold it, and the age of what waits there must go on.
    fn forget_former(&mut self) {
        if self.former.is_empty() || !self.stream.joined() {
            return;
        }
        let mut former = std::mem::take(&mut self.former);
        former.retain(|partition| !self.claims.values().any(|claim| claim.partition == *partition));
        self.forget(&former);
    }

    /// Claims the streams of what was assigned, and only then begins to read them,
    /// each from the offset that the ledger holds.
    fn claim_assigned(&mut self, moves: &Moves) -> Result<(), End> {
        if moves.assigned.is_empty() {
            return Ok(());
        }
        tracing::info!(
            worker = self.worker.number, topic = %self.lineage.topic, partitions = ?moves.assigned, "partitions assigned"
        );
        // The group may have taken its time: what was assigned may be another topic by now.
        self.identify()?;
        let mut claimed = Vec::with_capacity(moves.assigned.len());
        for partition in moves.assigned.iter().copied() {
            let log = self.stream.watermarks(partition)?;
            let claim = self.claim(partition, log)?;
            let claim = self.check_log(claim, log)?;
            self.worker.shared.observed.want(partition);
            self.worker.shared.unposted.claimed(self.worker.number, partition, claim.next_offset);
            self.claims.insert(claim.stream, claim.clone());
            claimed.push(claim);
        }
        if let Some(said) = moves.assigned_at {
            self.worker.shared.metrics.rebalance_seconds.observe(said.elapsed().as_secs_f64());
        }
        self.stream.assign(&claimed)?;
        Ok(())
    }

    fn claim(&mut self, partition: i32, (log_start, log_end): (i64, i64)) -> Result<Claim, End> {
        let shared = self.worker.shared;
        let claim = claim::claim(&mut self.connection, &self.lineage, partition, log_start);
        // Nobody's claim of this stream is ours yet: whoever blocks it is a former owner.
        let claiming = [(self.lineage.stream(partition), i64::MAX)];
        let claim = watched(claim, &shared.config.database, &shared.metrics, self.backend_pid, &claiming);
        let claim = self.worker.answer(claim)?;
        tracing::info!(
            worker = self.worker.number, topic = %self.lineage.topic, partition, epoch = claim.epoch,
            next_offset = claim.next_offset, leader_epoch = claim.leader_epoch, log_start, log_end, "stream claimed"
        );
        Ok(claim)
    }

    /// Whether the log still has what the ledger wants next, or a person goes on without.
    fn check_log(&mut self, claim: Claim, (log_start, log_end): (i64, i64)) -> Result<Claim, End> {
        let (topic, partition, next_offset) = (self.lineage.topic.clone(), claim.partition, claim.next_offset);
        if next_offset > log_end {
            return Err(Stop::AheadOfLog { topic, partition, next_offset, log_end }.into());
        }
        if next_offset >= log_start {
            return Ok(claim);
        }
        let shared = self.worker.shared;
        let accepted = &shared.config.accepted;
        if !accepted.gap(partition, next_offset, log_start) {
            return Err(Stop::Gap { topic, partition, next_offset, log_start }.into());
        }
        let rules = &shared.config.decoder.rules;
        let gap = accept::gap(&mut self.connection, rules, &claim, log_start, &accepted.person);
        let claim = self.worker.answer(gap)?;
        tracing::warn!(
            worker = self.worker.number, %topic, partition, from = next_offset, to = log_start - 1,
            person = %accepted.person, "offsets are accepted as lost"
        );
        Ok(claim)
    }

    /// Applies messages, all of them, in one transaction or, where an event makes the
    /// database refuse, in several.
    fn apply_all(&mut self, waiting: &[BorrowedMessage<'s>]) -> Result<(), End> {
        let shared = self.worker.shared;
        let mut positions = self.stream.positions(&self.lineage)?;
        if waiting.is_empty() && !self.position_moved(&positions) {
            return Ok(());
        }
        let places = || waiting.iter().map(|message| (message.partition(), message.offset()));
        let span = tracing::info_span!("batch", topic = %self.lineage.topic, messages = waiting.len(), offsets = %places().collect::<Offsets>());
        let _in_it = span.enter();
        // A stream's id is a hash: once for each partition, not for each message.
        let mut streams = BTreeMap::new();
        let read = |borrowed| {
            let partition = BorrowedMessage::partition(borrowed);
            let stream = *streams.entry(partition).or_insert_with(|| self.lineage.stream(partition));
            Received::read(stream::message(borrowed, stream), &shared.config.decoder)
        };
        let mut received: Vec<Received<'_>> = waiting.iter().map(read).collect();
        trace_context::link(&received);
        self.show_waiting(&received);
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
                    self.committed(&received, now, applied);
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
        tracing::warn!(worker = self.worker.number, next = "a new life begins", "fence lost to another owner");
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
                shared.metrics.failures.with_label_values(&[Failure::TIMED_OUT]).inc();
                return Err(End::TimedOut);
            }
        };
        let next = match &failure {
            Failure::Race(_) => "the batch is run again",
            Failure::FenceLost => "a new life begins",
            Failure::CommitUnknown(_) => "a new life begins, and its claim shows how it ended",
            Failure::Unavailable(_) => "waiting for Postgres",
            Failure::BadData(_) => "the event is searched for",
            Failure::Damage(_) => "the consumer stops",
        };
        shared.metrics.failures.with_label_values(&[failure.name()]).inc();
        tracing::warn!(worker = self.worker.number, messages = batch.received.len(), reason = %failure, next, "batch rolled back");
        match failure {
            Failure::FenceLost => {
                shared.metrics.fence_losses.inc();
                Err(Failure::FenceLost.into())
            }
            failure => Err(ended(failure)),
        }
    }

    /// The first `now` of these messages have an outcome.
    fn committed(&mut self, received: &[Received<'_>], now: usize, applied: Applied) {
        let (done, left) = received.split_at(now);
        self.worker.shared.metrics.committed(done, &applied);
        if !applied.rejected.is_empty() {
            self.tell_refused(done);
        }
        let (done, left) = (unposted::spans(done), unposted::spans(left));
        for claim in applied.claims {
            let (done, left) = (done.get(&claim.stream).copied(), left.get(&claim.stream).copied());
            self.worker.shared.unposted.committed(claim.partition, claim.next_offset, done, left);
            self.claims.insert(claim.stream, claim);
        }
        self.show_offsets();
    }

    /// What is in memory is the oldest that waits in its partition.
    fn show_waiting(&self, received: &[Received<'_>]) {
        for (stream, span) in unposted::spans(received) {
            if let Some(claim) = self.claims.get(&stream) {
                self.worker.shared.unposted.received(claim.partition, span);
            }
        }
    }

    fn show_statistics(&self) {
        if let Some(report) = self.stream.take_statistics() {
            let Worker { number, shared, .. } = &*self.worker;
            let held = self.claims.values().map(|claim| claim.partition);
            shared.reports.show(*number, report, &shared.metrics, &self.lineage.topic, held);
        }
    }

    /// Where each refused message stands and under which code. Its reason may repeat what
    /// stands in it, so only who asks for debug is told.
    fn tell_refused(&self, done: &[Received<'_>]) {
        for received in done {
            let Err(reject) = &received.decoded else { continue };
            let at = received.message.at;
            let partition = self.claims.get(&at.stream).map(|claim| claim.partition);
            let (topic, offset, code) = (self.lineage.topic.as_str(), at.offset, reject.code());
            tracing::warn!(worker = self.worker.number, topic, partition, offset, code, "message quarantined");
            tracing::debug!(worker = self.worker.number, topic, partition, offset, code, reason = %reject, "refused");
        }
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
        tracing::warn!(
            worker = self.worker.number, reason = %error, next = "the partitions rest, and the batch is kept",
            "Postgres is away"
        );
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
            moves.assigned_at = moves.assigned_at.or(new.assigned_at);
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
                    let next = "a new life begins";
                    tracing::warn!(worker = self.worker.number, next, "fence lost to another owner");
                }
            })?;
        }
        self.claim_assigned(&moves)?;
        self.stream.resume()?;
        tracing::info!(worker = self.worker.number, after = ?began.elapsed(), "Postgres is back");
        Ok(moves.revoked.iter().map(|partition| self.lineage.stream(*partition)).collect())
    }

    fn position_moved(&self, positions: &Positions) -> bool {
        self.claims.values().any(|claim| positions.get(&claim.stream).is_some_and(|at| at.offset > claim.next_offset))
    }

    /// Compares what the ledger has of each partition with what the brokers say of its end.
    fn watch(&mut self, turned: Duration) -> Result<(), End> {
        let shared = self.worker.shared;
        let topic = &self.lineage.topic;
        for claim in self.claims.values() {
            let Some(seen) = shared.observed.ends(claim.partition) else { continue };
            let ends = seen.ends;
            let (stillness, told) = self.watched.entry(claim.partition).or_default();
            let still = stillness.look(claim.next_offset, ends.last_stable, turned);
            let metrics = &shared.metrics;
            let labels = [topic.as_str(), &claim.partition.to_string()];
            metrics.log_start.with_label_values(&labels).set(ends.log_start);
            metrics
                .unstable
                .with_label_values(&labels)
                .set(ends.high_watermark.saturating_sub(ends.last_stable).max(0));
            metrics.held_back_seconds.with_label_values(&labels).set(seconds(seen.held_for));
            metrics.still_seconds.with_label_values(&labels).set(seconds(still));
            if seen.held_for >= HELD_BACK_AFTER && told.is_none_or(|told| told.elapsed() >= HELD_BACK_AFTER) {
                *told = Some(Instant::now());
                tell_held_back(topic, claim.partition, &seen);
            }
            if still >= shared.config.stuck_after {
                let Claim { partition, next_offset, .. } = *claim;
                return Err(Stuck { partition, next_offset, still }.into());
            }
        }
        Ok(())
    }

    /// Tells lag tools. Nothing reads these offsets back, so a failure is only noted.
    fn tell(&self) {
        if let Err(error) = self.stream.tell_offsets(&self.claims, CommitMode::Async) {
            tracing::debug!(worker = self.worker.number, %error, "Kafka did not take the offsets");
        }
    }

    /// Believes the observer that it is the same topic, and nobody but the broker that it is
    /// another.
    fn look_which_topic(&mut self) -> Result<(), End> {
        match self.worker.shared.observed.lineage() {
            Some((now, _)) if now != self.lineage => return self.identify(),
            Some((_, at)) => self.identified = self.identified.max(at),
            None => {}
        }
        if self.identified.elapsed() >= IDENTIFIED_WITHIN { self.identify() } else { Ok(()) }
    }

    /// Stops where the topic of this name is another one by now, that nobody has accepted.
    fn identify(&mut self) -> Result<(), End> {
        let now = self.stream.lineage(self.worker.shared.config.kafka.unidentified_topic)?;
        if now == self.lineage {
            self.identified = Instant::now();
            return Ok(());
        }
        // What was claimed of the old one stands in the database: the group may have taken
        // all of it away already.
        self.worker.check_lineage(&mut self.connection, &now)?;
        Err(End::LineageMoved)
    }

    /// Any error of the client ends the life; one that comes back at the same offset
    /// ends the process.
    fn kafka_error(&mut self, error: KafkaError) -> End {
        if let Some(fatal) = self.stream.fatal_error() {
            return Stop::Kafka(fatal).into();
        }
        let words = self.stream.words();
        let topic = self.lineage.topic.clone();
        if let Some(claim) = cut_off(&error, &words, &self.claims) {
            let Claim { partition, next_offset, .. } = *claim;
            // A topic that was made again looks like one that was cut off.
            let stop = Stop::CutOff { topic, partition, next_offset, words }.into();
            return self.identify().err().unwrap_or(stop);
        }
        if is_about_data(&error) && self.worker.is_unreadable(&words) {
            let place = |claim: &Claim| format!("offset {} of partition {}", claim.next_offset, claim.partition);
            let places = self.claims.values().map(place).collect::<Vec<_>>().join(", ");
            return Stop::Unreadable { topic, places, words }.into();
        }
        error.into()
    }

    pub(crate) fn farewell(&mut self) {
        if let Err(error) = self.stream.tell_offsets(&self.claims, CommitMode::Sync) {
            tracing::debug!(worker = self.worker.number, %error, "Kafka did not take the last offsets");
        }
        if let Err(error) = self.stream.wait_until_joined(JOINED_WITHIN) {
            tracing::debug!(worker = self.worker.number, %error, "the group has not answered");
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

fn tell_held_back(topic: &str, partition: i32, seen: &Seen) {
    tracing::warn!(
        topic, partition, last_stable_offset = seen.ends.last_stable, log_end = seen.ends.high_watermark,
        held_for = ?seen.held_for,
        "an open transaction holds this partition back. If its producer is gone, find it by \
         `kafka-transactions.sh find-hanging` and end it by `kafka-transactions.sh abort`"
    );
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// The claim whose log was cut off before its offset. librdkafka compares with what it
/// fetches next. That may lie behind what the ledger has: then it is not known yet whether
/// the ledger has lost anything, and the next life, which begins at the ledger's offset,
/// will tell. Only librdkafka's words say which it was.
fn cut_off<'c>(error: &KafkaError, words: &str, claims: &'c Claims) -> Option<&'c Claim> {
    if !matches!(error, KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset)) {
        return None;
    }
    claims.values().find(|claim| {
        let Some(epoch) = claim.leader_epoch else { return false };
        words.contains(&format!("offset {} (leader epoch {epoch}): broker end offset is", claim.next_offset))
    })
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
