//! The history of every stream, batch by batch, with the rows that each batch wrote.
//!
//! Batches come in the order of their streams. The rows of the big tables come in the
//! order of their pages, which is about the order in which they were written: each waits
//! here until its batch is complete, and no longer. That a batch is complete its hash
//! says. So the tables are read once each, side by side, and the table that is read next
//! is the one that the oldest batch waits for.

use super::VerifyError;
use super::batch::{Batch, Ledger, Pending};
use super::copy::copy_out;
use super::report::{Check, Finding, Gap};
use super::snapshot::{Head, Stream};
use super::tables::{Event, Read, Scan, Table};
use crate::outcomes::{Run, runs};
use crate::rows::Posted;
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, VecDeque};

/// So many offsets are under way at a time: more are loaded when they are done.
const UNDER_WAY: u64 = 300_000;
/// So many rows may wait for others. Past that the batch that they wait behind lacks a
/// row, and is put aside until the end. A good ledger stays far below.
const WAITING: usize = 1_000_000;
/// Batches read at a time, shared out among the streams.
const BATCHES: usize = 2_000;

/// A stream in the course of its verification.
struct History {
    stream: Stream,
    /// Behind the last batch that was loaded.
    head: Head,
    /// Read, not loaded yet.
    batches: VecDeque<Batch>,
    /// The last batch that was read.
    read_seq: i64,
    /// By their first offset.
    pending: BTreeMap<i64, Pending>,
    /// Rows that have come before their batch, by their offset.
    early: BTreeMap<i64, Vec<Row>>,
}

enum Row {
    Event(Event),
    Posting(Posted),
}

/// All streams.
pub struct Histories<'l> {
    ledger: Ledger<'l>,
    streams: BTreeMap<i64, History>,
    /// Batches under way, the oldest first.
    queue: VecDeque<(i64, i64)>,
    under_way: u64,
    /// Rows of each table that wait, by the place of the table in `Table::ALL`.
    waiting: [usize; 3],
    /// Rows of streams that are not there, or behind the offset where a stream stood:
    /// the last offset of each. New ones are no news, if the stream has moved on.
    beyond: BTreeMap<i64, i64>,
    pub gaps: Vec<Gap>,
    /// Offsets whose outcome is R.
    pub rejected: u64,
}

impl<'l> Histories<'l> {
    /// From the beginning of each stream, or from where `since` says.
    pub fn new(ledger: Ledger<'l>, streams: &BTreeMap<i64, Stream>, since: &BTreeMap<i64, Head>) -> Self {
        let history = |stream: &Stream| {
            let head = since.get(&stream.stream).copied().unwrap_or_else(|| stream.beginning());
            let read_seq = if since.contains_key(&stream.stream) { head.batch_seq } else { i64::MIN };
            History {
                stream: stream.clone(),
                head,
                batches: VecDeque::new(),
                read_seq,
                pending: BTreeMap::new(),
                early: BTreeMap::new(),
            }
        };
        Self {
            ledger,
            streams: streams.values().map(|stream| (stream.stream, history(stream))).collect(),
            queue: VecDeque::new(),
            under_way: 0,
            waiting: [0; 3],
            beyond: BTreeMap::new(),
            gaps: Vec::new(),
            rejected: 0,
        }
    }

    /// Reads all of it. `progress` is told how many offsets are done.
    pub async fn read(
        &mut self,
        connection: &mut PgConnection,
        scans: &mut [Scan; 3],
        progress: &dyn Fn(u64),
    ) -> Result<(), VerifyError> {
        loop {
            let more = self.load(connection).await?;
            self.settle();
            progress(self.ledger.totals.offsets);
            let wanted = self.wanted(scans);
            // With no batch left to wait for, what is left of the tables is read to its
            // end: it holds no row before the cut, unless somebody has put it there.
            let next = match wanted {
                None if more => continue,
                None => scans.iter().position(|scan| !scan.is_done()),
                wanted => wanted,
            };
            let Some(next) = next else { break };
            scans[next].read(connection, |mut row| self.row(Table::ALL[next].read(&mut row)?)).await?;
        }
        self.finish(connection).await
    }

