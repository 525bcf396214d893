//! What the consumer has recorded, as it stands in the tables.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::database::Db;

/// (stream, offset)
pub type At = (i64, i64);
/// Kind and path.
pub type Resource = (String, String);
/// For each pair of accounts and asset the money from the second to the first; the
/// first is the lesser in name.
pub type Pairs = BTreeMap<(String, String, String), i128>;

pub struct Records {
    pub streams: HashMap<i64, Stream>,
    /// In the order in which they were committed.
    pub transactions: Vec<Transaction>,
    /// The dedup rows: of events and of conflicts, which have outcome `C`.
    pub accepted: HashMap<At, Accepted>,
    pub postings: HashMap<At, Postings>,
    /// Message hash in hex, and code.
    pub quarantine: HashSet<(String, String)>,
    /// With the codes of the incidents of an offset.
    pub incidents: HashMap<At, Vec<String>>,
    pub resources: HashMap<Resource, Held>,
}

pub struct Stream {
    pub cluster: String,
    pub topic: String,
    /// Of the topic as it was when the stream began; of a replay that of the stream it
    /// repeats. A topic that is deleted and made again has another.
    pub topic_id: String,
    pub partition: i32,
    pub first_offset: i64,
    pub next_offset: i64,
}

/// The batches that were committed together.
#[derive(Default)]
pub struct Transaction {
    pub batches: Vec<Batch>,
}

pub struct Batch {
    pub stream: i64,
    pub seq: i64,
    pub from: i64,
    pub next: i64,
    pub marks: Vec<(i64, Mark)>,
    recorded_at: i64,
}

/// What a batch says of an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// `P N D S C R`
    Outcome(char),
    /// No message, to the offset before this one.
    Hole(i64),
    /// Deleted before it was read, and accepted as lost; to the offset before this one.
    Lost(i64),
}

pub struct Accepted {
    pub letter: char,
    pub id: String,
    pub fingerprint: String,
    pub kind: String,
    pub path: String,
    pub state: String,
    /// Microseconds since 1970.
    pub updated_at: i64,
    pub previous_at: Option<i64>,
}

#[derive(Default)]
pub struct Postings {
    pub pairs: Pairs,
    /// Whatever cannot be: a gap in the lines, a pair twice, a time that is not the event's.
    pub odd: Option<String>,
    lines: i16,
    pub effective_at: i64,
}

#[derive(Debug)]
pub struct Held {
    pub state: String,
    pub updated_at: i64,
    pub revision: i64,
    pub facts: Value,
}

impl Records {
    pub fn read(db: &Db) -> Result<Self> {
        Ok(Self {
            streams: streams(db)?,
            transactions: transactions(db)?,
            accepted: accepted(db)?,
            postings: postings(db)?,
            quarantine: db.rows("SELECT encode(message_hash, 'hex'), code FROM quarantine")?.into_iter().collect(),
            incidents: incidents(db)?,
            resources: resources(db)?,
        })
    }
}

/// An amount from `credit` to `debit`, added to what is between them.
pub fn add(pairs: &mut Pairs, debit: &str, credit: &str, asset: &str, amount: i128) {
    let (low, high, amount) = if debit < credit { (debit, credit, amount) } else { (credit, debit, -amount) };
    // Money from an account to itself has not moved.
    if low != high {
        *pairs.entry((low.to_owned(), high.to_owned(), asset.to_owned())).or_default() += amount;
    }
}

fn streams(db: &Db) -> Result<HashMap<i64, Stream>> {
    type Row = (i64, String, String, String, i32, i64, i64);
    let rows: Vec<Row> = db.rows(
        "SELECT s.stream, s.cluster_id, s.topic, coalesce(l.topic_id, s.topic_id), s.partition, s.first_offset,
                s.next_offset
         FROM streams s
         LEFT JOIN LATERAL (SELECT topic_id FROM streams
                            WHERE s.replay AND NOT replay AND (cluster_id, topic, partition) = (s.cluster_id, s.topic, s.partition)
                            ORDER BY created_at DESC LIMIT 1) l ON true",
    )?;
    let stream = |(stream, cluster, topic, topic_id, partition, first_offset, next_offset)| {
        (stream, Stream { cluster, topic, topic_id, partition, first_offset, next_offset })
    };
    Ok(rows.into_iter().map(stream).collect())
}

/// By the time in the batch row. A transaction that has seen what another one wrote began
/// to look after that one's commit and wrote its own batch row later still, so among
/// transactions that depend on each other the order of the rows is that of the commits;
/// and where neither has seen the other, both orders explain the same outcomes. What one
/// transaction wrote has one xmin.
///
/// A server's clock may be set back. Then xmin is the order: a transaction has its id from
/// its first write, which comes after all that it looks up. (Only then, for a row that
/// was edited has the id of its editor.)
fn transactions(db: &Db) -> Result<Vec<Transaction>> {
    type Row = (i64, i64, i64, i64, Vec<u8>, i64, i64);
    let rows: Vec<Row> = db.rows(
        "SELECT stream, seq, from_offset, next_offset, outcomes,
                (extract(epoch FROM recorded_at) * 1000000)::bigint, xmin::text::bigint
         FROM batches ORDER BY stream, seq",
    )?;
    let (mut by_id, mut clock_is_right): (BTreeMap<i64, Transaction>, _) = (BTreeMap::new(), true);
    let mut last: HashMap<i64, i64> = HashMap::new();
    for (stream, seq, from, next, outcomes, recorded_at, xmin) in rows {
        clock_is_right &= last.insert(stream, recorded_at).is_none_or(|before| before <= recorded_at);
        let marks = marks(from, next, &outcomes).with_context(|| format!("batch {seq} of stream {stream}"))?;
        by_id.entry(xmin).or_default().batches.push(Batch { stream, seq, from, next, marks, recorded_at });
    }
    let mut transactions: Vec<Transaction> = by_id.into_values().collect();
    if clock_is_right {
        transactions.sort_by_key(|transaction| transaction.batches.iter().map(|batch| batch.recorded_at).min());
    }
    Ok(transactions)
}

