//! What all resources hold, computed anew: for each its position in the state and
//! with the facts that the ledger keeps. Because differences telescope, the sum must
//! be the net balance of every account, whatever the way there was.

use anyhow::{Context, Result};
use postonce_schema::{AccountId, Facts, Position, Rules};
use sqlx::postgres::PgConnection;
use std::collections::HashMap;
use uuid::Uuid;

/// Resources read at a time.
const PAGE: i64 = 10_000;

type Row = (Uuid, String, String, i32, String);

/// The net amount (debits − credits) of every account. Accounts that come to zero
/// may be absent.
pub async fn net_amounts(connection: &mut PgConnection, rules: &Rules) -> Result<HashMap<AccountId, i128>> {
    let mut net = HashMap::new();
    let mut after: Option<Uuid> = None;
    loop {
        let page: Vec<Row> = sqlx::query_as(
            "SELECT resource_id, kind, state, rules_version, facts::text FROM resources
             WHERE $1::uuid IS NULL OR resource_id > $1 ORDER BY resource_id LIMIT $2",
        )
        .bind(after)
        .bind(PAGE)
        .fetch_all(&mut *connection)
        .await?;
        let Some((last, ..)) = page.last() else {
            return Ok(net);
        };
        after = Some(*last);
        for row in &page {
            add(rules, row, &mut net).with_context(|| format!("resource {}", row.0))?;
        }
    }
}

fn add(rules: &Rules, (_, kind, state, version, facts): &Row, net: &mut HashMap<AccountId, i128>) -> Result<()> {
    let version = rules.version(*version).with_context(|| format!("the rules have no version {version}"))?;
    let kind = version.kind(kind).with_context(|| format!("the rules have no kind {kind}"))?;
    let state = kind.state(state).with_context(|| format!("kind {} has no state {state}", kind.name))?;
    let facts = Facts::from_json(kind, facts)?;
    for posting in Position::of(state, &facts).minus(Position::default()) {
        *net.entry(posting.debit.id).or_default() += i128::from(posting.amount);
        *net.entry(posting.credit.id).or_default() -= i128::from(posting.amount);
    }
    Ok(())
}
