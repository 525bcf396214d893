//! What a verification leaves in the database: that it was, how far it looked, and, where
//! all was well, the balances to go on from.

use super::VerifyError;
use super::report::Report;
use super::sums::Sums;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

/// Writes the run down, in one transaction. If this role may not: what Postgres says.
pub async fn record(
    connection: &mut PgConnection,
    report: &Report,
    (sums, quarantined): (&Sums, i128),
) -> Result<Option<String>, VerifyError> {
    let Err(error) = write(connection, report, (sums, quarantined)).await else { return Ok(None) };
    match error.as_database_error() {
        // insufficient_privilege, read_only_sql_transaction: an auditor's role, a standby.
        Some(refused) if matches!(refused.code().as_deref(), Some("42501" | "25006")) => {
            Ok(Some(refused.message().to_owned()))
        }
        _ => Err(error.into()),
    }
}

async fn write(
    connection: &mut PgConnection,
    report: &Report,
    (sums, quarantined): (&Sums, i128),
) -> Result<(), sqlx::Error> {
    let id = report.verification_id;
    let mut transaction = connection.begin().await?;
    // Two runs that end together would both put their balances in the place of the last.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('postonce verify ' || current_schema(), 0))")
        .execute(&mut *transaction)
        .await?;
    sqlx::query(
        "INSERT INTO verifications (verification_id, started_at, deep, since_last, findings, quarantined)
         VALUES ($1, $2::text::timestamptz, $3, $4, $5, $6::text::numeric)",
    )
    .bind(id)
    .bind(report.started_at.to_string())
    .bind(report.deep)
    .bind(report.since.is_some())
    .bind(i64::try_from(report.findings).unwrap_or(i64::MAX))
    .bind(quarantined.to_string())
    .execute(&mut *transaction)
    .await?;
    let streams = &report.streams;
    sqlx::query(
        "INSERT INTO verified_streams (verification_id, stream, next_offset, batch_seq, message_chain, batch_chain,
                                       deep)
         SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[], $7::boolean[])",
    )
    .bind(id)
    .bind(streams.iter().map(|stream| stream.stream).collect::<Vec<_>>())
    .bind(streams.iter().map(|stream| stream.next_offset).collect::<Vec<_>>())
    .bind(streams.iter().map(|stream| stream.batches).collect::<Vec<_>>())
    .bind(streams.iter().map(|stream| stream.message_chain.as_slice()).collect::<Vec<_>>())
    .bind(streams.iter().map(|stream| stream.batch_chain.as_slice()).collect::<Vec<_>>())
    .bind(streams.iter().map(|stream| stream.deep).collect::<Vec<_>>())
    .execute(&mut *transaction)
    .await?;
    if report.findings == 0 {
        replace_balances(&mut transaction, id, sums).await?;
    }
    transaction.commit().await
}

async fn replace_balances(connection: &mut PgConnection, id: Uuid, sums: &Sums) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM verified_balances").execute(&mut *connection).await?;
    let (mut accounts, mut debits, mut credits) = (Vec::new(), Vec::new(), Vec::new());
    for (account, of) in sums.accounts() {
        let Some((debit, credit)) = of.balance else { continue };
        accounts.push(Uuid::from_bytes(*account.as_bytes()));
        debits.push(debit.to_string());
        credits.push(credit.to_string());
    }
    sqlx::query(
        "INSERT INTO verified_balances (account_id, verification_id, debits, credits)
         SELECT account_id, $1, debits::numeric, credits::numeric
         FROM unnest($2::uuid[], $3::text[], $4::text[]) AS n (account_id, debits, credits)",
    )
    .bind(id)
    .bind(accounts)
    .bind(debits)
    .bind(credits)
    .execute(connection)
    .await?;
    Ok(())
}
