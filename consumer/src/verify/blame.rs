//! Where a sum was wrong: which resource, which event, which offset. Only what lies in
//! the buckets that differ is read again, so a right ledger never comes here.

use super::VerifyError;
use super::copy::copy_out;
use super::report::{Check, Finding, Findings, LISTED};
use super::resources::{Resource, Resources, in_buckets};
use super::snapshot::{Cut, Stream};
use super::sums::{BUCKETS, Sums};
use super::tables::{Read, Scan, Table, posting};
use crate::read::snapshot;
use postonce_schema::{AccountId, EventId, ResourceId, Rules};
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap};
use uuid::Uuid;

/// So many buckets are looked into: one is enough to begin with.
const MOST_BUCKETS: usize = 16;
/// Buckets read at a time where any may hold the resource.
const STRIDE: usize = 256;
/// So many of a resource's events are named.
const MOST_EVENTS: usize = 5;

/// A resource of a wrong bucket, with both of its sides.
#[derive(Default)]
struct Suspect {
    name: Option<String>,
    revision: i64,
    changes: i64,
    conflicts: i64,
    /// What it holds by its facts, and what its postings have moved, for each account.
    accounts: BTreeMap<AccountId, (i128, i128)>,
    events: Vec<(i64, i64, EventId)>,
}

/// Names the resources behind the sums that differ.
pub async fn resources(
    connection: &mut PgConnection,
    rules: &Rules,
    sums: &Sums,
    resources: &Resources,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let buckets: Vec<usize> = sums.wrong_buckets().map(|(bucket, _)| bucket).collect();
    for suspects in [look_into(connection, rules, &buckets).await?] {
        judge(suspects, findings);
    }
    if buckets.len() > MOST_BUCKETS {
        let what = format!(
            "resources in {} of {BUCKETS} parts of the ledger differ; those of the first {MOST_BUCKETS} are named",
            buckets.len()
        );
        findings.add(Check::Positions, Finding::new(what));
    }
    if resources.wanted.left() > 0 {
        states_without_event(connection, rules, resources, findings).await?;
    }
    Ok(())
}

async fn look_into(
    connection: &mut PgConnection,
    rules: &Rules,
    buckets: &[usize],
) -> Result<HashMap<ResourceId, Suspect>, VerifyError> {
    let mut suspects: HashMap<ResourceId, Suspect> = HashMap::new();
    if buckets.is_empty() {
        return Ok(suspects);
    }
    let mut places: HashMap<(i64, i64), ResourceId> = HashMap::new();
    for bucket in buckets.iter().take(MOST_BUCKETS) {
        let condition = in_buckets("resource_id", &(*bucket..bucket + 1));
        let mut snapshot = snapshot(connection).await?;
        let cut = Cut::read(&mut snapshot).await?;
        let select = format!("{} WHERE {condition}", Resource::COLUMNS);
        copy_out(&mut snapshot, &select, |mut row| {
            let resource = Resource::read(&mut row)?;
            let suspect = suspects.entry(resource.id).or_default();
            (suspect.name, suspect.revision) = (Some(resource.name()), resource.revision);
            // A state that cannot be read has its own finding.
            for posting in resource.state(rules).map(|state| state.position).unwrap_or_default() {
                suspect.accounts.entry(posting.debit.id).or_default().0 += i128::from(posting.amount);
                suspect.accounts.entry(posting.credit.id).or_default().0 -= i128::from(posting.amount);
            }
            Ok::<(), VerifyError>(())
        })
        .await?;
        for table in [Table::Events, Table::Conflicts] {
            copy_out(&mut snapshot, &format!("{} WHERE {condition}", table.select()), |mut row| {
                let Read::Event(stream, event) = table.read(&mut row)? else { return Ok(()) };
                let suspect = suspects.entry(event.resource).or_default();
                if cut.covers(stream, event.offset) {
                    places.insert((stream, event.offset), event.resource);
                    suspect.changes += i64::from(matches!(event.outcome, b'P' | b'N'));
                    suspect.conflicts += i64::from(event.outcome == b'C');
                    suspect.events.push((stream, event.offset, event.id));
                }
                Ok::<(), VerifyError>(())
            })
            .await?;
        }
        snapshot.commit().await?;
    }
    let mut scan = Scan::whole(connection, Table::Postings).await?;
    while let Some(select) = scan.next_select() {
        copy_out(connection, &select, |mut row| {
            let (stream, posting) = posting(&mut row)?;
            let resource = places.get(&(stream, posting.offset)).and_then(|id| suspects.get_mut(id));
            if let Some(suspect) = resource {
                let amount = i128::from(posting.amount);
                let debit = &mut suspect.accounts.entry(posting.debit).or_default().1;
                *debit = debit.wrapping_add(amount);
                let credit = &mut suspect.accounts.entry(posting.credit).or_default().1;
                *credit = credit.wrapping_sub(amount);
            }
            Ok::<(), VerifyError>(())
        })
        .await?;
    }
    Ok(suspects)
}

