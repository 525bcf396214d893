//! What is waiting in Kafka, read once, and how far it brings each stream.

use crate::chain::{BatchHash, Hash, Parts};
use crate::claim::{Claim, Claims};
use crate::decide::{Arrival, Decision};
use crate::failure::Failure;
use crate::message::{At, Decoded, Message, Outcome};
use crate::outcomes::Outcomes;
use crate::rows;
use postonce_schema::{Decoder, Reject, StreamId};
use std::collections::{BTreeMap, HashMap};

/// A message with what can be said of it without a database.
pub struct Received<'a> {
    pub message: Message<'a>,
    pub parts: Parts,
    pub decoded: Decoded<'a>,
}

impl<'a> Received<'a> {
    /// The bytes become an event or a rejection, here and nowhere else.
    pub fn read(message: Message<'a>, decoder: &'a Decoder) -> Self {
        let parts = Parts::of(&message);
        let Message { value, timestamp, .. } = message;
        let decoded = decoder.decode(postonce_schema::Message { value, headers: &message.headers, timestamp });
        Self { message, parts, decoded }
    }

    /// Replaces the event by a rejection that is Postonce's own fault.
    pub fn reject(&mut self, why: String) {
        self.decoded = Err(Reject::Internal { why });
    }
}

/// A run of messages that becomes one transaction.
pub struct Batch<'b, 'a> {
    pub received: &'b [Received<'a>],
    /// Where the Kafka client stands in each stream once these messages are through:
    /// past them it has seen nothing but transaction markers and aborted messages.
    pub positions: &'b Positions,
}

/// Where the Kafka client stands in each stream.
pub type Positions = HashMap<StreamId, Position>;

/// A place in a log, and the epoch of the leader that took what stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub offset: i64,
    pub leader_epoch: Option<i32>,
}

/// Refused messages, one for each content and code.
pub struct SetAside<'b, 'a> {
    pub hash: Hash,
    pub reject: &'b Reject,
    pub message: &'b Message<'a>,
    pub last: At,
    pub times: i64,
    /// The copy that was accepted after the first refusal, within this batch.
    pub closed: Option<At>,
}

impl<'b, 'a> Batch<'b, 'a> {
    /// The messages that brought an event.
    pub fn arrivals(&self) -> Vec<Arrival<'b, 'a>> {
        let arrival = |received: &'b Received<'a>| {
            let event = received.decoded.as_ref().ok()?;
            Some(Arrival { message: &received.message, event })
        };
        self.received.iter().filter_map(arrival).collect()
    }