    /// Loads batches until enough are under way. False: there are no more.
    async fn load(&mut self, connection: &mut PgConnection) -> Result<bool, VerifyError> {
        while self.under_way < UNDER_WAY {
            let most = (BATCHES / self.streams.len().max(1)).max(8);
            for history in self.streams.values_mut() {
                history.fill(connection, most).await?;
            }
            // In about the order in which they were written, as the rows come.
            let first = |history: &History| Some((history.batches.front()?.recorded_at, history.stream.stream));
            let Some((_, stream)) = self.streams.values().filter_map(first).min() else { return Ok(false) };
            let Some(history) = self.streams.get_mut(&stream) else { return Ok(false) };
            let Some(batch) = history.batches.pop_front() else { return Ok(false) };
            self.rejected +=
                history.load(batch, &mut self.ledger, &mut self.gaps, &mut self.queue, &mut self.under_way);
        }
        Ok(true)
    }

    /// A row that has been read.
    fn row(&mut self, read: Read) -> Result<(), VerifyError> {
        let (stream, offset, row) = match read {
            Read::Event(stream, event) => (stream, event.offset, Row::Event(event)),
            Read::Posting(stream, posting) => (stream, posting.offset, Row::Posting(posting)),
        };
        let history = self.streams.get_mut(&stream).filter(|history| offset < history.stream.next_offset);
        let Some(history) = history else {
            let last = self.beyond.entry(stream).or_insert(offset);
            *last = offset.max(*last);
            return Ok(());
        };
        if offset >= history.head.next_offset {
            self.waiting[row.table()] += 1;
            history.early.entry(offset).or_default().push(row);
        } else if let Some(pending) = history.pending_at(offset) {
            self.waiting[row.table()] += 1;
            pending.row(row);
        } else {
            surplus(&mut self.ledger, stream, row);
        }
        Ok(())
    }

    /// Judges the batches that have become complete.
    fn settle(&mut self) {
        for history in self.streams.values_mut() {
            let complete = |(from, pending): (&i64, &mut Pending)| pending.is_complete().then_some(*from);
            let complete: Vec<i64> = history.pending.iter_mut().filter_map(complete).collect();
            for from in complete {
                if let Some(pending) = history.pending.remove(&from) {
                    self.under_way = self.under_way.saturating_sub(pending.batch.next.abs_diff(from));
                    for (waiting, rows) in self.waiting.iter_mut().zip(pending.rows()) {
                        *waiting = waiting.saturating_sub(rows);
                    }
                    pending.judge(&mut self.ledger);
                }
            }
        }
    }

    /// Which table the oldest batch waits for. A batch that has waited for too much, or
    /// for rows that nobody has, goes on waiting aside, and holds nothing up.
    fn wanted(&mut self, scans: &[Scan; 3]) -> Option<usize> {
        while let Some((stream, from)) = self.queue.front() {
            let pending = self.streams.get(stream).and_then(|history| history.pending.get(from));
            if let Some(pending) = pending {
                let table = pending.lacks();
                if !scans[table].is_done() && self.waiting[table] < WAITING {
                    return Some(table);
                }
                self.under_way = self.under_way.saturating_sub(pending.batch.next.abs_diff(*from));
            }
            self.queue.pop_front();
        }
        None
    }

    /// What is left is incomplete.
    async fn finish(&mut self, connection: &mut PgConnection) -> Result<(), VerifyError> {
        for history in self.streams.values_mut() {
            history.ends_at_its_head(&mut self.ledger);
            for (_, pending) in std::mem::take(&mut history.pending) {
                pending.judge(&mut self.ledger);
            }
            for row in std::mem::take(&mut history.early).into_values().flatten() {
                uncovered(&mut self.ledger, history.stream.stream, row);
            }
        }
        self.nothing_beyond(connection).await
    }

    /// Rows behind the offsets of this run belong to offsets that have come since.
    async fn nothing_beyond(&mut self, connection: &mut PgConnection) -> Result<(), VerifyError> {
        let now: BTreeMap<i64, i64> = sqlx::query_as("SELECT stream, next_offset FROM streams")
            .fetch_all(connection)
            .await?
            .into_iter()
            .collect();
        for (stream, offset) in &self.beyond {
            let what = match now.get(stream) {
                Some(next) if offset < next => continue,
                Some(next) => format!("a row stands at offset {offset}, but the stream has come to {next} only"),
                None => format!("a row stands at offset {offset} of stream {stream}, which is not in `streams`"),
            };
            self.ledger.findings.add(Check::Outcomes, Finding::new(what).at(*stream, *offset));
        }
        Ok(())
    }
}

