//! What the resources hold, computed anew from their facts.
//!
//! They are read in chunks of their ids, each in a snapshot of its own together with how
//! far the streams were then. A chunk is a few million rows: read in the order of the
//! table, for seconds.

use super::VerifyError;
use super::copy::{Row, copy_out};
use super::report::{Check, Finding, Findings};
use super::snapshot::Cut;
use super::sums::{BUCKETS, Sums, bucket};
use crate::decide::{Held, UnreadableState};
use crate::read::snapshot;
use postonce_schema::{EventId, Fingerprint, Position, PostingAmount, ResourceId, Rules, Timestamp};
use sqlx::postgres::PgConnection;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::ops::Range;
use uuid::Uuid;

/// About how many resources one snapshot reads.
const CHUNK: i64 = 4_000_000;

/// A row of `resources`.
pub struct Resource<'a> {
    pub id: ResourceId,
    pub kind: &'a str,
    pub path: &'a str,
    pub state: &'a str,
    pub updated_at: i64,
    pub revision: i64,
    pub rules_version: i32,
    pub facts: &'a str,
}

/// What a resource is by its own facts.
pub struct State {
    pub event: EventId,
    pub fingerprint: Fingerprint,
    pub position: Vec<PostingAmount>,
}

impl<'a> Resource<'a> {
    pub const COLUMNS: &'static str =
        "SELECT resource_id, kind, path, state, updated_at, revision, rules_version, facts FROM resources";

    pub fn read(row: &mut Row<'a>) -> Result<Self, VerifyError> {
        Ok(Self {
            id: ResourceId::from_bytes(row.array()?),
            kind: row.text()?,
            path: row.text()?,
            state: row.text()?,
            updated_at: row.time()?,
            revision: row.i64()?,
            rules_version: row.i32()?,
            facts: row.text()?,
        })
    }

    /// Computes the state anew.
    pub fn state(&self, rules: &Rules) -> Result<State, UnreadableState> {
        let updated_at = Timestamp::from_micros(self.updated_at).ok_or_else(|| UnreadableState {
            resource: self.id,
            kind: self.kind.to_owned(),
            state: self.state.to_owned(),
            version: self.rules_version,
            why: "its time is outside the years 1970 to 9999".to_owned(),
        })?;
        let names = (self.kind, self.state, self.rules_version);
        let held = Held::from_names(rules, self.id, names, (self.revision, updated_at), self.facts)?;
        Ok(State {
            event: EventId::new(self.kind, self.state, self.path, updated_at),
            fingerprint: held.facts.fingerprint(held.kind, held.state, self.path, updated_at),
            position: Position::of(held.state, &held.facts).minus(Position::default()),
        })
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.kind, self.path)
    }
}

/// The condition for the resources of these buckets, on a column of their ids.
pub fn in_buckets(column: &str, buckets: &Range<usize>) -> String {
    // Twelve bits are three hex digits.
    let from = format!("{column} >= '{:03x}00000-0000-0000-0000-000000000000'", buckets.start);
    if buckets.end >= BUCKETS {
        return from;
    }
    format!("{from} AND {column} < '{:03x}00000-0000-0000-0000-000000000000'", buckets.end)
}

/// The states that still want their event: taken out when it is seen. By a hash with a
/// key of this run: 8 bytes for each resource.
#[derive(Default)]
pub struct Wanted {
    keys: HashSet<u64, BuildHasherDefault<AsItIs>>,
    key: RandomState,
}

impl Wanted {
    fn want(&mut self, state: &State) {
        self.keys.insert(self.key.hash_one((state.event, state.fingerprint)));
    }

    /// An event, or a conflict, that may be a resource's state.
    pub fn seen(&mut self, event: EventId, fingerprint: Fingerprint) {
        self.keys.remove(&self.key.hash_one((event, fingerprint)));
    }

    pub fn wants(&self, state: &State) -> bool {
        self.keys.contains(&self.key.hash_one((state.event, state.fingerprint)))
    }

    pub fn left(&self) -> usize {
        self.keys.len()
    }
}

/// The key is a hash already.
#[derive(Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A resource with conflicts: whether one of them became its state, no row says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contested {
    pub revision: i64,
    pub changes: i64,
    pub conflicts: i64,
}

