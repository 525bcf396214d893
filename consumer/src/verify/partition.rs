//! One partition of the topic beside what the ledger says of its offsets.

use super::VerifyError;
use super::copy::copy_out;
use super::deep::{Duplicate, LookUps, rows};
use super::report::{Check, Finding, Findings};
use super::snapshot::{Head, Stream};
use crate::batch::Received;
use crate::chain::Hash;
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
    /// The ends of its batches: offset, message chain, number.
    borders: VecDeque<(i64, Hash, i64)>,
    rows: HashMap<i64, Vec<(EventId, Fingerprint)>>,
    loaded: i64,
    loaded_seq: i64,
}

impl<'s> Partition<'s> {
    pub fn new(stream: &'s Stream, from: Head, end: i64) -> Self {
        Self {
            stream,
            next: from.next_offset,
            end,
            chain: from.message_chain,
            runs: VecDeque::new(),
            borders: VecDeque::new(),
            rows: HashMap::new(),
            loaded: from.next_offset,
            loaded_seq: from.batch_seq,
        }
    }

    /// Loads what the ledger says of this offset, if it is not loaded yet.
    pub async fn load(&mut self, connection: &mut PgConnection, offset: i64) -> Result<(), VerifyError> {
        while self.loaded <= offset && self.loaded_seq < self.stream.batch_seq {
            let (stream, from) = (self.stream.stream, self.loaded);
            let select = format!(
                "SELECT seq, from_offset, next_offset, outcomes, message_chain FROM batches
                 WHERE stream = {stream} AND seq > {} AND seq <= {} AND (seq = {} OR from_offset < {})
                 ORDER BY seq LIMIT 5000",
                self.loaded_seq,
                self.stream.batch_seq,
                self.loaded_seq + 1,
                from.saturating_add(WINDOW)
            );
            let before = self.loaded_seq;
            copy_out(connection, &select, |mut row| {
                let (seq, from, next, outcomes, chain) =
                    (row.i64()?, row.i64()?, row.i64()?, row.bytes()?, row.array()?);
                // What is wrong with the bytes themselves the tables' own check has told.
                self.runs.extend(runs(from, outcomes).map_while(Result::ok));
                self.borders.push_back((next, chain, seq));
                (self.loaded, self.loaded_seq) = (next.max(self.loaded), seq);
                Ok::<(), VerifyError>(())
            })
            .await?;
            if self.loaded_seq == before {
                // Batches are missing: the tables' own check has told.
                self.loaded_seq = self.stream.batch_seq;
            }
            rows(connection, (stream, from, self.loaded), |offset, id, fingerprint| {
                self.rows.entry(offset).or_default().push((id, fingerprint));
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
    }

    /// The chain at the ends of the batches before `to`.
    fn compare_chain(&mut self, to: i64, findings: &mut Findings) {
        while let Some((_, recorded, seq)) = self.borders.pop_front_if(|(end, ..)| *end <= to) {
            if self.chain != recorded {
                let what = format!(
                    "the messages of the topic do not hash to the message chain recorded at the end of batch {seq}: \
                     the topic or the ledger holds another history"
                );
                findings.add(Check::Topic, self.finding(what, self.next - 1));
                // Each batch is judged by itself.
                self.chain = recorded;
            }
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
            Some(_) => {
                let what = "a message stands in the topic at an offset where the ledger says that there is none";
                let event = received.decoded.as_ref().ok().map(|event| event.id);
                findings.add(Check::Topic, Finding { event, ..self.finding(what.to_owned(), offset) });
            }
            // An offset that no batch covers: the tables' own check has told.
            None => {}
        }
        self.chain = received.parts.link(self.chain, offset);
        self.next = offset + 1;
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
                self.finding(what.to_owned(), offset).instead(hex(event.fingerprint), hex(fingerprint))
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

fn hex(fingerprint: Fingerprint) -> String {
    fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
