//! What differs between the live ledger and the rebuilt one, and what follows from what.

use super::finding::{Finding, Findings, What};
use super::merge::{Pair, merge};
use super::outcomes::{Judged, Stretch, Was, walk};
use super::rows::{self, Balance, Known, PostingSum, Resource};
use crate::claim::Lineage;
use crate::replay::{ReplayError, Span};
use postonce_schema::EventId;
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// How much was compared, both sides counted once.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Compared {
    pub events: u64,
    pub resources: u64,
    pub postings: u64,
    pub balances: u64,
    pub message_chains: u64,
}

/// Both ledgers, each in one state: the live one in a snapshot, the rebuilt one because
/// nobody writes to it any more.
pub struct Sides<'c> {
    pub live: &'c mut PgConnection,
    pub rebuilt: &'c mut PgConnection,
}

/// A stream of the live ledger, and what was read of it again.
struct Stream {
    topic: String,
    partition: i32,
    read: Option<(i64, i64)>,
}

/// What is to be named once the rows are through: that takes look-ups.
enum Unnamed {
    Event { what: What, known: Known, live: bool },
    Resource { live: Option<Resource>, rebuilt: Option<Resource> },
    Postings { resource: Uuid, accounts: [Uuid; 2], live: i128, rebuilt: i128 },
}

/// The comparison so far.
pub struct Comparison<'s> {
    lineage: &'s Lineage,
    spans: &'s [Span],
    streams: HashMap<i64, Stream>,
    pub findings: Findings,
    pub compared: Compared,
    pub live: Judged,
    pub rebuilt: Judged,
    accepted_now: HashSet<(i64, i64)>,
    /// Where a message was refused that a person has dismissed.
    dismissed: HashSet<(i64, i64)>,
    refused_now: HashSet<(i64, i64)>,
    /// Resources of events that only one side can know: their state may differ.
    excused: HashSet<Uuid>,
    /// How far the postings of those bring each account apart, live less rebuilt.
    shifts: HashMap<Uuid, i128>,
    unnamed: Vec<Unnamed>,
}

impl<'s> Comparison<'s> {
    pub async fn begin(
        sides: &mut Sides<'_>,
        lineage: &'s Lineage,
        spans: &'s [Span],
        most: usize,
    ) -> Result<Self, ReplayError> {
        for connection in [&mut *sides.live, &mut *sides.rebuilt] {
            // Every question is about whole tables, whatever the statistics say; and one that
            // nobody waits for any more must end.
            let settings =
                "SET enable_nestloop = off; SET work_mem = '64MB'; SET client_connection_check_interval = '1s'";
            sqlx::raw_sql(settings).execute(connection).await?;
        }
        sqlx::raw_sql("ANALYZE events; ANALYZE conflicts; ANALYZE resources; ANALYZE postings; ANALYZE balances")
            .execute(&mut *sides.rebuilt)
            .await?;
        let all: Vec<(i64, String, i32)> =
            sqlx::query_as("SELECT stream, topic, partition FROM streams").fetch_all(&mut *sides.live).await?;
        let read: HashMap<i64, (i64, i64)> =
            spans.iter().map(|span| (lineage.stream(span.partition).as_i64(), (span.from, span.to))).collect();
        let stream = |(id, topic, partition)| (id, Stream { topic, partition, read: read.get(&id).copied() });
        Ok(Self {
            lineage,
            spans,
            streams: all.into_iter().map(stream).collect(),
            findings: Findings::at_most(most),
            compared: Compared::default(),
            live: Judged::default(),
            rebuilt: Judged::default(),
            accepted_now: HashSet::new(),
            dismissed: HashSet::new(),
            refused_now: HashSet::new(),
            excused: HashSet::new(),
            shifts: HashMap::new(),
            unnamed: Vec::new(),
        })
    }

    /// All of it, in this order: what an event brings about follows from the event.
    pub async fn books(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        self.outcomes(sides).await?;
        self.events(sides).await?;
        self.resources(sides).await?;
        self.postings(sides).await?;
        self.balances(sides).await?;
        self.message_chains(sides).await?;
        self.name_them(sides).await
    }

    /// The outcome of every offset, as far as it must be the same in every order.
    pub async fn outcomes(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        let (lineage, spans) = (self.lineage, self.spans);
        for span in spans {
            let stream = lineage.stream(span.partition);
            let offsets = (span.from, span.to);
            walk(sides.live, sides.rebuilt, stream, offsets, |stretch| self.stretch(span.partition, stretch)).await?;
        }
        Ok(())
    }