impl History {
    /// Reads the next batches, if all that were read are loaded.
    async fn fill(&mut self, connection: &mut PgConnection, most: usize) -> Result<(), VerifyError> {
        if !self.batches.is_empty() || self.read_seq >= self.stream.batch_seq {
            return Ok(());
        }
        let (stream, after, last) = (self.stream.stream, self.read_seq, self.stream.batch_seq);
        let select = format!(
            "SELECT seq, from_offset, next_offset, outcomes, message_chain, previous_hash, hash, recorded_at
             FROM batches WHERE stream = {stream} AND seq > {after} AND seq <= {last} ORDER BY seq LIMIT {most}"
        );
        let batches = &mut self.batches;
        copy_out(connection, &select, |mut row| {
            batches.push_back(Batch {
                stream,
                seq: row.i64()?,
                from: row.i64()?,
                next: row.i64()?,
                outcomes: row.bytes()?.to_vec(),
                message_chain: row.array()?,
                previous_hash: row.array()?,
                hash: row.array()?,
                recorded_at: row.time()?,
            });
            Ok::<(), VerifyError>(())
        })
        .await?;
        self.read_seq = self.batches.back().map_or(last, |batch| batch.seq);
        Ok(())
    }

    /// A batch takes its place behind the one before it. How many it has rejected.
    fn load(
        &mut self,
        batch: Batch,
        ledger: &mut Ledger<'_>,
        gaps: &mut Vec<Gap>,
        queue: &mut VecDeque<(i64, i64)>,
        under_way: &mut u64,
    ) -> u64 {
        self.follows(&batch, ledger);
        let expected = match batch.expected() {
            Ok((end, expected)) => {
                if end != batch.next {
                    let what = format!("batch {}: its outcomes end elsewhere than its offsets", batch.seq);
                    let finding = Finding::new(what).at(batch.stream, batch.from);
                    ledger.findings.add(Check::Offsets, finding.instead(batch.next, end));
                }
                expected
            }
            Err(error) => {
                let finding = Finding::new(format!("batch {}: {error}", batch.seq)).at(batch.stream, error.offset);
                ledger.findings.add(Check::Offsets, finding);
                Default::default()
            }
        };
        for run in runs(batch.from, &batch.outcomes).map_while(Result::ok) {
            if let Run::Lost { from, to } = run {
                gaps.push(self.gap(from, to));
            }
        }
        self.head = Head {
            next_offset: batch.next.max(self.head.next_offset),
            batch_seq: batch.seq,
            message_chain: batch.message_chain,
            batch_chain: batch.hash,
        };
        queue.push_back((batch.stream, batch.from));
        *under_way = under_way.saturating_add(batch.next.abs_diff(batch.from));
        let mut pending = Pending::new(batch, expected);
        while let Some(early) = self.early.first_entry().filter(|early| *early.key() < pending.batch.next) {
            early.remove().into_iter().for_each(|row| pending.row(row));
        }
        if let Some(other) = self.pending.insert(pending.batch.from, pending) {
            // Two batches that begin at one offset: the overlap was found above.
            other.judge(ledger);
        }
        expected.rejected
    }

    fn gap(&self, from_offset: i64, next_offset: i64) -> Gap {
        let Stream { stream, partition, ref topic, .. } = self.stream;
        let (accepted_by, accepted_at) = (None, None);
        Gap { stream, topic: topic.clone(), partition, from_offset, next_offset, accepted_by, accepted_at }
    }