/// What the pass over the resources leaves behind.
#[derive(Default)]
pub struct Resources {
    /// How far the streams were when the chunk of a bucket was read.
    cuts: Vec<Cut>,
    pub wanted: Wanted,
    pub contested: HashMap<ResourceId, Contested>,
    /// Those with an event that says of the one before it that it was no earlier. Where
    /// all go back in time, no chain of events can close to a circle that nothing leads
    /// to; these are followed one by one.
    pub circular: HashSet<ResourceId>,
    /// Those that have had an event, where only these are judged: not here, but one by one.
    pub touched: Option<HashSet<ResourceId>>,
    pub count: u64,
}

impl Resources {
    /// None is read before the history: those that it names are judged after it.
    pub fn one_by_one() -> Self {
        Self { touched: Some(HashSet::new()), ..Self::default() }
    }

    /// Whether the resource was read after this offset was written.
    pub fn saw(&self, resource: ResourceId, stream: i64, offset: i64) -> bool {
        let chunk = bucket(resource) * self.cuts.len() / BUCKETS;
        self.cuts.get(chunk).is_some_and(|cut| cut.covers(stream, offset))
    }
}

/// Reads all resources. `progress` is told how many have been read.
pub async fn read(
    connection: &mut PgConnection,
    rules: &Rules,
    sums: &mut Sums,
    findings: &mut Findings,
    progress: &dyn Fn(u64),
) -> Result<Resources, VerifyError> {
    let mut all = Resources::default();
    let chunks = chunks(connection).await?;
    for chunk in 0..chunks {
        let buckets = chunk * BUCKETS / chunks..(chunk + 1) * BUCKETS / chunks;
        let mut snapshot = snapshot(connection).await?;
        all.cuts.push(Cut::read(&mut snapshot).await?);
        contested(&mut snapshot, &buckets, &mut all.contested).await?;
        let select = format!("{} WHERE {}", Resource::COLUMNS, in_buckets("resource_id", &buckets));
        copy_out(&mut snapshot, &select, |mut row| {
            one(&Resource::read(&mut row)?, rules, &mut all, sums, findings);
            if all.count.is_multiple_of(10_000) {
                progress(all.count);
            }
            Ok::<(), VerifyError>(())
        })
        .await?;
        snapshot.commit().await?;
    }
    for check in [Check::Resources, Check::Trace, Check::Events, Check::Positions] {
        findings.compared(check, all.count);
    }
    Ok(all)
}

/// A power of two, so that each is the same share of the ids.
async fn chunks(connection: &mut PgConnection) -> Result<usize, VerifyError> {
    // A table that nobody has analyzed yet says -1: then at 40 rows a page, as they are.
    let rows: i64 = sqlx::query_scalar(
        "SELECT greatest(c.reltuples::bigint, pg_relation_size(c.oid) / current_setting('block_size')::bigint * 40)
         FROM pg_class c WHERE c.oid = 'resources'::regclass",
    )
    .fetch_one(connection)
    .await?;
    let chunks = usize::try_from(rows / CHUNK + 1).unwrap_or(1);
    Ok(chunks.next_power_of_two().min(BUCKETS))
}

async fn contested(
    connection: &mut PgConnection,
    buckets: &Range<usize>,
    contested: &mut HashMap<ResourceId, Contested>,
) -> Result<(), VerifyError> {
    let select = format!("SELECT resource_id FROM conflicts WHERE {}", in_buckets("resource_id", buckets));
    copy_out(connection, &select, |mut row| {
        contested.entry(ResourceId::from_bytes(row.array()?)).or_default().conflicts += 1;
        Ok::<(), VerifyError>(())
    })
    .await
}

fn one(resource: &Resource<'_>, rules: &Rules, all: &mut Resources, sums: &mut Sums, findings: &mut Findings) {
    all.count += 1;
    match all.contested.get_mut(&resource.id) {
        Some(contested) => contested.revision = resource.revision,
        None => sums.revised(resource.id, resource.revision),
    }
    sums.points_to(resource.id, resource.updated_at);
    let finding = |what: String| Finding { resource: Some(resource.name()), ..Finding::new(what) };
    let expected = ResourceId::new(resource.kind, resource.path);
    if expected != resource.id {
        let what = "the resource's id is not the hash of its kind and path: its row was edited".to_owned();
        let hex = |id: ResourceId| Uuid::from_bytes(*id.as_bytes()).to_string();
        findings.add(Check::Resources, finding(what).instead(hex(expected), hex(resource.id)));
    }
    match resource.state(rules) {
        Ok(state) => {
            all.wanted.want(&state);
            for posting in &state.position {
                sums.held(resource.id, posting.debit.id, posting.credit.id, posting.amount);
            }
        }
        Err(error) => findings.add(Check::Events, finding(error.to_string())),
    }
}
