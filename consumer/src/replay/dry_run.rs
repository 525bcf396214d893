//! The dry run: reads topic and ledger, and writes nothing.

use super::ReplayError;
use super::crew::{Job, share_out};
use super::difference::Differences;
use super::judge::{Passed, Said, SameOutcome, Seen, Tally, recorded_at};
use super::plan::Plan;
use super::run::{Counts, Replay};
use crate::chain::Parts;
use crate::decide::{Arrival, Content, Known, decide};
use crate::distance::Came;
use crate::failure::Failure;
use crate::message::Outcome;
use crate::reread::{Ranges, Source, Stretch, Watch};
use crate::store::Transaction;
use crate::stream;
use rdkafka::Message as _;
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// Messages that are looked up at once.
const STRETCH: usize = 20_000;

/// Reads what was planned, many partitions at a time.
pub fn dry_run(run: &Replay, plan: &Plan, watch: &dyn Fn(u64, u64) -> bool) -> Result<Tally, ReplayError> {
    let (job, ranges) = (Job::default(), plan.ranges());
    let total = ranges.left();
    let shared = Shared { run, plan, job: &job, unknown: Mutex::default() };
    let tallies = share_out(ranges.split(run.workers), &job, &|done| watch(done, total), |share| shared.read(share))?;
    let mut all = shared.tally();
    for tally in tallies {
        all.counts += tally.counts;
        all.differences.add(tally.differences);
    }
    Ok(all)
}

struct Shared<'r> {
    run: &'r Replay,
    plan: &'r Plan,
    job: &'r Job,
    /// What was found unknown so far: nothing is written, so a second copy of it would be
    /// taken for another unknown event.
    unknown: Mutex<Known>,
}

impl Shared<'_> {
    fn tally(&self) -> Tally {
        Tally { counts: Counts::default(), differences: Differences::at_most(self.run.differences) }
    }

    /// Reads one share of the partitions to its end.
    fn read(&self, mut ranges: Ranges) -> Result<Tally, ReplayError> {
        let runtime = super::runtime()?;
        let mut connection = runtime.block_on(self.run.database.connect_worker())?;
        let source = Source::open(&self.run.kafka)?;
        if source.lineage() != &self.plan.lineage {
            return Err(ReplayError::TopicChanged(self.plan.lineage.topic.clone()));
        }
        source.seek(&ranges)?;
        let (mut watch, mut tally) = (Watch::start(&ranges), self.tally());
        while !ranges.is_done() {
            self.job.go_on()?;
            let before = ranges.clone();
            let stretch = source.next(&mut ranges, STRETCH)?;
            watch.check(&ranges)?;
            let passed = passed(&before, &stretch);
            let seen: Vec<Seen<'_>> = stretch.messages.iter().map(|message| self.see(message)).collect();
            let said = runtime.block_on(self.ask(&mut connection, &seen, &passed))?;
            tally.judge(&seen, &passed, &said);
            self.job.add(before.left() - ranges.left());
        }
        Ok(tally)
    }

    fn see<'m>(&'m self, borrowed: &'m rdkafka::message::BorrowedMessage<'_>) -> Seen<'m> {
        let partition = borrowed.partition();
        let message = stream::message(borrowed, self.plan.lineage.stream(partition));
        let (value, timestamp) = (message.value, message.timestamp);
        let wire = postonce_schema::Message { value, headers: &message.headers, timestamp };
        let decoded = self.run.decoder.decode(wire);
        Seen { partition, message, decoded }
    }

    /// Asks the ledger what it says of a stretch, in one snapshot.
    async fn ask(
        &self,
        connection: &mut PgConnection,
        seen: &[Seen<'_>],
        passed: &BTreeMap<i32, Passed>,
    ) -> Result<Said, Failure> {
        let mut books = Transaction::read_only(connection).await?;
        let mut recorded = BTreeMap::new();
        for (partition, Passed { from, to }) in passed {
            let runs = books.outcomes(self.plan.lineage.stream(*partition), *from, *to).await?;
            recorded.insert(*partition, SameOutcome::of(runs));
        }
        let outcomes = self.outcomes(&mut books, seen).await?;
        // Refused now, or refused then and still not known.
        let refused = seen.iter().filter(|one| {
            one.decoded.is_err()
                || outcomes.contains_key(&one.place())
                    && recorded.get(&one.partition).is_some_and(|r| recorded_at(r, one.message.at.offset) == Some(b'R'))
        });
        let hashes: HashMap<_, _> = refused.map(|one| (one.place(), Parts::of(&one.message).content())).collect();
        let quarantined = books.quarantined(&hashes.values().copied().collect::<Vec<_>>()).await?;
        books.commit().await?;
        Ok(Said { outcomes, hashes, quarantined, recorded })
    }

    /// The outcome of every event that is no duplicate. An event that is known as it is
    /// needs no more: `decide` asks for that first, and for nothing else then.
    async fn outcomes(
        &self,
        books: &mut Transaction<'_>,
        seen: &[Seen<'_>],
    ) -> Result<HashMap<(i32, i64), Outcome>, Failure> {
        let events = seen.iter().filter_map(|one| Some((one.partition, &one.message, one.decoded.as_ref().ok()?)));
        let (partitions, arrivals): (Vec<i32>, Vec<Arrival<'_, '_>>) =
            events.map(|(partition, message, event)| (partition, Arrival { message, event })).unzip();
        let mut others = books.not_known(&arrivals).await?;
        // The order of the topic, whatever the plan of the query.
        others.sort_unstable();
        if others.is_empty() {
            return Ok(HashMap::new());
        }
        let own: Vec<Arrival<'_, '_>> = others.iter().map(|nth| arrivals[*nth].clone()).collect();
        let held = books.read_resources(&own, &self.run.decoder.rules).await?;
        let mut known = books.look_up(own.iter().map(|arrival| arrival.event)).await?;
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        for arrival in &own {
            if let Some(seen) = unknown.get(&arrival.event.id) {
                known.entry(arrival.event.id).or_default().extend(seen);
            }
        }
        let decision = decide(&own, held, known);
        let mut outcomes = HashMap::with_capacity(others.len());
        for ((nth, arrival), (at, outcome)) in others.into_iter().zip(&own).zip(decision.outcomes) {
            if outcome != Outcome::Duplicate {
                let came = Came::Before(arrival.message.time());
                let content = Content { fingerprint: arrival.event.fingerprint, came };
                unknown.entry(arrival.event.id).or_default().push(content);
            }
            outcomes.insert((partitions[nth], at.offset), outcome);
        }
        Ok(outcomes)
    }
}

/// The offsets that a stretch has taken from each partition.
fn passed(before: &Ranges, stretch: &Stretch<'_>) -> BTreeMap<i32, Passed> {
    let moved = before.iter().filter_map(|(partition, from, _)| {
        let to = *stretch.positions.get(&partition)?;
        (from < to).then_some((partition, Passed { from, to }))
    });
    moved.collect()
}
