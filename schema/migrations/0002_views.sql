-- What people and tools may rely on: a stable interface over the tables.
-- Outer joins: a row that has lost its partner shows with gaps, and is not hidden.

-- Each posting twice: debits are positive, credits negative, in minor units.
CREATE VIEW entries AS
WITH sides AS (
    SELECT stream, message_offset, line, effective_at, debit AS account_id, amount FROM postings
    UNION ALL
    SELECT stream, message_offset, line, effective_at, credit, -amount FROM postings
)
SELECT s.stream || '/' || s.message_offset || '/' || s.line AS posting_id,
       a.path AS account,
       a.asset,
       s.amount,
       'evt_' || encode(e.event_id, 'hex') AS event_id,
       r.kind,
       r.path AS resource,
       s.effective_at,
       b.recorded_at
FROM sides s
LEFT JOIN accounts a USING (account_id)
-- A conflict that won has its dedup row in conflicts. LATERAL: the key's first
-- column finds the row; there is no index on (stream, message_offset) alone.
LEFT JOIN LATERAL (
    SELECT event_id, resource_id FROM events
    WHERE updated_at = s.effective_at AND stream = s.stream AND message_offset = s.message_offset
    UNION ALL
    SELECT event_id, resource_id FROM conflicts
    WHERE stream = s.stream AND message_offset = s.message_offset
) e ON true
LEFT JOIN resources r ON r.resource_id = e.resource_id
LEFT JOIN LATERAL (
    SELECT recorded_at FROM batches
    WHERE stream = s.stream AND from_offset <= s.message_offset
    ORDER BY from_offset DESC LIMIT 1
) b ON true;

CREATE VIEW account_balances AS
SELECT a.path AS account, a.asset, b.debits, b.credits, b.debits - b.credits AS balance
FROM balances b LEFT JOIN accounts a USING (account_id);

CREATE VIEW trial_balance AS
SELECT a.asset, sum(b.debits) AS debits, sum(b.credits) AS credits, sum(b.debits) - sum(b.credits) AS difference
FROM balances b LEFT JOIN accounts a USING (account_id)
GROUP BY a.asset;

CREATE VIEW stream_positions AS
SELECT topic, partition, next_offset, epoch, cluster_id, topic_id, stream FROM streams;

CREATE VIEW quarantine_open AS
SELECT q.code, q.place, q.reason, s.topic, s.partition, q.first_offset AS message_offset, q.times_seen,
       q.message_time, q.first_seen, q.last_seen, q.key, q.value, q.headers
FROM quarantine q JOIN streams s ON s.stream = q.first_stream
WHERE q.closed_at IS NULL;

CREATE VIEW incidents_open AS
SELECT i.code, r.kind, r.path AS resource, i.updated_at, 'evt_' || encode(i.event_id, 'hex') AS event_id,
       i.detail, s.topic, s.partition, i.message_offset, i.opened_at
FROM incidents i JOIN resources r USING (resource_id) JOIN streams s USING (stream)
WHERE i.closed_at IS NULL;
