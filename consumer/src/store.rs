//! All SQL of the transaction, and of claiming the streams that it advances.
//!
//! The transaction runs READ COMMITTED. Every statement touches its rows in the
//! order of their key: two workers that meet on some rows then wait for each other
//! in one direction only.

use crate::account_postings::{AccountPostings, Sides, Sum};
use crate::batch::{Advance, SetAside};
use crate::chain::{Hash, encode_headers, unmarked};
use crate::decide::{Arrival, Change, Content, Held, Incident, Known, NewEvent, Posting};
use crate::distance::Came;
use crate::failure::{Failure, Race};
use crate::message::At;
use crate::outcomes::{self, Run};
use crate::rows::{CopyBinary, from_postgres_micros, postgres_micros};
use postonce_schema::{Account, AccountId, Event, EventId, Fingerprint, ResourceId, Rules, StreamId, Timestamp};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgConnection, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef, Postgres};
use sqlx::{Connection, Row};
use std::collections::{BTreeMap, HashMap, HashSet};
use uuid::Uuid;

/// An open transaction: dropped without a commit, it leaves nothing behind.
pub struct Transaction<'c> {
    inner: sqlx::Transaction<'c, Postgres>,
}

/// Accounts whose row this connection has seen committed. It must not outlive the
/// connection: after a failover the database may have forgotten what it knows.
#[derive(Default)]
pub struct KnownAccounts(HashSet<AccountId>);

/// About 32 MB.
const MOST_KNOWN_ACCOUNTS: usize = 1 << 20;

impl KnownAccounts {
    pub fn learn(&mut self, accounts: Vec<AccountId>) {
        if self.0.len() + accounts.len() > MOST_KNOWN_ACCOUNTS {
            self.0.clear();
        }
        self.0.extend(accounts);
    }
}

impl<'c> Transaction<'c> {
    /// The shared lock keeps new rules out until this transaction has ended: the
    /// fence counts the rules, and without the lock a version could come into force
    /// between its count and the commit.
    pub async fn begin(connection: &'c mut PgConnection) -> Result<Self, Failure> {
        let begin =
            "BEGIN; SELECT pg_advisory_xact_lock_shared(hashtextextended('postonce rules ' || current_schema(), 0))";
        Ok(Self { inner: connection.begin_with(begin).await? })
    }

    /// One state of the books to look at; nothing can be written.
    pub async fn read_only(connection: &'c mut PgConnection) -> Result<Self, Failure> {
        Ok(Self { inner: connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await? })
    }

