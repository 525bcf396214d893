//! Every event of a resource. No index leads there: `resources` says when the state was,
//! each event that became the state says when the one before it was, and at a given time
//! the event has one of the ids that its kind's states give.

use crate::error::DatabaseError;
use sqlx::postgres::PgConnection;

/// The SELECT of these columns of `events`, for the resources of this condition on
/// `resource_id`. Run [`look_up_only`] before it.
pub(crate) fn events_of(columns: &str, resources: &str) -> String {
    // UNION, not UNION ALL: two states of one time are found together, and the second leads
    // to that time once more. With ALL that is an endless circle.
    let (last, before) = (at("r", "updated_at"), at("c", "previous_at"));
    format!(
        "WITH RECURSIVE kinds AS MATERIALIZED (
             SELECT split_part(type, '.', 1) AS kind, array_agg(DISTINCT type) AS types
             FROM rules, regexp_matches(definition, '^state ([^ ]+) ', 'gn') AS line, unnest(line) AS type GROUP BY 1
         ), changes AS (
             SELECT r.kind, r.path, e.* FROM (SELECT * FROM resources WHERE {resources}) r {last}
             UNION
             SELECT c.kind, c.path, e.* FROM (SELECT * FROM changes WHERE previous_at IS NOT NULL) c {before}
         )
         SELECT {columns} FROM changes
         UNION ALL
         SELECT {columns} FROM events WHERE outcome = 'S' AND {resources}"
    )
}

/// The events of a resource at a time that became its state. By their ids, for a time
/// alone may be that of a million events: of a day, where upstream counts in days. LATERAL
/// with OFFSET 0: one look at the key for each id; as a plain join the planner may read all
/// events of the time and compare the ids afterwards.
fn at(resource: &str, time: &str) -> String {
    format!(
        "JOIN kinds k ON k.kind = {resource}.kind
         CROSS JOIN LATERAL (
             SELECT concat(E'\\n', {resource}.path, E'\\n',
                           to_char({resource}.{time} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')) AS rest OFFSET 0
         ) preimage
         CROSS JOIN unnest(k.types) AS s (type)
         CROSS JOIN LATERAL (
             SELECT * FROM events
             WHERE updated_at = {resource}.{time}
               AND event_id = sha256(convert_to(concat(E'postonce:v1\\n', s.type, preimage.rest), 'UTF8'))
               AND outcome <> 'S' OFFSET 0
         ) e"
    )
}

/// For the rest of the transaction, plans do not depend on statistics: without them the
/// planner would read a table whole that it takes for a small one.
pub(crate) async fn look_up_only(connection: &mut PgConnection) -> Result<(), DatabaseError> {
    let plans = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";
    sqlx::raw_sql(plans).execute(connection).await?;
    Ok(())
}
