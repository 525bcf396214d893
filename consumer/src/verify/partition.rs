//! One partition of the topic beside what the ledger says of its offsets.

use super::VerifyError;
use super::against::Signed;
use super::copy::copy_out;
use super::known::{Duplicate, LookUps};
use super::report::{Check, Finding, Findings};
use super::snapshot::{Head, Stream};
use super::tables::Table;
use crate::batch::Received;
use crate::chain::{Hash, hex};
use crate::message::Outcome;
use crate::outcomes::{Run, runs};
use postonce_schema::{Event, EventId, Fingerprint};
use sqlx::postgres::PgConnection;
use std::collections::{HashMap, VecDeque};

/// Offsets loaded at a time.
const WINDOW: i64 = 100_000;

/// A partition in the course of its reading.
pub struct Partition<'s> {
    pub stream: &'s Stream,
    /// Every offset before it has been judged.
    pub next: i64,
    /// Exclusive.
    pub end: i64,
    /// Over every message before `next`.
    chain: Hash,
    /// What the ledger says of the offsets from `next` to `loaded`.
    runs: VecDeque<Run>,
    batches: VecDeque<Ended>,
    /// The dedup rows at the loaded offsets.
    rows: HashMap<i64, Vec<(EventId, Fingerprint)>>,
    loaded: i64,
    loaded_seq: i64,
    /// What was signed off, with the chain over every message that came so far.
    signed: Option<(Signed, Hash)>,
}

/// What a batch says of the messages before its end.
struct Ended {
    seq: i64,
    from: i64,
    next: i64,
    message_chain: Hash,
}

impl<'s> Partition<'s> {
    pub fn new(stream: &'s Stream, from: Head, end: i64, signed: Option<Signed>) -> Self {
        // Where retention has deleted all that was signed off, no chain leads there.
        let signed = signed.filter(|signed| from.next_offset <= signed.next_offset);
        Self {
            stream,
            next: from.next_offset,
            end,
            chain: from.message_chain,
            runs: VecDeque::new(),
            batches: VecDeque::new(),
            rows: HashMap::new(),
            loaded: from.next_offset,
            loaded_seq: from.batch_seq,
            signed: signed.map(|signed| (signed, from.message_chain)),
        }
    }

    /// Loads what the ledger says of this offset, if it is not loaded yet. Every message
    /// before it has been judged.
    pub async fn load(&mut self, connection: &mut PgConnection, offset: i64) -> Result<(), VerifyError> {
        while self.loaded <= offset && self.loaded_seq < self.stream.batch_seq {
            let (stream, from, seq) = (self.stream.stream, self.loaded, self.loaded_seq);
            let select = format!(
                "SELECT seq, from_offset, next_offset, outcomes, message_chain FROM batches
                 WHERE stream = {stream} AND seq > {seq} AND seq <= {} AND (seq = {seq} + 1 OR from_offset < {})
                 ORDER BY seq LIMIT 5000",
                self.stream.batch_seq,
                from.saturating_add(WINDOW)
            );
            copy_out(connection, &select, |mut row| {
                let (seq, from, next) = (row.i64()?, row.i64()?, row.i64()?);
                // What is wrong with the bytes themselves the tables' own check has told.
                self.runs.extend(runs(from, row.bytes()?).map_while(Result::ok));
                self.batches.push_back(Ended { seq, from, next, message_chain: row.array()? });
                (self.loaded, self.loaded_seq) = (next.max(self.loaded), seq);
                Ok::<(), VerifyError>(())
            })
            .await?;
            if self.loaded_seq == seq {
                // Batches are missing: the tables' own check has told.
                self.loaded_seq = self.stream.batch_seq;
            }
            self.rows.clear();
            self.load_rows(connection, (from, self.loaded)).await?;
        }
        Ok(())
    }

    /// The ids and contents of the dedup rows in a range of offsets, conflicts too.
    async fn load_rows(&mut self, connection: &mut PgConnection, (from, to): (i64, i64)) -> Result<(), VerifyError> {
        let stream = self.stream.stream;
        for table in [Table::Events, Table::Conflicts].map(Table::name) {
            let select = format!(
                "SELECT message_offset, event_id, fingerprint FROM {table}
                 WHERE stream = {stream} AND message_offset >= {from} AND message_offset < {to}"
            );
            copy_out(connection, &select, |mut row| {
                let offset = row.i64()?;
                let event = (EventId::from_bytes(row.array()?), Fingerprint::from_bytes(row.array()?));
                self.rows.entry(offset).or_default().push(event);
                Ok::<(), VerifyError>(())
            })
            .await?;
        }
        Ok(())
    }

    /// No message stands between the last one and `to`.
    pub fn pass(&mut self, to: i64, findings: &mut Findings) {
        while let Some(run) = self.runs.front().filter(|run| run.next_offset() <= to) {
            if let Run::Message { offset, outcome } = *run {
                let what =
                    format!("the ledger says \"{}\" of an offset where the topic has no message", outcome.name());
                findings.add(Check::Topic, self.finding(what, offset));
            }
            self.runs.pop_front();
        }
        self.next = to.max(self.next);
        self.compare_chain(to, findings);
        self.compare_signed(to, findings);
    }