    /// No locks: two workers rarely hold one resource, and a replay of duplicates
    /// writes nothing. `write_resources` finds out who was faster.
    pub async fn read_resources<'a>(
        &mut self,
        arrivals: &[Arrival<'_, 'a>],
        rules: &'a Rules,
    ) -> Result<HashMap<ResourceId, Held<'a>>, Failure> {
        let ids: HashSet<ResourceId> = arrivals.iter().map(|arrival| arrival.event.resource_id).collect();
        let mut ids: Vec<Uuid> = ids.into_iter().map(|id| uuid(id.as_bytes())).collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = sqlx::query(
            "SELECT resource_id, kind, state, updated_at, revision, rules_version, facts::text
             FROM resources WHERE resource_id = ANY($1)",
        )
        .bind(ids)
        .fetch_all(&mut *self.inner)
        .await?;
        let mut held = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id = ResourceId::from_bytes(row.try_get::<Uuid, _>(0)?.into_bytes());
            let time: Time = row.try_get(3)?;
            let (kind, state, facts): (&str, &str, &str) = (row.try_get(1)?, row.try_get(2)?, row.try_get(6)?);
            let names = (kind, state, row.try_get(5)?);
            held.insert(id, Held::from_names(rules, id, names, (row.try_get(4)?, time.0), facts)?);
        }
        Ok(held)
    }

    /// The contents that are known for these events' ids.
    pub async fn look_up<'e, 'a: 'e>(&mut self, events: impl Iterator<Item = &'e Event<'a>>) -> Result<Known, Failure> {
        let keys: BTreeMap<(Timestamp, EventId), ()> = events.map(|event| ((event.updated_at, event.id), ())).collect();
        if keys.is_empty() {
            return Ok(Known::new());
        }
        let times: Vec<Time> = keys.keys().map(|(time, _)| Time(*time)).collect();
        let ids: Vec<&[u8]> = keys.keys().map(|(_, id)| id.as_bytes().as_slice()).collect();
        // The time is the first column of the key: by the id alone this would read all of `events`.
        let rows = sqlx::query(
            "SELECT e.event_id, e.fingerprint, e.message_time
             FROM unnest($1::timestamptz[], $2::bytea[]) AS k (updated_at, event_id)
             JOIN events e ON e.updated_at = k.updated_at AND e.event_id = k.event_id
             UNION ALL
             SELECT c.event_id, c.fingerprint, c.message_time
             FROM unnest($2::bytea[]) AS k (event_id) JOIN conflicts c ON c.event_id = k.event_id",
        )
        .bind(times)
        .bind(ids)
        .fetch_all(&mut *self.inner)
        .await?;
        let mut known = Known::with_capacity(rows.len());
        for row in &rows {
            let id: &[u8] = row.try_get(0)?;
            let id: [u8; 32] = id.try_into().map_err(|_| Failure::Damage("an event_id is not 32 bytes".to_owned()))?;
            let fingerprint = Fingerprint::from_bytes(row.try_get::<Uuid, _>(1)?.into_bytes());
            // Only a metric goes by it: one that cannot be read stops nobody.
            let came = Came::Before(row.try_get::<Option<Time>, _>(2).ok().flatten().map(|time| time.0));
            known.entry(EventId::from_bytes(id)).or_default().push(Content { fingerprint, came });
        }
        Ok(known)
    }

    /// The events, by their place in the list, that are not known with this very content as
    /// the first that came. Where nearly all are known, nearly nothing has to be sent back.
    pub async fn not_known(&mut self, arrivals: &[Arrival<'_, '_>]) -> Result<Vec<usize>, Failure> {
        if arrivals.is_empty() {
            return Ok(Vec::new());
        }
        let events = || arrivals.iter().map(|arrival| arrival.event);
        let rows = sqlx::query(
            "SELECT k.nth
             FROM unnest($1::timestamptz[], $2::bytea[], $3::uuid[]) WITH ORDINALITY
                  AS k (updated_at, event_id, fingerprint, nth)
             LEFT JOIN events e ON e.updated_at = k.updated_at AND e.event_id = k.event_id
             WHERE e.fingerprint IS DISTINCT FROM k.fingerprint",
        )
        .bind(events().map(|event| Time(event.updated_at)).collect::<Vec<_>>())
        .bind(events().map(|event| event.id.as_bytes().as_slice()).collect::<Vec<_>>())
        .bind(events().map(|event| uuid(event.fingerprint.as_bytes())).collect::<Vec<_>>())
        .fetch_all(&mut *self.inner)
        .await?;
        let nth = |row: &PgRow| {
            let nth = usize::try_from(row.try_get::<i64, _>(0)?).ok().and_then(|nth| nth.checked_sub(1));
            nth.ok_or_else(|| Failure::Damage("an ordinality that is no place in the list".to_owned()))
        };
        rows.iter().map(nth).collect()
    }

    /// Which of these messages are in quarantine, and whether a person has dismissed them.
    pub async fn quarantined(&mut self, hashes: &[Hash]) -> Result<HashMap<Hash, bool>, Failure> {
        if hashes.is_empty() {
            return Ok(HashMap::new());
        }
        let hashes: Vec<&[u8]> = hashes.iter().map(Hash::as_slice).collect();
        let found: Vec<(Vec<u8>, bool)> = sqlx::query_as(
            "SELECT message_hash, bool_and(closed_at IS NOT NULL AND closed_stream IS NULL)
             FROM quarantine WHERE message_hash = ANY($1) GROUP BY message_hash",
        )
        .bind(hashes)
        .fetch_all(&mut *self.inner)
        .await?;
        Ok(found.into_iter().filter_map(|(hash, dismissed)| Some((hash.try_into().ok()?, dismissed))).collect())
    }

    /// What `batches` says of a stream's offsets `from` to before `to`.
    pub async fn outcomes(&mut self, stream: StreamId, from: i64, to: i64) -> Result<Vec<Run>, Failure> {
        // The borders are found by the key (stream, from_offset): the batch that begins last
        // before `from`, and those after it.
        let rows: Vec<(i64, i64, Vec<u8>)> = sqlx::query_as(
            "SELECT seq, from_offset, outcomes FROM batches
             WHERE stream = $1 AND from_offset < $3
               AND from_offset >= coalesce((SELECT max(from_offset) FROM batches WHERE stream = $1 AND from_offset <= $2), $2)
             ORDER BY from_offset",
        )
        .bind(stream.as_i64())
        .bind(from)
        .bind(to)
        .fetch_all(&mut *self.inner)
        .await?;
        let mut runs = Vec::new();
        for (seq, first, bytes) in rows {
            let damage = |error| Failure::Damage(format!("batches, stream {}, seq {seq}: {error}", stream.as_i64()));
            for run in outcomes::runs(first, &bytes) {
                runs.push(run.map_err(damage)?);
            }
        }
        Ok(runs)
    }

    pub async fn write_events(&mut self, events: &[NewEvent<'_, '_>]) -> Result<(), Failure> {
        let mut sorted: Vec<&NewEvent<'_, '_>> = events.iter().collect();
        sorted.sort_unstable_by_key(|new| (new.arrival.event.updated_at, new.arrival.event.id));
        let mut copy = CopyBinary::begin();
        sorted.iter().for_each(|new| copy.event(new));
        let columns = "COPY events (updated_at, event_id, resource_id, fingerprint, stream, message_offset,
                                    message_time, outcome, state, source, previous_at) FROM STDIN (FORMAT binary)";
        self.copy(columns, copy, events.len()).await
    }

    /// Compare-and-set, never an upsert: two workers that read a resource as absent
    /// would both post it from nothing, and an upsert would let both.
    pub async fn write_resources(&mut self, changes: &HashMap<ResourceId, Change<'_, '_>>) -> Result<(), Failure> {
        let (mut absent, mut present): (Vec<_>, Vec<_>) = changes.values().partition(|change| change.read_as.is_none());
        absent.sort_unstable_by_key(|change| change.to.event.resource_id);
        present.sort_unstable_by_key(|change| change.to.event.resource_id);
        let mut copy = CopyBinary::begin();
        absent.iter().for_each(|change| copy.resource(change));
        let columns = "COPY resources (resource_id, kind, path, state, updated_at, revision, rules_version, facts)
                       FROM STDIN (FORMAT binary)";
        self.copy(columns, copy, absent.len()).await?;
        self.update_resources(&present).await
    }

    async fn update_resources(&mut self, changes: &[&Change<'_, '_>]) -> Result<(), Failure> {
        if changes.is_empty() {
            return Ok(());
        }
        let events = || changes.iter().map(|change| change.to.event);
        // `revision = read_as` is the comparison: without it the slower of two workers
        // overwrites the state of the faster, and posts from a state that is gone.
        let changed = sqlx::query(
            "UPDATE resources r
             SET state = n.state, updated_at = n.updated_at, revision = n.revision,
                 rules_version = n.rules_version, facts = n.facts::json
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::timestamptz[], $5::bigint[], $6::integer[], $7::text[])
                  AS n (resource_id, read_as, state, updated_at, revision, rules_version, facts)
             WHERE r.resource_id = n.resource_id AND r.revision = n.read_as",
        )
        .bind(events().map(|event| uuid(event.resource_id.as_bytes())).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.read_as).collect::<Vec<_>>())
        .bind(events().map(|event| event.state.name.as_str()).collect::<Vec<_>>())
        .bind(events().map(|event| Time(event.updated_at)).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.revision).collect::<Vec<_>>())
        .bind(events().map(|event| event.version.number).collect::<Vec<_>>())
        .bind(events().map(|event| event.facts.to_json(event.kind)).collect::<Vec<_>>())
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        if u64::try_from(changes.len()) == Ok(changed) {
            return Ok(());
        }
        Err(Failure::Race(Race::ResourceChanged { sent: changes.len(), changed }))
    }

    /// Writes the accounts that this connection has not seen yet, and names them.
    pub async fn write_accounts(
        &mut self,
        postings: &[Posting],
        sides: &Sides,
        known: &KnownAccounts,
    ) -> Result<Vec<AccountId>, Failure> {
        let new: HashSet<AccountId> = sides.accounts().filter(|id| !known.0.contains(id)).collect();
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let accounts: BTreeMap<AccountId, &Account> = postings
            .iter()
            .flat_map(|posting| [&posting.posting.debit, &posting.posting.credit])
            .filter(|account| new.contains(&account.id))
            .map(|account| (account.id, account.as_ref()))
            .collect();
        // Of either key: two workers that meet a new account at once may meet at the second one
        // first, and with the first alone as the target one of them would lose a race.
        sqlx::query(
            "INSERT INTO accounts (account_id, path, asset)
             SELECT account_id, path, asset FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (account_id, path, asset)
             ORDER BY account_id
             ON CONFLICT DO NOTHING",
        )
        .bind(accounts.keys().map(|id| uuid(id.as_bytes())).collect::<Vec<_>>())
        .bind(accounts.values().map(|account| account.path.as_str()).collect::<Vec<_>>())
        .bind(accounts.values().map(|account| account.asset.as_str()).collect::<Vec<_>>())
        .execute(&mut *self.inner)
        .await?;
        Ok(accounts.into_keys().collect())
    }

    pub async fn write_postings(&mut self, postings: &[Posting]) -> Result<(), Failure> {
        let mut copy = CopyBinary::begin();
        postings.iter().for_each(|posting| copy.posting(posting));
        let columns = "COPY postings (stream, message_offset, line, debit, credit, amount, effective_at)
                       FROM STDIN (FORMAT binary)";
        self.copy(columns, copy, postings.len()).await
    }

    /// What `statement` finds the postings of an account by.
    pub async fn write_account_postings(&mut self, sides: &Sides) -> Result<(), Failure> {
        let rows: Vec<AccountPostings> = sides.rows().collect();
        let mut copy = CopyBinary::begin();
        rows.iter().for_each(|row| copy.account_postings(row));
        let columns = "COPY account_postings (account_id, last_effective_at, stream, base_offset, offsets)
                       FROM STDIN (FORMAT binary)";
        self.copy(columns, copy, rows.len()).await
    }

    /// Closes what quarantine holds of messages that were sent again and are accepted
    /// now. It comes before this batch's own refusals are written: one of them may follow
    /// the copy in the topic, and then stays open.
    ///
    /// A row that a person has dismissed gets its place too: that the copy was accepted is
    /// a fact of the topic, which a rebuild finds again, and the dismissal is in `actions`.
    pub async fn close_accepted(&mut self, copies: &BTreeMap<Hash, At>) -> Result<(), Failure> {
        if copies.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "UPDATE quarantine q
             SET closed_at = coalesce(q.closed_at, clock_timestamp()), closed_stream = c.stream, closed_offset = c.message_offset
             FROM (SELECT r.message_hash, r.code, n.stream, n.message_offset
                   FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS n (message_hash, stream, message_offset)
                   JOIN quarantine r USING (message_hash)
                   WHERE r.closed_stream IS NULL
                   ORDER BY r.message_hash, r.code FOR UPDATE OF r) c
             WHERE q.message_hash = c.message_hash AND q.code = c.code",
        )
        .bind(copies.keys().map(|hash| hash.as_slice()).collect::<Vec<_>>())
        .bind(copies.values().map(|at| at.stream.as_i64()).collect::<Vec<_>>())
        .bind(copies.values().map(|at| at.offset).collect::<Vec<_>>())
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Refused messages, conflicts, and what a person should look at.
    pub async fn set_aside(
        &mut self,
        refused: &[SetAside<'_, '_>],
        conflicts: &[Arrival<'_, '_>],
        incidents: &[Incident<'_, '_>],
    ) -> Result<(), Failure> {
        self.quarantine(refused).await?;
        let mut sorted: Vec<&Arrival<'_, '_>> = conflicts.iter().collect();
        sorted.sort_unstable_by_key(|arrival| (arrival.event.id, arrival.event.fingerprint));
        let mut copy = CopyBinary::begin();
        sorted.iter().for_each(|arrival| copy.conflict(arrival));
        let columns = "COPY conflicts (event_id, fingerprint, updated_at, resource_id, stream, message_offset,
                                       message_time, source, key, value, headers) FROM STDIN (FORMAT binary)";
        self.copy(columns, copy, conflicts.len()).await?;
        let mut copy = CopyBinary::begin();
        incidents.iter().for_each(|incident| copy.incident(incident));
        let columns = "COPY incidents (stream, message_offset, code, resource_id, updated_at, event_id, detail)
                       FROM STDIN (FORMAT binary)";
        self.copy(columns, copy, incidents.len()).await
    }

    async fn quarantine(&mut self, refused: &[SetAside<'_, '_>]) -> Result<(), Failure> {
        if refused.is_empty() {
            return Ok(());
        }
        let messages = || refused.iter().map(|one| one.message);
        // A row that is there keeps what closed it: bytes that a person has judged, or whose
        // copy is accepted, open nothing by coming again. They count on.
        sqlx::query(
            "INSERT INTO quarantine AS q (message_hash, code, place, reason, key, value, headers, message_time,
                                          first_stream, first_offset, last_stream, last_offset, times_seen,
                                          closed_stream, closed_offset, closed_at)
             SELECT n.*, CASE WHEN n.closed_stream IS NOT NULL THEN clock_timestamp() END
             FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[],
                         $8::timestamptz[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
                         $14::bigint[], $15::bigint[])
                  AS n (message_hash, code, place, reason, key, value, headers, message_time, first_stream,
                        first_offset, last_stream, last_offset, times_seen, closed_stream, closed_offset)
             ON CONFLICT (message_hash, code) DO UPDATE
             SET times_seen = q.times_seen + excluded.times_seen, last_stream = excluded.last_stream,
                 last_offset = excluded.last_offset, last_seen = clock_timestamp()",
        )
        .bind(refused.iter().map(|one| one.hash.as_slice()).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.reject.code()).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.reject.place()).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.reject.to_string()).collect::<Vec<_>>())
        .bind(messages().map(|message| message.key).collect::<Vec<_>>())
        .bind(messages().map(|message| message.value).collect::<Vec<_>>())
        .bind(messages().map(|message| encode_headers(unmarked(&message.headers))).collect::<Vec<_>>())
        .bind(messages().map(|message| message.time().map(Time)).collect::<Vec<_>>())
        .bind(messages().map(|message| message.at.stream.as_i64()).collect::<Vec<_>>())
        .bind(messages().map(|message| message.at.offset).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.last.stream.as_i64()).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.last.offset).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.times).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.closed.map(|at| at.stream.as_i64())).collect::<Vec<_>>())
        .bind(refused.iter().map(|one| one.closed.map(|at| at.offset)).collect::<Vec<_>>())
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Additive, so it needs no read; the rows are hot, so it comes late. No COPY may
    /// follow: no time-out ends a COPY whose client is frozen, and it would hold them.
    pub async fn add_to_balances(&mut self, sides: &Sides) -> Result<(), Failure> {
        let sums: Vec<Sum> = sides.sums().collect();
        if sums.is_empty() {
            return Ok(());
        }
        // Without ORDER BY two workers could lock the same balances in opposite order.
        sqlx::query(
            "INSERT INTO balances AS b (account_id, debits, credits)
             SELECT account_id, debits::numeric, credits::numeric
             FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (account_id, debits, credits)
             ORDER BY account_id
             ON CONFLICT (account_id) DO UPDATE
             SET debits = b.debits + excluded.debits, credits = b.credits + excluded.credits",
        )
        .bind(sums.iter().map(|sum| uuid(sum.account.as_bytes())).collect::<Vec<_>>())
        .bind(sums.iter().map(|sum| sum.debits.to_string()).collect::<Vec<_>>())
        .bind(sums.iter().map(|sum| sum.credits.to_string()).collect::<Vec<_>>())
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    pub async fn write_batches(&mut self, advances: &[Advance]) -> Result<(), Failure> {
        sqlx::query(
            "INSERT INTO batches (stream, seq, from_offset, next_offset, outcomes, message_chain, previous_hash, hash)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[],
                                  $7::bytea[], $8::bytea[])",
        )
        .bind(advances.iter().map(|a| a.after.stream.as_i64()).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.batch_seq).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.before.next_offset).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.next_offset).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.outcomes.bytes()).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.message_chain.as_slice()).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.before.batch_chain.as_slice()).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.batch_chain.as_slice()).collect::<Vec<_>>())
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Who has accepted that the offsets of this advance are lost.
    pub async fn write_accepted_gap(&mut self, advance: &Advance, person: &str) -> Result<(), Failure> {
        sqlx::query(
            "INSERT INTO actions (action_id, action, person, stream, from_offset, next_offset)
             VALUES ($1, 'accept_gap', $2, $3, $4, $5)",
        )
        .bind(Uuid::from_u128(rand::random()))
        .bind(person)
        .bind(advance.before.stream.as_i64())
        .bind(advance.before.next_offset)
        .bind(advance.after.next_offset)
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// The fence: moves the offsets if the streams are still as this worker claimed
    /// and left them. It comes last, so nobody waits for it, and the whole batch of a
    /// zombie dies on it. Each comparison guards against another ghost: `claim` a
    /// former owner; `next_offset` and `message_chain` one from before a restore,
    /// whose token may be in the backup too; the count of rules one with older rules.
    pub async fn fence(&mut self, advances: &[Advance], rules: &Rules) -> Result<(), Failure> {
        let moved = sqlx::query(
            "UPDATE streams s
             SET next_offset = n.next_offset, message_chain = n.message_chain, batch_seq = n.seq, batch_chain = n.hash,
                 leader_epoch = n.leader_epoch, leader_epoch_offset = n.next_offset
             FROM unnest($1::bigint[], $2::uuid[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[], $7::bigint[], $8::bytea[],
                         $10::integer[])
                  AS n (stream, claim, expected_offset, expected_chain, next_offset, message_chain, seq, hash, leader_epoch)
             WHERE s.stream = n.stream AND s.claim = n.claim
               AND s.next_offset = n.expected_offset AND s.message_chain = n.expected_chain
               AND (SELECT count(*) FROM rules) = $9",
        )
        .bind(advances.iter().map(|a| a.before.stream.as_i64()).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.before.token).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.before.next_offset).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.before.message_chain.as_slice()).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.next_offset).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.message_chain.as_slice()).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.batch_seq).collect::<Vec<_>>())
        .bind(advances.iter().map(|a| a.after.batch_chain.as_slice()).collect::<Vec<_>>())
        .bind(i64::try_from(rules.versions().len()).unwrap_or(i64::MAX))
        .bind(advances.iter().map(|a| a.after.leader_epoch).collect::<Vec<_>>())
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        if u64::try_from(advances.len()) == Ok(moved) { Ok(()) } else { Err(Failure::FenceLost) }
    }

    pub async fn commit(self) -> Result<(), Failure> {
        self.inner.commit().await.map_err(Failure::of_commit)
    }

    async fn copy(&mut self, statement: &str, rows: CopyBinary, count: usize) -> Result<(), Failure> {
        if count == 0 {
            return Ok(());
        }
        let mut copy = self.inner.copy_in_raw(statement).await?;
        copy.send(rows.finish()).await?;
        copy.finish().await?;
        Ok(())
    }
}

fn uuid(bytes: &[u8; 16]) -> Uuid {
    Uuid::from_bytes(*bytes)
}

/// timestamptz in its binary form, exact to the microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Timestamp);

impl sqlx::Type<Postgres> for Time {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184)) // timestamptz
    }
}

impl PgHasArrayType for Time {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185)) // timestamptz[]
    }
}

impl sqlx::Encode<'_, Postgres> for Time {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&postgres_micros(self.0).to_be_bytes());
        Ok(IsNull::No)
    }
}

impl sqlx::Decode<'_, Postgres> for Time {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        Ok(Self(from_postgres_micros(micros).ok_or("a time outside the years 1970 to 9999")?))
    }
}