    fn stretch(&mut self, partition: i32, stretch: Stretch) {
        let times = stretch.length();
        self.live.add(stretch.live, times);
        self.rebuilt.add(stretch.rebuilt, times);
        let id = self.lineage.stream(partition).as_i64();
        let places = (stretch.from..stretch.to).map(|offset| (id, offset));
        let what = match (stretch.live, stretch.rebuilt) {
            (Was::Refused, Was::Accepted) => return self.accepted_now.extend(places),
            (Was::Accepted, Was::Refused) => return self.refused_now.extend(places),
            (Was::NoMessage, Was::Accepted | Was::Refused) => What::Skipped,
            (Was::Accepted | Was::Refused, Was::NoMessage) => What::NoMessage,
            _ => return,
        };
        self.findings.count(what, times - 1);
        if self.findings.is_named(what) {
            let finding = self.at(Finding::default(), id, stretch.from);
            self.findings.name(what, finding);
        }
    }

    async fn events(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        self.dismissed = dismissed(sides.live).await?;
        let mut copies = u64::try_from(self.accepted_now.len()).unwrap_or(u64::MAX);
        merge(rows::known(sides.live), rows::known(sides.rebuilt), |pair| {
            self.compared.events += 1;
            let (what, known, live) = match pair {
                Pair::Both(..) => return,
                Pair::OnlyLive(known) => (self.only_live(&known), known, true),
                Pair::OnlyRebuilt(known) => (self.only_rebuilt(&known), known, false),
            };
            copies = copies.saturating_sub(u64::from(matches!(what, What::AcceptedNow | What::Dismissed)));
            if !matches!(what, What::EventOnlyLive | What::EventOnlyRebuilt) {
                self.excused.insert(known.resource_id);
            }
            if self.findings.is_named(what) {
                self.unnamed.push(Unnamed::Event { what, known, live });
            }
        })
        .await?;
        self.findings.count(What::AcceptedCopy, copies);
        Ok(())
    }

    fn only_live(&self, known: &Known) -> What {
        let read = self.streams.get(&known.stream).and_then(|stream| stream.read);
        match read {
            None => What::Elsewhere,
            Some((from, _)) if known.message_offset < from => What::BeforeLogStart,
            Some(_) if self.refused_now.contains(&(known.stream, known.message_offset)) => What::RefusedNow,
            Some(_) => What::EventOnlyLive,
        }
    }

    fn only_rebuilt(&self, known: &Known) -> What {
        let place = (known.stream, known.message_offset);
        match self.accepted_now.contains(&place) {
            true if self.dismissed.contains(&place) => What::Dismissed,
            true => What::AcceptedNow,
            false => What::EventOnlyRebuilt,
        }
    }

    async fn resources(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        merge(rows::resources(sides.live), rows::resources(sides.rebuilt), |pair| {
            self.compared.resources += 1;
            let (id, live, rebuilt) = match pair {
                Pair::Both(live, rebuilt) if same(&live, &rebuilt) => return,
                Pair::Both(live, rebuilt) => (live.resource_id, Some(live), Some(rebuilt)),
                Pair::OnlyLive(live) => (live.resource_id, Some(live), None),
                Pair::OnlyRebuilt(rebuilt) => (rebuilt.resource_id, None, Some(rebuilt)),
            };
            if self.excused.contains(&id) {
                self.findings.count(What::Follows, 1);
            } else if self.findings.is_named(What::Resource) {
                self.unnamed.push(Unnamed::Resource { live, rebuilt });
            }
        })
        .await?;
        Ok(())
    }

    async fn postings(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        merge(rows::postings(sides.live), rows::postings(sides.rebuilt), |pair| {
            self.compared.postings += 1;
            let (live, rebuilt, PostingSum { resource_id, low, high, .. }) = match pair {
                Pair::Both(live, rebuilt) => (live.amount.0, rebuilt.amount.0, live),
                Pair::OnlyLive(live) => (live.amount.0, 0, live),
                Pair::OnlyRebuilt(rebuilt) => (0, rebuilt.amount.0, rebuilt),
            };
            if live == rebuilt {
                return;
            }
            if self.excused.contains(&resource_id) {
                self.findings.count(What::Follows, 1);
                // Sums of bigints, far from 2^127.
                *self.shifts.entry(low).or_default() += live - rebuilt;
                *self.shifts.entry(high).or_default() -= live - rebuilt;
            } else if self.findings.is_named(What::Postings) {
                self.unnamed.push(Unnamed::Postings { resource: resource_id, accounts: [low, high], live, rebuilt });
            }
        })
        .await?;
        Ok(())
    }