    /// Whether a batch begins where the last one has ended.
    fn follows(&self, batch: &Batch, ledger: &mut Ledger<'_>) {
        let (head, stream) = (&self.head, batch.stream);
        ledger.findings.compared(Check::Offsets, batch.next.abs_diff(batch.from));
        ledger.findings.compared(Check::BatchChain, 1);
        if batch.seq != head.batch_seq + 1 {
            let what =
                format!("batch {} follows batch {}: a batch is missing or out of line", batch.seq, head.batch_seq);
            let finding = Finding::new(what).at(stream, head.next_offset);
            ledger.findings.add(Check::Offsets, finding.instead(head.batch_seq + 1, batch.seq));
        }
        if batch.from != head.next_offset {
            let (kind, (from, to)) = if batch.from > head.next_offset {
                ("no batch covers", (head.next_offset, batch.from))
            } else {
                ("two batches cover", (batch.from, head.next_offset))
            };
            let what = format!("{kind} offsets {from} to {} (batch {})", to - 1, batch.seq);
            let finding = Finding::new(what).at(stream, from);
            ledger.findings.add(Check::Offsets, finding.instead(head.next_offset, batch.from));
        }
        if batch.previous_hash != head.batch_chain {
            let what = format!("batch {} does not follow the hash of the batch before it", batch.seq);
            ledger.findings.add(Check::BatchChain, Finding::new(what).at(stream, batch.from));
        }
    }

    /// The stream stands where its last batch ends.
    fn ends_at_its_head(&self, ledger: &mut Ledger<'_>) {
        let (stands, ends) = (self.stream.head(), self.head);
        let at = |what: &str| Finding::new(what).at(self.stream.stream, ends.next_offset);
        if (stands.next_offset, stands.batch_seq) != (ends.next_offset, ends.batch_seq) {
            let place = |head: Head| format!("offset {}, batch {}", head.next_offset, head.batch_seq);
            let finding = at("the stream does not stand where its batches end").instead(place(ends), place(stands));
            ledger.findings.add(Check::Offsets, finding);
        }
        if stands.batch_chain != ends.batch_chain {
            let finding = at("the stream's batch chain is not that of its last batch");
            ledger.findings.add(Check::BatchChain, finding);
        }
        if stands.message_chain != ends.message_chain {
            let finding = at("the stream's message chain is not that of its last batch");
            ledger.findings.add(Check::BatchChain, finding);
        }
    }

    fn pending_at(&mut self, offset: i64) -> Option<&mut Pending> {
        let (_, pending) = self.pending.range_mut(..=offset).next_back()?;
        (offset < pending.batch.next).then_some(pending)
    }
}

impl Pending {
    fn row(&mut self, row: Row) {
        match row {
            Row::Event(event) => self.event(event),
            Row::Posting(posting) => self.posting(posting),
        }
    }

    /// Which table its next row must come from.
    fn lacks(&self) -> usize {
        match (self.lacks_events(), self.lacks_conflicts()) {
            (true, _) => Table::Events.place(),
            (false, true) => Table::Conflicts.place(),
            (false, false) => Table::Postings.place(),
        }
    }

    /// How many rows of each table it holds.
    fn rows(&self) -> [usize; 3] {
        [self.events.len() - self.conflicts, self.conflicts, self.postings.len()]
    }
}

impl Row {
    fn table(&self) -> usize {
        match self {
            Self::Event(event) if event.outcome == b'C' => Table::Conflicts.place(),
            Self::Event(_) => Table::Events.place(),
            Self::Posting(_) => Table::Postings.place(),
        }
    }
}

impl Table {
    fn place(self) -> usize {
        match self {
            Self::Events => 0,
            Self::Conflicts => 1,
            Self::Postings => 2,
        }
    }
}

/// A row at an offset whose batch was complete without it.
fn surplus(ledger: &mut Ledger<'_>, stream: i64, row: Row) {
    stray(ledger, stream, row, "was added: its batch is complete without it");
}

/// A row at an offset that no batch covers.
fn uncovered(ledger: &mut Ledger<'_>, stream: i64, row: Row) {
    stray(ledger, stream, row, "stands at an offset that no batch covers");
}

fn stray(ledger: &mut Ledger<'_>, stream: i64, row: Row, what: &str) {
    match row {
        Row::Event(event) => {
            let finding = Finding::new(format!("a dedup row {what}")).at(stream, event.offset).event(event.id);
            ledger.findings.add(Check::Outcomes, finding.resource(event.resource));
        }
        Row::Posting(posting) => {
            let what = format!("line {} {what}", posting.line);
            let finding = Finding::new(what).at(stream, posting.offset).account(posting.debit);
            ledger.findings.add(Check::Postings, finding);
            ledger.sums.post(posting.debit, posting.credit, posting.amount);
        }
    }
}
