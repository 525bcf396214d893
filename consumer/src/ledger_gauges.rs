//! What the whole ledger says of itself: gauges of the database, which every process shows
//! alike.

use crate::database::Database;
use crate::metrics::Metrics;
use sqlx::PgConnection;
use std::time::Duration;

/// How often the database is asked.
const ASK_EVERY: Duration = Duration::from_secs(15);

/// What was asked at once.
struct Answers {
    /// By code, closed ones too: a code that has ever been seen stays, be it at 0.
    quarantine: Vec<(String, i64)>,
    incidents: Vec<(String, i64)>,
    /// Findings of the last verification, and when it ended, in seconds since 1970.
    verified: Option<(i64, i64)>,
    /// All bytes of WAL that the server has written since its statistics begin.
    wal_bytes: i64,
}

/// Asks until the process ends.
pub async fn watch(database: &Database, metrics: &Metrics) {
    let mut wal_bytes = 0;
    loop {
        if let Ok(mut connection) = database.connect().await {
            // A connection that has fallen silent would keep the gauges as they are for ever.
            while let Ok(Ok(answers)) = tokio::time::timeout(ASK_EVERY, ask(&mut connection)).await {
                show(metrics, &answers, &mut wal_bytes);
                tokio::time::sleep(ASK_EVERY).await;
            }
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

async fn ask(connection: &mut PgConnection) -> Result<Answers, sqlx::Error> {
    let quarantine = "SELECT code, count(*) FILTER (WHERE closed_at IS NULL) FROM quarantine GROUP BY code";
    let incidents = "SELECT code, count(*) FILTER (WHERE closed_at IS NULL) FROM incidents GROUP BY code";
    let verified = "SELECT findings, extract(epoch FROM finished_at)::bigint FROM verifications
                    ORDER BY finished_at DESC LIMIT 1";
    Ok(Answers {
        quarantine: sqlx::query_as(quarantine).fetch_all(&mut *connection).await?,
        incidents: sqlx::query_as(incidents).fetch_all(&mut *connection).await?,
        verified: sqlx::query_as(verified).fetch_optional(&mut *connection).await?,
        wal_bytes: sqlx::query_scalar("SELECT wal_bytes::bigint FROM pg_stat_wal").fetch_one(connection).await?,
    })
}

fn show(metrics: &Metrics, answers: &Answers, wal_bytes: &mut i64) {
    for (code, open) in &answers.quarantine {
        metrics.quarantine_open.with_label_values(&[code]).set(*open);
    }
    for (code, open) in &answers.incidents {
        metrics.incidents_open.with_label_values(&[code]).set(*open);
    }
    if let Some((findings, finished)) = answers.verified {
        metrics.verify_findings.with_label_values::<&str>(&[]).set(findings);
        metrics.verify_finished.with_label_values::<&str>(&[]).set(finished);
    }
    if answers.wal_bytes < *wal_bytes {
        // Another server, or its statistics were reset: it counts anew.
        metrics.wal_bytes.reset();
        *wal_bytes = 0;
    }
    metrics.wal_bytes.inc_by(u64::try_from(answers.wal_bytes.saturating_sub(*wal_bytes)).unwrap_or_default());
    *wal_bytes = answers.wal_bytes;
}
