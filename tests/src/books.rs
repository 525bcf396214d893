//! Whether a ledger is right in itself, and whether two are the same.
//!
//! All of it reads the tables as they are, and none of it uses the product's own
//! reading code: what is wrong there must not hide itself here.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use postonce_consumer::chain::{Parts, START};
use postonce_consumer::database::Database as Schema;
use postonce_consumer::message::{At, Message as Seen};
use postonce_schema::{Header, StreamId};
use tokio::runtime::Builder;

use crate::database::Db;
use crate::messages::read_all;
use crate::parts::{Database, postgres, unique};
use postonce::private_postgres::PrivatePostgres;

/// A migrated database of a test's own.
pub struct Ledger {
    /// For `DATABASE_URL`.
    pub url: String,
    /// Finds the ledger's tables without the name of their schema.
    pub db: Db,
}

impl Ledger {
    /// In the shared Postgres.
    pub fn fresh(label: &str) -> Result<Self> {
        Self::fresh_in(&postgres(), label)
    }

    /// In this Postgres.
    pub fn fresh_in(server: &PrivatePostgres, label: &str) -> Result<Self> {
        Self::made_in(server, label, |url| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(Schema::new(url, "postonce")?.migrate())?)
        })
    }

    /// In the shared Postgres, and migrated by somebody else.
    pub fn made_by(label: &str, migrate: impl FnOnce(&str) -> Result<()>) -> Result<Self> {
        Self::made_in(&postgres(), label, migrate)
    }

    fn made_in(server: &PrivatePostgres, label: &str, migrate: impl FnOnce(&str) -> Result<()>) -> Result<Self> {
        let Database { name, url, db } = Database::fresh_in(server, label)?;
        migrate(&url)?;
        // For our own connections: the product sets its search_path itself.
        db.execute(&format!("ALTER DATABASE {name} SET search_path = postonce"))?;
        Ok(Self::at(&url))
    }

    /// One that is there already.
    pub fn at(url: &str) -> Self {
        Self { db: Db::new(url), url: url.to_owned() }
    }

    /// One that is there, by a URL whose search_path finds it.
    pub fn existing(url: &str) -> Self {
        Self { url: url.to_owned(), db: Db::new(url) }
    }

    /// The URL of a new login that has these roles and nothing else.
    pub fn login(&self, roles: &[&str]) -> Result<String> {
        let name = unique("login");
        self.db.execute(&format!("CREATE ROLE {name} LOGIN PASSWORD 'secret' IN ROLE {}", roles.join(", ")))?;
        let place = self.url.rsplit_once('@').context("no @ in the URL")?.1;
        Ok(format!("postgres://{name}:secret@{place}"))
    }

    /// How many offsets have an outcome, of all streams but those of replays.
    pub fn offsets(&self) -> Result<i64> {
        self.db.one("SELECT coalesce(sum(next_offset - first_offset), 0)::bigint FROM streams WHERE NOT replay")
    }

    /// debits − credits in minor units; 0 for an account that is not there.
    pub fn balance(&self, account: &str, asset: &str) -> Result<i64> {
        self.db.one(&format!(
            "SELECT coalesce((SELECT balance::bigint FROM account_balances WHERE account = '{account}' AND asset = '{asset}'), 0)"
        ))
    }

    /// What every ledger must be, whatever happened to its consumers. Not to be
    /// asked while one is writing.
    pub fn check(&self) -> Result<()> {
        check_postings(&self.db)?;
        check_changes(&self.db)?;
        let outcomes = check_batches(&self.db)?;
        check_outcomes(&self.db, &outcomes)
    }

    /// The message chain of every stream, recomputed from the topic, is the ledger's.
    pub fn check_message_chain(&self, bootstrap: &str, topic: &str) -> Result<()> {
        let mut chains = HashMap::new();
        for message in read_all(bootstrap, topic)? {
            let partition = message.partition.context("no partition")?;
            let seen = Seen {
                at: At {
                    stream: StreamId::new("", topic, "", partition),
                    offset: message.offset.context("no offset")?,
                },
                key: message.key.as_deref(),
                value: message.value.as_deref(),
                headers: message
                    .headers
                    .iter()
                    .map(|(name, value)| Header { name: name.as_bytes(), value: value.as_deref() })
                    .collect(),
                timestamp: message.timestamp,
                leader_epoch: None,
            };
            let chain = chains.entry(partition).or_insert(START);
            *chain = Parts::of(&seen).link(*chain, seen.at.offset);
        }
        let held: Vec<(i32, Vec<u8>)> = self
            .db
            .rows(&format!("SELECT partition, message_chain FROM streams WHERE topic = '{topic}' AND NOT replay"))?;
        ensure!(!held.is_empty(), "the ledger knows no stream of {topic}");
        for (partition, held) in held {
            let topic_says = chains.get(&partition).copied().unwrap_or(START);
            ensure!(held == topic_says, "the message chain of partition {partition} is not that of the topic");
        }
        Ok(())
    }

    /// Everything that must be equal in two ledgers that have read the same topic,
    /// where each resource stands on one partition.
    pub fn books(&self) -> Result<Books> {
        Books::read(&self.db)
    }
}