    async fn balances(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        let mut shifts = std::mem::take(&mut self.shifts);
        merge(rows::balances(sides.live), rows::balances(sides.rebuilt), |pair| {
            self.compared.balances += 1;
            let (live, rebuilt, account) = both(pair);
            let shift = shifts.remove(&account.account_id).unwrap_or(0);
            match live - rebuilt {
                0 if shift == 0 => {}
                apart if apart == shift => self.findings.count(What::Follows, 1),
                _ => self.balance(account, live, rebuilt),
            }
        })
        .await?;
        // Nothing on both sides, although the postings have brought them apart.
        for (account_id, _) in shifts.into_iter().filter(|(_, shift)| *shift != 0) {
            let nothing = crate::read::MinorUnits(0);
            self.balance(Balance { account_id, path: None, asset: None, balance: nothing }, 0, 0);
        }
        Ok(())
    }

    fn balance(&mut self, account: Balance, live: i128, rebuilt: i128) {
        if !self.findings.is_named(What::Balance) {
            return;
        }
        let finding = Finding {
            accounts: vec![account.path.unwrap_or_else(|| account.account_id.to_string())],
            asset: account.asset,
            live: Some(live.to_string()),
            rebuilt: Some(rebuilt.to_string()),
            ..Finding::default()
        };
        self.findings.name(What::Balance, finding);
    }

    /// Only where both began at the same offset: a chain says something of all before it.
    async fn message_chains(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        for span in self.spans {
            let stream = self.lineage.stream(span.partition).as_i64();
            let [live, rebuilt] = [chain(sides.live, stream).await?, chain(sides.rebuilt, stream).await?];
            let (Some(live), Some(rebuilt)) = (live, rebuilt) else { continue };
            if live.0 != rebuilt.0 {
                continue;
            }
            self.compared.message_chains += 1;
            if live != rebuilt && self.findings.is_named(What::MessageChain) {
                let text = |(_, next, hash): (i64, i64, String)| Some(format!("{hash} before offset {next}"));
                let finding = Finding { live: text(live), rebuilt: text(rebuilt), ..Finding::default() };
                let finding =
                    Finding { topic: Some(self.lineage.topic.clone()), partition: Some(span.partition), ..finding };
                self.findings.name(What::MessageChain, finding);
            }
        }
        Ok(())
    }

    fn at(&self, finding: Finding, stream: i64, offset: i64) -> Finding {
        let stream = self.streams.get(&stream);
        Finding {
            topic: stream.map(|stream| stream.topic.clone()),
            partition: stream.map(|stream| stream.partition),
            offset: Some(offset),
            ..finding
        }
    }

    async fn name_them(&mut self, sides: &mut Sides<'_>) -> Result<(), ReplayError> {
        for unnamed in std::mem::take(&mut self.unnamed) {
            let (what, finding) = match unnamed {
                Unnamed::Event { what, known, live } => (what, self.event(sides, &known, live).await?),
                Unnamed::Resource { live, rebuilt } => (What::Resource, self.resource(sides, live, rebuilt).await?),
                Unnamed::Postings { resource, accounts, live, rebuilt } => {
                    let finding = self.posting_sum(sides, resource, accounts).await?;
                    let (live, rebuilt) = (Some(live.to_string()), Some(rebuilt.to_string()));
                    (What::Postings, Finding { live, rebuilt, ..finding })
                }
            };
            self.findings.name(what, finding);
        }
        Ok(())
    }

    async fn event(&self, sides: &mut Sides<'_>, known: &Known, live: bool) -> Result<Finding, ReplayError> {
        let side = if live { &mut *sides.live } else { &mut *sides.rebuilt };
        let named: Option<(String, String, Option<String>)> = sqlx::query_as(
            "SELECT kind, path, (SELECT state FROM events WHERE updated_at = $2 AND event_id = $3)
             FROM resources WHERE resource_id = $1",
        )
        .bind(known.resource_id)
        .bind(known.updated_at)
        .bind(&known.event_id)
        .fetch_optional(side)
        .await?;
        let id = <[u8; 32]>::try_from(known.event_id.as_slice()).ok().map(EventId::from_bytes);
        let (kind, path, state) =
            named.map_or((None, None, None), |(kind, path, state)| (Some(kind), Some(path), state));
        let finding = Finding {
            event_id: id.map(|id| id.to_string()),
            type_name: kind.map(|kind| state.map_or_else(|| kind.clone(), |state| format!("{kind}.{state}"))),
            resource: path,
            updated_at: Some(known.updated_at.0.to_string()),
            ..Finding::default()
        };
        Ok(self.at(finding, known.stream, known.message_offset))
    }

    /// By the event whose state it is in.
    async fn resource(
        &self,
        sides: &mut Sides<'_>,
        live: Option<Resource>,
        rebuilt: Option<Resource>,
    ) -> Result<Finding, ReplayError> {
        let text = |one: &Resource| {
            format!("{} of {}, rules version {}, {}", one.state, one.updated_at.0, one.rules_version, one.facts)
        };
        let texts = (live.as_ref().map(text), rebuilt.as_ref().map(text));
        let finding = match (live, rebuilt) {
            (_, Some(one)) => self.standing(sides.rebuilt, &one).await?,
            (Some(one), None) => self.standing(sides.live, &one).await?,
            (None, None) => Finding::default(),
        };
        Ok(Finding { live: texts.0, rebuilt: texts.1, ..finding })
    }