    /// The messages that brought none, in the order of their key in `quarantine`, so
    /// that two workers with the same poison cannot wait for each other in a circle.
    pub fn set_aside(&self) -> Vec<SetAside<'b, 'a>> {
        let mut found: BTreeMap<(Hash, &'static str), SetAside<'b, 'a>> = BTreeMap::new();
        for received in self.received {
            let at = received.message.at;
            match &received.decoded {
                Err(reject) => {
                    let hash = received.parts.content();
                    let new = SetAside { hash, reject, message: &received.message, last: at, times: 1, closed: None };
                    found
                        .entry((hash, reject.code()))
                        .and_modify(|seen| (seen.last, seen.times) = (at, seen.times + 1))
                        .or_insert(new);
                }
                // What was refused before it in this batch is closed by it; what comes later
                // is open, as it would be in a batch of its own.
                Ok(_) if received.parts.is_retry() => {
                    let hash = received.parts.content();
                    let rows = found.range_mut((hash, "")..).take_while(|((other, _), _)| *other == hash);
                    rows.for_each(|(_, row)| row.closed = row.closed.or(Some(at)));
                }
                Ok(_) => {}
            }
        }
        found.into_values().collect()
    }

    /// The copies sent again that were accepted, the first of each content: they close
    /// the rows that quarantine holds of it.
    pub fn accepted_copies(&self) -> BTreeMap<Hash, At> {
        let mut copies = BTreeMap::new();
        for received in self.received.iter().filter(|one| one.parts.is_retry() && one.decoded.is_ok()) {
            copies.entry(received.parts.content()).or_insert(received.message.at);
        }
        copies
    }
}

/// How far a batch brings one stream.
pub struct Advance {
    /// As the claim stood: what the fence compares.
    pub before: Claim,
    /// As it stands after the commit.
    pub after: Claim,
    pub outcomes: Outcomes,
}

impl Advance {
    /// Over offsets that are lost, up to the log's first.
    pub fn over_gap(before: &Claim, log_start: i64) -> Result<Self, Failure> {
        let mut outcomes = Outcomes::from_offset(before.next_offset);
        outcomes.lose_to(log_start)?;
        // Nobody has read what stands before the log's start, so its epoch is not known.
        let end = (before.message_chain, None);
        Ok(Self { after: after(before, &outcomes, end, &[]), before: before.clone(), outcomes })
    }
}

/// Brings every stream of the batch forward, each offset with its outcome, both
/// chains with it.
pub fn advance(batch: &Batch<'_, '_>, decision: &Decision<'_, '_>, claims: &Claims) -> Result<Vec<Advance>, Failure> {
    let mut streams: BTreeMap<StreamId, (Outcomes, End)> = BTreeMap::new();
    for claim in claims.values() {
        let end = (claim.message_chain, claim.leader_epoch);
        streams.insert(claim.stream, (Outcomes::from_offset(claim.next_offset), end));
    }
    let mut judged = decision.outcomes.iter();
    for received in batch.received {
        let outcome = match &received.decoded {
            Err(_) => Outcome::Rejected,
            Ok(_) => judged.next().map_or(Outcome::Rejected, |(_, outcome)| *outcome),
        };
        let At { stream, offset } = received.message.at;
        let (outcomes, (chain, leader_epoch)) = streams
            .get_mut(&stream)
            .ok_or_else(|| Failure::Damage(format!("a message of stream {}, which is not claimed", stream.as_i64())))?;
        outcomes.push(offset, outcome)?;
        *chain = received.parts.link(*chain, offset);
        *leader_epoch = received.message.leader_epoch;
    }
    let mut rows = canonical_rows(decision);
    let mut advances = Vec::new();
    for (stream, (mut outcomes, mut end)) in streams {
        if let Some(position) = batch.positions.get(&stream).filter(|at| at.offset > outcomes.next_offset()) {
            outcomes.skip_to(position.offset)?;
            // A marker may be of a later leader than the last message. Its offset with that
            // message's epoch would look like a log that was cut off.
            end.1 = position.leader_epoch;
        }
        let before = claims[&stream].clone();
        if outcomes.next_offset() > before.next_offset {
            let rows = rows.remove(&stream).unwrap_or_default();
            advances.push(Advance { after: after(&before, &outcomes, end, &rows), before, outcomes });
        }
    }
    Ok(advances)
}

/// Message chain and leader's epoch at the last offset.
type End = (Hash, Option<i32>);

fn after(before: &Claim, outcomes: &Outcomes, (message_chain, leader_epoch): End, rows: &[u8]) -> Claim {
    let batch_seq = before.batch_seq + 1;
    let offsets = (before.next_offset, outcomes.next_offset());
    let stream = before.stream.as_i64();
    let mut hash = BatchHash::new(before.batch_chain, stream, batch_seq, offsets, outcomes.bytes(), message_chain);
    hash.row(rows);
    Claim {
        next_offset: outcomes.next_offset(),
        leader_epoch,
        batch_seq,
        message_chain,
        batch_chain: hash.finish(),
        ..before.clone()
    }
}

/// For each stream: its events and conflicts by offset, then its postings by
/// offset and line. That is the order in which they were decided.
fn canonical_rows(decision: &Decision<'_, '_>) -> BTreeMap<StreamId, Vec<u8>> {
    let mut accepted: Vec<(At, Option<Outcome>, &Arrival<'_, '_>)> = Vec::new();
    accepted.extend(decision.events.iter().map(|new| (new.arrival.message.at, Some(new.outcome), &new.arrival)));
    accepted.extend(decision.conflicts.iter().map(|arrival| (arrival.message.at, None, arrival)));
    accepted.sort_by_key(|(at, _, _)| *at);
    let mut rows: BTreeMap<StreamId, Vec<u8>> = BTreeMap::new();
    for (at, outcome, arrival) in accepted {
        let out = rows.entry(at.stream).or_default();
        match outcome {
            Some(outcome) => rows::Accepted::event(arrival, outcome).canonical(out),
            None => rows::Accepted::conflict(arrival).canonical(out),
        }
    }
    for posting in &decision.postings {
        rows::Posted::of(posting).canonical(rows.entry(posting.at.stream).or_default());
    }
    rows
}