/// The content of a ledger, without what may differ from run to run: borders of
/// batches, times of commits, owners.
#[derive(Debug, PartialEq, Eq)]
pub struct Books {
    /// How many offsets have which outcome, from `batches`.
    pub outcomes: BTreeMap<char, i64>,
    /// For each table how many rows, and a digest of them in the order of their key.
    pub tables: BTreeMap<&'static str, (i64, String)>,
}

/// What is compared of each table, one text for each row.
const TABLES: [(&str, &str); 8] = [
    ("streams", "SELECT concat_ws(' ', stream, first_offset, next_offset, encode(message_chain, 'hex')) FROM streams"),
    (
        "events",
        "SELECT concat_ws(' ', updated_at, encode(event_id, 'hex'), resource_id, fingerprint, stream, message_offset,
                          outcome::text, state, source) FROM events",
    ),
    (
        "resources",
        "SELECT concat_ws(' ', resource_id, kind, path, state, updated_at, revision, rules_version, facts::text) FROM resources",
    ),
    (
        "postings",
        "SELECT concat_ws(' ', stream, message_offset, line, debit, credit, amount, effective_at) FROM postings",
    ),
    ("balances", "SELECT concat_ws(' ', path, asset, debits, credits) FROM balances JOIN accounts USING (account_id)"),
    // Which copy of the same bytes came first depends on who read which partition first.
    ("quarantine", "SELECT concat_ws(' ', encode(message_hash, 'hex'), code, place, times_seen) FROM quarantine"),
    ("conflicts", "SELECT concat_ws(' ', encode(event_id, 'hex'), fingerprint, stream, message_offset) FROM conflicts"),
    (
        "incidents",
        "SELECT concat_ws(' ', stream, message_offset, code, resource_id, encode(event_id, 'hex')) FROM incidents",
    ),
];

impl Books {
    fn read(db: &Db) -> Result<Self> {
        let mut books = Self { outcomes: BTreeMap::new(), tables: BTreeMap::new() };
        for letter in check_batches(db)?.into_values() {
            *books.outcomes.entry(letter).or_default() += 1;
        }
        for (table, rows) in TABLES {
            let digest = format!(
                "SELECT count(*), coalesce(encode(sha256(string_agg(sha256(convert_to(r, 'UTF8')), '' ORDER BY r COLLATE \"C\")), 'hex'), '')
                 FROM ({rows}) t (r)"
            );
            books.tables.insert(table, db.rows::<(i64, String)>(&digest)?.remove(0));
        }
        Ok(books)
    }
}

/// (stream, offset) → the letter of its outcome.
type OutcomeOf = HashMap<(i64, i64), char>;

