//! What both ledgers have recorded of each offset of a stream.

use super::merge::Rows;
use crate::failure::Failure;
use crate::outcomes::{Run, runs};
use futures_util::TryStreamExt;
use postonce_schema::StreamId;
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::collections::VecDeque;

/// What an offset was, as far as both sides must agree: which of two copies is the
/// duplicate depends on the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Was {
    Accepted,
    Refused,
    NoMessage,
}

/// Messages by what became of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Judged {
    pub accepted: u64,
    pub refused: u64,
}

impl Judged {
    pub fn add(&mut self, was: Was, times: u64) {
        match was {
            Was::Accepted => self.accepted += times,
            Was::Refused => self.refused += times,
            Was::NoMessage => {}
        }
    }
}

/// Offsets of which both sides say one thing each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    pub from: i64,
    /// Exclusive.
    pub to: i64,
    pub live: Was,
    pub rebuilt: Was,
}

impl Stretch {
    pub fn length(&self) -> u64 {
        u64::try_from(self.to - self.from).unwrap_or(0)
    }
}

/// The recorded offsets of one side, from one on.
struct Recorded<'c> {
    stream: StreamId,
    batches: Rows<'c, (i64, i64, Vec<u8>)>,
    waiting: VecDeque<Run>,
}

impl<'c> Recorded<'c> {
    fn read(connection: &'c mut PgConnection, stream: StreamId, from: i64) -> Self {
        let batches = sqlx::query_as(
            "SELECT seq, from_offset, outcomes FROM batches
             WHERE stream = $1 AND next_offset > $2 ORDER BY from_offset",
        )
        .bind(stream.as_i64())
        .bind(from)
        .fetch(connection);
        Self { stream, batches, waiting: VecDeque::new() }
    }

    /// What is recorded at an offset, and up to where; nothing after the last batch.
    async fn at(&mut self, offset: i64) -> Result<Option<(Was, i64)>, Failure> {
        loop {
            while self.waiting.front().is_some_and(|run| run.next_offset() <= offset) {
                self.waiting.pop_front();
            }
            if let Some(run) = self.waiting.front() {
                return Ok(Some(match *run {
                    Run::Message { offset: at, .. } if at > offset => (Was::NoMessage, at),
                    Run::Message { outcome, .. } => {
                        let refused = outcome == crate::message::Outcome::Rejected;
                        (if refused { Was::Refused } else { Was::Accepted }, run.next_offset())
                    }
                    Run::Hole { to, .. } | Run::Lost { to, .. } => (Was::NoMessage, to),
                }));
            }
            let Some((seq, from, bytes)) = self.batches.try_next().await? else { return Ok(None) };
            let stream = self.stream.as_i64();
            for run in runs(from, &bytes) {
                let damage = |error| Failure::Damage(format!("batches, stream {stream}, seq {seq}: {error}"));
                self.waiting.push_back(run.map_err(damage)?);
            }
        }
    }
}

/// Walks both sides from one offset to another, the end exclusive.
pub async fn walk(
    live: &mut PgConnection,
    rebuilt: &mut PgConnection,
    stream: StreamId,
    (from, to): (i64, i64),
    mut each: impl FnMut(Stretch),
) -> Result<(), Failure> {
    let (mut live, mut rebuilt) = (Recorded::read(live, stream, from), Recorded::read(rebuilt, stream, from));
    let mut offset = from;
    while offset < to {
        let nothing = (Was::NoMessage, to);
        let (was, live_to) = live.at(offset).await?.unwrap_or(nothing);
        let (now, rebuilt_to) = rebuilt.at(offset).await?.unwrap_or(nothing);
        let end = live_to.min(rebuilt_to).min(to);
        each(Stretch { from: offset, to: end, live: was, rebuilt: now });
        offset = end;
    }
    Ok(())
}