fn marks(from: i64, next: i64, outcomes: &[u8]) -> Result<Vec<(i64, Mark)>> {
    let (mut marks, mut offset, mut rest) = (Vec::new(), from, outcomes);
    while let [first, tail @ ..] = rest {
        rest = tail;
        let (mark, end) = match first {
            b'H' | b'L' => {
                let (length, tail) = rest.split_first_chunk::<8>().context("a hole without its length")?;
                rest = tail;
                let end = offset + i64::from_be_bytes(*length);
                (if *first == b'H' { Mark::Hole(end) } else { Mark::Lost(end) }, end)
            }
            b'.' => (Mark::Hole(offset + 1), offset + 1),
            b'P' | b'N' | b'D' | b'S' | b'C' | b'R' => (Mark::Outcome(char::from(*first)), offset + 1),
            other => bail!("{other:#x} at offset {offset} is no outcome"),
        };
        marks.push((offset, mark));
        offset = end;
    }
    if offset != next {
        bail!("its outcomes end at {offset}, not at {next}");
    }
    Ok(marks)
}

fn accepted(db: &Db) -> Result<HashMap<At, Accepted>> {
    type Row = (i64, i64, String, String, String, Option<String>, Option<String>, Option<String>, i64, Option<i64>);
    let rows: Vec<Row> = db.rows(
        "SELECT a.stream, a.message_offset, a.outcome, encode(a.event_id, 'hex'), replace(a.fingerprint::text, '-', ''),
                r.kind, r.path, a.state, (extract(epoch FROM a.updated_at) * 1000000)::bigint,
                (extract(epoch FROM a.previous_at) * 1000000)::bigint
         FROM (SELECT stream, message_offset, outcome::text, event_id, fingerprint, resource_id, state, updated_at, previous_at
               FROM events
               UNION ALL
               SELECT c.stream, c.message_offset, 'C', event_id, c.fingerprint, c.resource_id, e.state, updated_at, NULL
               FROM conflicts c LEFT JOIN events e USING (updated_at, event_id)) a
         LEFT JOIN resources r USING (resource_id)",
    )?;
    let mut accepted = HashMap::new();
    for (stream, offset, letter, id, fingerprint, kind, path, state, updated_at, previous_at) in rows {
        let at = || format!("the dedup row of offset {offset} in stream {stream}");
        let row = Accepted {
            letter: letter.chars().next().with_context(at)?,
            id,
            fingerprint,
            // Nothing, where the rows of the event or the resource are gone: no message says so.
            kind: kind.unwrap_or_default(),
            path: path.unwrap_or_default(),
            state: state.unwrap_or_default(),
            updated_at,
            previous_at,
        };
        if accepted.insert((stream, offset), row).is_some() {
            bail!("{} is not alone", at());
        }
    }
    Ok(accepted)
}

fn postings(db: &Db) -> Result<HashMap<At, Postings>> {
    type Row = (i64, i64, i16, String, String, String, String, i64, i64);
    let rows: Vec<Row> = db.rows(
        "SELECT p.stream, p.message_offset, p.line, d.path, c.path, d.asset, c.asset, p.amount,
                (extract(epoch FROM p.effective_at) * 1000000)::bigint
         FROM postings p
         JOIN accounts d ON d.account_id = p.debit
         JOIN accounts c ON c.account_id = p.credit
         ORDER BY p.stream, p.message_offset, p.line",
    )?;
    let mut all: HashMap<At, Postings> = HashMap::new();
    for (stream, offset, line, debit, credit, asset, other, amount, effective_at) in rows {
        let of = all.entry((stream, offset)).or_insert_with(|| Postings { effective_at, ..Postings::default() });
        let before = of.pairs.len();
        add(&mut of.pairs, &debit, &credit, &asset, i128::from(amount));
        if line != of.lines || asset != other || effective_at != of.effective_at || of.pairs.len() != before + 1 {
            of.odd.get_or_insert_with(|| format!("its posting {line} ({debit} from {credit}, {amount} {asset})"));
        }
        of.lines += 1;
    }
    Ok(all)
}

fn incidents(db: &Db) -> Result<HashMap<At, Vec<String>>> {
    let rows: Vec<(i64, i64, String)> =
        db.rows("SELECT stream, message_offset, code FROM incidents ORDER BY stream, message_offset, code")?;
    let mut incidents: HashMap<At, Vec<String>> = HashMap::new();
    for (stream, offset, code) in rows {
        incidents.entry((stream, offset)).or_default().push(code);
    }
    Ok(incidents)
}

fn resources(db: &Db) -> Result<HashMap<Resource, Held>> {
    let rows: Vec<(String, String, String, i64, i64, String)> = db.rows(
        "SELECT kind, path, state, (extract(epoch FROM updated_at) * 1000000)::bigint, revision, facts::text
         FROM resources",
    )?;
    let held = |(kind, path, state, updated_at, revision, facts): (_, _, _, _, _, String)| {
        let facts = serde_json::from_str(&facts).with_context(|| format!("the facts of {kind} {path}"))?;
        Ok(((kind, path), Held { state, updated_at, revision, facts }))
    };
    rows.into_iter().map(held).collect()
}