/// Every posting has its dedup row and its accounts, and the sums are the balances.
fn check_postings(db: &Db) -> Result<()> {
    let wrong: i64 = db.one(
        "SELECT count(*) FROM (
             SELECT account_id, sum(debits) AS debits, sum(credits) AS credits FROM (
                 SELECT debit AS account_id, amount::numeric AS debits, 0::numeric AS credits FROM postings
                 UNION ALL SELECT credit, 0, amount FROM postings) sides
             GROUP BY account_id) p
         FULL JOIN balances b USING (account_id)
         WHERE p.debits IS DISTINCT FROM b.debits OR p.credits IS DISTINCT FROM b.credits",
    )?;
    ensure!(wrong == 0, "{wrong} balances are not the sum of their postings");
    let wrong: i64 =
        db.one("SELECT count(*) FROM balances LEFT JOIN accounts a USING (account_id) WHERE a.path IS NULL")?;
    ensure!(wrong == 0, "{wrong} balances without an account");
    let wrong: i64 = db.one("SELECT count(*) FROM trial_balance WHERE difference <> 0")?;
    ensure!(wrong == 0, "{wrong} assets do not balance");
    let wrong: i64 = db.one(
        "SELECT count(*) FROM postings p
         LEFT JOIN (SELECT stream, message_offset, updated_at FROM events WHERE outcome = 'P'
                    UNION ALL SELECT stream, message_offset, updated_at FROM conflicts) e USING (stream, message_offset)
         WHERE e.updated_at IS DISTINCT FROM p.effective_at",
    )?;
    ensure!(wrong == 0, "{wrong} postings without the dedup row of their event");
    let wrong: i64 = db.one(
        "SELECT count(*) FROM (SELECT stream, message_offset, line FROM postings GROUP BY 1, 2, 3 HAVING count(*) > 1) twice",
    )?;
    ensure!(wrong == 0, "{wrong} postings are there twice");
    Ok(())
}

/// From each resource's state on, each event that became the state is found by what the
/// one after it says.
fn check_changes(db: &Db) -> Result<()> {
    let lost: i64 = db.one(
        "WITH RECURSIVE found AS (
             SELECT resource_id, updated_at FROM resources
             UNION
             SELECT e.resource_id, e.previous_at FROM found f JOIN events e USING (resource_id, updated_at)
             WHERE e.previous_at IS NOT NULL
         )
         SELECT count(*) FROM events e LEFT JOIN found f USING (resource_id, updated_at)
         WHERE (f.updated_at IS NULL AND e.outcome <> 'S') OR (e.previous_at IS NOT NULL AND e.outcome = 'S')",
    )?;
    ensure!(lost == 0, "{lost} events are not found from their resource on, or are superseded and displaced one");
    Ok(())
}

/// Each stream's batches cover its offsets without gap or overlap, and their chains
/// end where the stream stands.
fn check_batches(db: &Db) -> Result<OutcomeOf> {
    type Stream = (i64, i64, i64, i64, Vec<u8>, Vec<u8>);
    type Batch = (i64, i64, i64, Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>);
    let mut outcomes = HashMap::new();
    let streams: Vec<Stream> =
        db.rows("SELECT stream, first_offset, next_offset, batch_seq, message_chain, batch_chain FROM streams")?;
    for (stream, first_offset, next_offset, last_seq, message_chain, batch_chain) in streams {
        let batches: Vec<Batch> = db.rows(&format!(
            "SELECT seq, from_offset, next_offset, outcomes, message_chain, previous_hash, hash
             FROM batches WHERE stream = {stream} ORDER BY seq"
        ))?;
        let (mut at, mut expected, mut messages, mut hash) = (first_offset, 1, START.to_vec(), START.to_vec());
        for (seq, from, next, bytes, message_chain, previous, own) in batches {
            ensure!(seq == expected, "stream {stream}: batch {seq} stands where {expected} should");
            ensure!(from == at, "stream {stream}: batch {seq} begins at {from}, the one before it ends at {at}");
            ensure!(previous == hash, "stream {stream}: batch {seq} does not follow the one before it");
            let decoded = decode(from, &bytes).with_context(|| format!("stream {stream}, batch {seq}"))?;
            ensure!(decoded.1 == next, "stream {stream}: batch {seq} has outcomes to {}, not to {next}", decoded.1);
            outcomes.extend(decoded.0.into_iter().map(|(offset, letter)| ((stream, offset), letter)));
            (at, expected, messages, hash) = (next, seq + 1, message_chain, own);
        }
        ensure!(at == next_offset, "stream {stream} stands at {next_offset}, its batches end at {at}");
        ensure!(last_seq == expected - 1, "stream {stream} has counted {last_seq} batches, there are {}", expected - 1);
        ensure!(message_chain == messages, "stream {stream}: the message chain is not that of its last batch");
        ensure!(batch_chain == hash, "stream {stream}: the batch chain is not that of its last batch");
    }
    let strangers: i64 =
        db.one("SELECT count(*) FROM batches LEFT JOIN streams s USING (stream) WHERE s.stream IS NULL")?;
    ensure!(strangers == 0, "{strangers} batches of streams that are not there");
    Ok(outcomes)
}