    async fn standing(&self, side: &mut PgConnection, one: &Resource) -> Result<Finding, ReplayError> {
        let id = EventId::new(&one.kind, &one.state, &one.path, one.updated_at.0);
        let place: Option<(i64, i64)> =
            sqlx::query_as("SELECT stream, message_offset FROM events WHERE updated_at = $1 AND event_id = $2")
                .bind(one.updated_at)
                .bind(id.as_bytes().as_slice())
                .fetch_optional(side)
                .await?;
        let finding = Finding {
            event_id: Some(id.to_string()),
            type_name: Some(format!("{}.{}", one.kind, one.state)),
            resource: Some(one.path.clone()),
            updated_at: Some(one.updated_at.0.to_string()),
            ..Finding::default()
        };
        Ok(place.map_or_else(|| finding.clone(), |(stream, offset)| self.at(finding.clone(), stream, offset)))
    }

    async fn posting_sum(
        &self,
        sides: &mut Sides<'_>,
        resource: Uuid,
        accounts: [Uuid; 2],
    ) -> Result<Finding, ReplayError> {
        let mut finding = Finding::default();
        for side in [&mut *sides.live, &mut *sides.rebuilt] {
            let found: Option<Resource> = sqlx::query_as(
                "SELECT resource_id, kind, path, state, updated_at, rules_version, facts::text AS facts
                 FROM resources WHERE resource_id = $1",
            )
            .bind(resource)
            .fetch_optional(&mut *side)
            .await?;
            if let Some(found) = found {
                finding = self.standing(&mut *side, &found).await?;
            }
            for (nth, id) in accounts.iter().enumerate() {
                let found: Option<(String, String)> =
                    sqlx::query_as("SELECT path, asset FROM accounts WHERE account_id = $1")
                        .bind(id)
                        .fetch_optional(&mut *side)
                        .await?;
                finding.accounts.resize(2, String::new());
                if let Some((path, asset)) = found {
                    (finding.accounts[nth], finding.asset) = (path, Some(asset));
                }
            }
        }
        Ok(finding)
    }
}

/// Every account that holds something else on the other side.
pub async fn balances_apart(sides: &mut Sides<'_>) -> Result<Vec<(Balance, i128, i128)>, ReplayError> {
    let mut apart = Vec::new();
    merge(rows::balances(sides.live), rows::balances(sides.rebuilt), |pair| {
        let (live, rebuilt, account) = both(pair);
        if live != rebuilt {
            apart.push((account, live, rebuilt));
        }
    })
    .await?;
    apart.sort_by(|(one, ..), (other, ..)| (&one.path, &one.asset).cmp(&(&other.path, &other.asset)));
    Ok(apart)
}

fn both(pair: Pair<Balance>) -> (i128, i128, Balance) {
    match pair {
        Pair::Both(live, rebuilt) => (live.balance.0, rebuilt.balance.0, live),
        Pair::OnlyLive(live) => (live.balance.0, 0, live),
        Pair::OnlyRebuilt(rebuilt) => (0, rebuilt.balance.0, rebuilt),
    }
}

async fn dismissed(live: &mut PgConnection) -> Result<HashSet<(i64, i64)>, sqlx::Error> {
    let places: Vec<(i64, i64)> = sqlx::query_as(
        "SELECT first_stream, first_offset FROM quarantine WHERE closed_at IS NOT NULL AND closed_stream IS NULL
         UNION SELECT last_stream, last_offset FROM quarantine WHERE closed_at IS NOT NULL AND closed_stream IS NULL",
    )
    .fetch_all(live)
    .await?;
    Ok(places.into_iter().collect())
}

/// The revision counts the steps, and they may differ.
fn same(live: &Resource, rebuilt: &Resource) -> bool {
    (&live.kind, &live.path, &live.state, live.updated_at, live.rules_version, &live.facts)
        == (&rebuilt.kind, &rebuilt.path, &rebuilt.state, rebuilt.updated_at, rebuilt.rules_version, &rebuilt.facts)
}

async fn chain(connection: &mut PgConnection, stream: i64) -> Result<Option<(i64, i64, String)>, sqlx::Error> {
    let sql = "SELECT first_offset, next_offset, encode(message_chain, 'hex') FROM streams WHERE stream = $1";
    sqlx::query_as(sql).bind(stream).fetch_optional(connection).await
}
