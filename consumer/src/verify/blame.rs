//! Where a sum was wrong: which resource, which event, which offset. Only what lies in
//! the buckets that differ is read again, so a right ledger never comes here.

use super::VerifyError;
use super::copy::copy_out;
use super::report::{Check, Finding, Findings, LISTED};
use super::resources::{Resource, Resources, in_buckets};
use super::snapshot::Stream;
use super::sums::{BUCKETS, Sums};
use super::suspects::{STRANGE_STATE, Suspects, any_of};
use postonce_schema::{ResourceId, Rules};
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap};
use uuid::Uuid;

/// So many buckets are looked into: one is enough to begin with.
const MOST_BUCKETS: usize = 16;
/// Resources whose events are followed at a time.
const FOLLOWED: usize = 100_000;
/// Buckets read at a time where any may hold the resource.
const STRIDE: usize = 256;

/// Names the resources behind the sums that differ.
pub async fn resources(
    connection: &mut PgConnection,
    rules: &Rules,
    sums: &Sums,
    resources: &Resources,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let buckets: Vec<usize> = sums.wrong_buckets().map(|(bucket, _)| bucket).collect();
    let broken = circles(connection, rules, resources).await?;
    let wrong = buckets.iter().take(MOST_BUCKETS).map(|bucket| in_buckets("resource_id", &(*bucket..bucket + 1)));
    let wrong: Vec<String> = wrong.chain((!broken.is_empty()).then(|| any_of(&broken))).collect();
    if !wrong.is_empty() {
        let mut suspects = Suspects::default();
        suspects.read(connection, rules, &format!("({})", wrong.join(" OR "))).await?;
        suspects.read_postings(connection).await?;
        suspects.judge(findings);
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

/// Resources whose events, followed from the state on, are not all: the others may be a
/// circle by themselves, which the sums do not show.
async fn circles(
    connection: &mut PgConnection,
    rules: &Rules,
    resources: &Resources,
) -> Result<Vec<ResourceId>, VerifyError> {
    let ids: Vec<ResourceId> = resources.circular.iter().copied().collect();
    let mut broken = Vec::new();
    for ids in ids.chunks(FOLLOWED) {
        let mut suspects = Suspects::default();
        broken.append(&mut suspects.follow(connection, rules, ids).await?);
        // Of a contested one its revision does not say how many changes there must be; the
        // pass over all events has counted them.
        let contested = ids.iter().filter_map(|id| Some((*id, resources.contested.get(id)?.changes)));
        let saw = |id| move |stream, offset| resources.saw(id, stream, offset);
        broken.extend(contested.filter(|(id, all)| suspects.changes(*id, saw(*id)) != *all).map(|(id, _)| id));
    }
    Ok(broken)
}

/// Resources whose state was wanted and never seen among the events.
async fn states_without_event(
    connection: &mut PgConnection,
    rules: &Rules,
    resources: &Resources,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let mut named = 0;
    let what = STRANGE_STATE;
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
    let resources = findings.listed().filter_map(|finding| Some((finding.resource_id?, finding.at.is_some())));
    let resources: Vec<(Uuid, bool)> =
        resources.map(|(id, has_place)| (Uuid::from_bytes(*id.as_bytes()), has_place)).collect();
    let nowhere: Vec<Uuid> = resources.iter().filter(|(_, has_place)| !has_place).map(|(id, _)| *id).collect();
    let resources: Vec<Uuid> = resources.into_iter().map(|(id, _)| id).collect();
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
            .bind(resources)
            .fetch_all(&mut *connection)
            .await?
            .into_iter()
            .collect();
    let mut places = last_places(connection, &nowhere).await?;
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

/// Where the last event of each resource stands. It reads all events, once: where
/// something is wrong, the way to them may be.
async fn last_places(
    connection: &mut PgConnection,
    resources: &[Uuid],
) -> Result<HashMap<Uuid, (i64, i64)>, VerifyError> {
    if resources.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<(Uuid, i64, i64)> = sqlx::query_as(
        "SELECT DISTINCT ON (resource_id) resource_id, stream, message_offset FROM events
         WHERE resource_id = ANY($1) ORDER BY resource_id, updated_at DESC",
    )
    .bind(resources.iter().take(LISTED).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|(id, stream, offset)| (id, (stream, offset))).collect())
}