    /// The chain at the ends of the batches before `to`.
    fn compare_chain(&mut self, to: i64, findings: &mut Findings) {
        while let Some(batch) = self.batches.pop_front_if(|batch| batch.next <= to) {
            if self.chain != batch.message_chain {
                let what = format!(
                    "the messages of the topic do not hash to the message chain recorded by batch {} (offsets {} to \
                     {}): the topic or the ledger holds another history",
                    batch.seq,
                    batch.from,
                    batch.next.saturating_sub(1)
                );
                let finding = self.finding(what, batch.from);
                findings.add(Check::Topic, finding.instead(hex::text(&batch.message_chain), hex::text(&self.chain)));
                // Each batch is judged by itself.
                self.chain = batch.message_chain;
            }
        }
    }

    /// The chain at the offset that was signed off: over every message, whatever the
    /// batches say.
    fn compare_signed(&mut self, to: i64, findings: &mut Findings) {
        let Some((signed, chain)) = self.signed.take_if(|(signed, _)| signed.next_offset <= to) else { return };
        findings.compared(Check::Checkpoint, 1);
        if chain != signed.message_chain {
            let what = format!(
                "the messages before offset {} do not hash to the message chain that was signed off: the topic, the \
                 checkpoint, or what the ledger recorded of messages that are gone was changed",
                signed.next_offset
            );
            let finding = self.finding(what, signed.next_offset);
            findings.add(Check::Checkpoint, finding.instead(hex::text(&signed.message_chain), hex::text(&chain)));
        }
    }

    /// All of it has been read.
    pub fn finish(mut self, findings: &mut Findings) {
        self.compare_signed(self.next, findings);
        if let Some((signed, _)) = self.signed {
            let what = "the topic ends before the offset that was signed off: messages are gone";
            let finding = self.finding(what.to_owned(), self.next);
            findings.add(Check::Checkpoint, finding.instead(signed.next_offset, self.next));
        }
    }

    /// The next message.
    pub fn message(&mut self, received: &Received<'_>, look_ups: &mut LookUps, findings: &mut Findings) {
        let offset = received.message.at.offset;
        self.pass(offset, findings);
        match self.runs.front().copied() {
            Some(Run::Message { offset: at, outcome }) if at == offset => {
                self.runs.pop_front();
                self.judge(received, outcome, look_ups, findings);
            }
            Some(run) => {
                let says = if let Run::Lost { .. } = run { "it was lost to retention" } else { "there is none" };
                let what = format!("a message stands in the topic at an offset where the ledger says that {says}");
                let event = received.decoded.as_ref().ok().map(|event| event.id);
                findings.add(Check::Topic, Finding { event, ..self.finding(what, offset) });
            }
            // An offset that no batch covers: the tables' own check has told.
            None => {}
        }
        self.chain = received.parts.link(self.chain, offset);
        if let Some((_, chain)) = &mut self.signed {
            *chain = received.parts.link(*chain, offset);
        }
        self.next = offset.saturating_add(1);
    }

    fn judge(&mut self, received: &Received<'_>, outcome: Outcome, look_ups: &mut LookUps, findings: &mut Findings) {
        let (stream, offset) = (self.stream.stream, received.message.at.offset);
        if outcome == Outcome::Rejected {
            // Why it was refused may have depended on settings: that it is kept must hold.
            look_ups.refused.push((stream, offset, received.parts.content()));
            return;
        }
        let event = match &received.decoded {
            Ok(event) => event,
            Err(reject) => {
                let what = format!("the ledger says \"{}\" of a message that is no event: {reject}", outcome.name());
                findings.add(Check::Topic, self.finding(what, offset));
                return;
            }
        };
        if outcome == Outcome::Duplicate {
            let Event { id, updated_at, fingerprint, .. } = *event;
            look_ups.duplicates.push(Duplicate { stream, offset, id, updated_at, fingerprint });
            return;
        }
        // Where there is no row, the tables' own check has told.
        for (id, fingerprint) in self.rows.remove(&offset).unwrap_or_default() {
            if (id, fingerprint) == (event.id, event.fingerprint) {
                continue;
            }
            let finding = if id == event.id {
                let what = "the content of this event in the ledger is not what the topic says (fingerprint)";
                self.finding(what.to_owned(), offset).instead(content(event.fingerprint), content(fingerprint))
            } else {
                let what = "the event in the ledger is not the one that stands in the topic at its offset";
                self.finding(what.to_owned(), offset).instead(event.id, id)
            };
            findings.add(Check::Topic, finding.event(event.id).resource(event.resource_id));
        }
    }

    fn finding(&self, what: String, offset: i64) -> Finding {
        Finding::new(what).at(self.stream.stream, offset)
    }
}

fn content(fingerprint: Fingerprint) -> String {
    fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
