//! Offsets that count as lost: somebody must have accepted each such range, by name.

use super::VerifyError;
use super::report::{Check, Finding, Findings, Gap};
use crate::read::When;
use sqlx::postgres::PgConnection;
use std::collections::HashMap;

/// Stream, first offset, next offset, person, microseconds.
type Action = (i64, i64, i64, String, When);

/// Puts the names to the gaps. The consumer writes both in one transaction: lost offsets
/// that nobody has accepted are messages that somebody has hidden.
pub async fn accepted(
    connection: &mut PgConnection,
    gaps: &mut [Gap],
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    if gaps.is_empty() {
        return Ok(());
    }
    let actions: Vec<Action> = sqlx::query_as(
        "SELECT stream, from_offset, next_offset, person, (extract(epoch FROM acted_at) * 1000000)::bigint
         FROM actions WHERE action = 'accept_gap' AND stream = ANY($1)",
    )
    .bind(gaps.iter().map(|gap| gap.stream).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    let actions: HashMap<(i64, i64, i64), (String, When)> =
        actions.into_iter().map(|(stream, from, next, person, at)| ((stream, from, next), (person, at))).collect();
    for gap in gaps {
        match actions.get(&(gap.stream, gap.from_offset, gap.next_offset)) {
            Some((person, at)) => (gap.accepted_by, gap.accepted_at) = (Some(person.clone()), Some(*at)),
            None => {
                let last = gap.next_offset.saturating_sub(1);
                let what = format!("offsets {} to {last} count as lost, but nobody has accepted it", gap.from_offset);
                findings.add(Check::Offsets, Finding::new(what).at(gap.stream, gap.from_offset));
            }
        }
    }
    Ok(())
}
