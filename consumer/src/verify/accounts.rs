//! The rows by which the postings of an account are found, against those that follow from
//! the postings themselves: by a sum for each account, for the rows have no order.

use super::VerifyError;
use super::copy::Row;
use super::report::{Check, Findings};
use super::snapshot::Stream;
use super::sums::Sums;
use super::tables::Scan;
use crate::account_postings::AccountPostings;
use postonce_schema::AccountId;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;

const TABLE: &str = "account_postings";
const COLUMNS: &str = "account_id, last_effective_at, stream, base_offset, offsets";

/// All of them.
pub async fn whole(connection: &mut PgConnection) -> Result<Scan, VerifyError> {
    Scan::whole(connection, TABLE, COLUMNS).await
}

/// Only those of these ranges of offsets.
pub fn offsets(conditions: Vec<String>) -> Scan {
    Scan::offsets(TABLE, COLUMNS, conditions)
}

/// Adds the rows up, as far as the streams had come. What stands behind that belongs to
/// batches that have come since.
pub async fn read(
    connection: &mut PgConnection,
    mut scan: Scan,
    streams: &BTreeMap<i64, Stream>,
    sums: &mut Sums,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let mut rows = 0u64;
    while !scan.is_done() {
        scan.read(connection, |mut row| {
            let row = account_postings(&mut row)?;
            if streams.get(&row.stream).is_none_or(|stream| row.base_offset < stream.next_offset) {
                sums.found_row(&row);
                rows += 1;
            }
            Ok(())
        })
        .await?;
    }
    findings.compared(Check::AccountPostings, rows);
    scan.finish(connection).await
}

fn account_postings(row: &mut Row<'_>) -> Result<AccountPostings, VerifyError> {
    Ok(AccountPostings {
        account: AccountId::from_bytes(row.array()?),
        last_effective_at: row.time()?,
        stream: row.i64()?,
        base_offset: row.i64()?,
        offsets: row.integers()?,
    })
}