/// The letters of a batch, holes left out, and the offset behind its last.
fn decode(from: i64, bytes: &[u8]) -> Result<(Vec<(i64, char)>, i64)> {
    let (mut letters, mut offset, mut rest) = (Vec::new(), from, bytes);
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'.' => offset += 1,
            // A hole, or what was lost to retention.
            b'H' | b'L' => {
                let (length, tail) = rest.split_first_chunk::<8>().context("a run without its length")?;
                (offset, rest) = (offset + i64::from_be_bytes(*length), tail);
            }
            b'P' | b'N' | b'D' | b'S' | b'C' | b'R' => {
                letters.push((offset, char::from(*first)));
                offset += 1;
            }
            other => bail!("{other:#x} is no outcome"),
        }
    }
    Ok((letters, offset))
}

/// What `batches` says of each offset, the rows of the other tables say too.
fn check_outcomes(db: &Db, outcomes: &OutcomeOf) -> Result<()> {
    let mut rows: OutcomeOf = HashMap::new();
    let found: Vec<(i64, i64, String)> = db.rows(
        "SELECT stream, message_offset, outcome::text FROM events
         UNION ALL SELECT stream, message_offset, 'C' FROM conflicts",
    )?;
    for (stream, offset, letter) in found {
        let before = rows.insert((stream, offset), letter.chars().next().context("no letter")?);
        ensure!(before.is_none(), "offset {offset} of stream {stream} has two dedup rows");
    }
    let mut told = String::new();
    for (at, letter) in outcomes {
        let row = rows.get(at).copied();
        let expected = if "DR".contains(*letter) { None } else { Some(*letter) };
        if row != expected {
            writeln!(told, "{at:?}: batches say {letter}, the dedup rows {row:?}")?;
        }
    }
    ensure!(told.is_empty(), "{told}");
    let lost = rows.keys().filter(|at| !outcomes.contains_key(at)).count();
    ensure!(lost == 0, "{lost} dedup rows at offsets that no batch covers");

    let refused = outcomes.values().filter(|letter| **letter == 'R').count();
    let seen: i64 = db.one("SELECT coalesce(sum(times_seen), 0)::bigint FROM quarantine")?;
    ensure!(seen == i64::try_from(refused)?, "{refused} offsets were rejected, quarantine has seen {seen}");

    let moved: Vec<(i64, i64)> = db.rows("SELECT DISTINCT stream, message_offset FROM postings")?;
    for at in &moved {
        let letter = outcomes.get(at);
        ensure!(matches!(letter, Some('P' | 'C')), "{at:?} has postings and the outcome {letter:?}");
    }
    let posted = outcomes.iter().filter(|(_, letter)| **letter == 'P').count();
    let moved = moved.iter().filter(|at| outcomes[at] == 'P').count();
    ensure!(posted == moved, "{posted} offsets are posted, {moved} of them have postings");
    Ok(())
}