fn judge(suspects: HashMap<ResourceId, Suspect>, findings: &mut Findings) {
    let mut suspects: Vec<(ResourceId, Suspect)> = suspects.into_iter().collect();
    suspects.sort_unstable_by_key(|(id, _)| *id);
    for (id, suspect) in suspects {
        let named = |what: String| {
            let mut finding = Finding::new(what).resource(id);
            finding.resource.clone_from(&suspect.name);
            if let Some((stream, offset, event)) = suspect.events.last() {
                finding = finding.at(*stream, *offset).event(*event);
            }
            finding
        };
        for (account, (held, posted)) in suspect.accounts.iter().filter(|(_, (held, posted))| held != posted) {
            let what = format!("the resource holds by its facts what its postings have not moved{}", of(&suspect));
            findings.add(Check::Positions, named(what).account(*account).instead(held, posted));
        }
        if suspect.name.is_none() && !suspect.events.is_empty() {
            findings.add(Check::Resources, named("the resource's row is gone; it has events".to_owned()));
        } else if !(0..=suspect.conflicts).contains(&(suspect.revision - suspect.changes)) {
            let what = "the resource's revision is not the number of its changes".to_owned();
            findings.add(Check::Resources, named(what).instead(suspect.changes, suspect.revision));
        }
    }
}

/// The resource's events, for a person to look at.
fn of(suspect: &Suspect) -> String {
    let mut text = String::new();
    for (stream, offset, event) in suspect.events.iter().rev().take(MOST_EVENTS) {
        let separator = if text.is_empty() { "; its events: " } else { ", " };
        text.push_str(&format!("{separator}{event} at offset {offset} of stream {stream}"));
    }
    text
}

/// Resources whose state was wanted and never seen among the events.
async fn states_without_event(
    connection: &mut PgConnection,
    rules: &Rules,
    resources: &Resources,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let mut named = 0;
    let what = "the resource is in a state that none of its events has brought with this content: its row was \
                edited, or that of the event";
    for first in (0..BUCKETS).step_by(STRIDE) {
        let select = format!("{} WHERE {}", Resource::COLUMNS, in_buckets("resource_id", &(first..first + STRIDE)));
        copy_out(connection, &select, |mut row| {
            let resource = Resource::read(&mut row)?;
            if let Ok(state) = resource.state(rules)
                && resources.wanted.wants(&state)
            {
                named += 1;
                let finding = Finding::new(what).resource(resource.id).event(state.event);
                findings.add(Check::Events, Finding { resource: Some(resource.name()), ..finding });
            }
            Ok::<(), VerifyError>(())
        })
        .await?;
    }
    for _ in named..resources.wanted.left() {
        let what = format!("{what}; it has changed since, so it cannot be named");
        findings.add(Check::Events, Finding::new(what));
    }
    Ok(())
}

/// Puts names to the ids of all findings that are listed.
pub async fn name(
    connection: &mut PgConnection,
    streams: &BTreeMap<i64, Stream>,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let accounts: Vec<Uuid> =
        findings.listed().filter_map(|finding| finding.account_id).map(|id| Uuid::from_bytes(*id.as_bytes())).collect();
    let resources: Vec<Uuid> = findings
        .listed()
        .filter_map(|finding| finding.resource_id)
        .map(|id| Uuid::from_bytes(*id.as_bytes()))
        .collect();
    if findings.count() == 0 {
        return Ok(());
    }
    let accounts: HashMap<Uuid, (String, String)> =
        sqlx::query_as("SELECT account_id, path, asset FROM accounts WHERE account_id = ANY($1)")
            .bind(accounts)
            .fetch_all(&mut *connection)
            .await?
            .into_iter()
            .map(|(id, path, asset)| (id, (path, asset)))
            .collect();
    let names: HashMap<Uuid, String> =
        sqlx::query_as("SELECT resource_id, kind || ' ' || path FROM resources WHERE resource_id = ANY($1)")
            .bind(&resources)
            .fetch_all(&mut *connection)
            .await?
            .into_iter()
            .collect();
    let mut places = last_places(connection, &resources).await?;
    for finding in findings.listed() {
        if let Some(id) = finding.account_id.map(|id| Uuid::from_bytes(*id.as_bytes())) {
            let named = accounts.get(&id).cloned();
            let (account, asset) = named.map_or((id.to_string(), None), |(path, asset)| (path, Some(asset)));
            finding.account.get_or_insert(account);
            finding.asset = finding.asset.take().or(asset);
        }
        if let Some(id) = finding.resource_id.map(|id| Uuid::from_bytes(*id.as_bytes())) {
            finding.resource.get_or_insert_with(|| names.get(&id).cloned().unwrap_or_else(|| id.to_string()));
            finding.at = finding.at.or_else(|| places.remove(&id));
        }
        if let Some((stream, offset)) = finding.at {
            let known = streams.get(&stream);
            finding.topic = Some(known.map_or_else(|| format!("stream {stream}"), |stream| stream.topic.clone()));
            finding.partition = known.map(|stream| stream.partition);
            finding.offset = Some(offset);
        }
    }
    Ok(())
}

/// Where the last event of each resource stands.
async fn last_places(
    connection: &mut PgConnection,
    resources: &[Uuid],
) -> Result<HashMap<Uuid, (i64, i64)>, VerifyError> {
    let rows: Vec<(Uuid, i64, i64)> = sqlx::query_as(
        "SELECT DISTINCT ON (resource_id) resource_id, stream, message_offset FROM events
         WHERE resource_id = ANY($1) ORDER BY resource_id, updated_at DESC",
    )
    .bind(resources.iter().take(LISTED).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|(id, stream, offset)| (id, (stream, offset))).collect())
}
