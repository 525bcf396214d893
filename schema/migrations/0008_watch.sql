-- What Grafana's dashboard of the ledger asks (grafana/dashboards/ledger.json), and whoever
-- else reads without the right to the tables. Views run with their owner's rights; the
-- functions that read tables say so themselves (SECURITY DEFINER), with a search_path that
-- nobody can put a table of his own in front of: pg_temp, where anybody may, comes last.
--
-- None of these has a payload's bytes. Each says what it reads, for a panel asks again and
-- again, on a ledger of any size.

-- "Is money posted?", from the ledger itself: the last commit of each stream. Reads one row
-- of batches for each stream, by its key.
CREATE VIEW stream_commits AS
SELECT s.topic, s.partition, s.next_offset, s.batch_seq, b.recorded_at AS last_commit, s.epoch, c.claimed_at
FROM streams s
LEFT JOIN batches b ON b.stream = s.stream AND b.seq = s.batch_seq
LEFT JOIN claims c ON c.stream = s.stream AND c.epoch = s.epoch
WHERE NOT s.replay;

-- What was refused and waits for a person. `message` is the name that `postonce quarantine
-- show` takes. The newest come by quarantine_first_seen, backwards: ORDER BY first_seen DESC
-- LIMIT n reads n rows, and those that are closed between them.
CREATE VIEW quarantine_cases AS
SELECT q.code, q.place, q.reason, left(encode(q.message_hash, 'hex'), 12) AS message,
       coalesce(s.topic || '/' || s.partition, q.first_stream::text) || '/' || q.first_offset AS first_place,
       s.topic, s.partition, q.times_seen, octet_length(q.value) AS bytes, q.message_time, q.first_seen, q.last_seen
FROM quarantine q LEFT JOIN streams s ON s.stream = q.first_stream
WHERE q.closed_at IS NULL;

-- The amounts and the currency in an event's data: the money that it speaks of, and nothing
-- else of it. NULL where the bytes are no JSON that Postgres reads: one odd event must not
-- take the whole panel with it.
CREATE FUNCTION money_of(event bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    whole json;
BEGIN
    -- Not beside its declaration: what fails there is not caught below.
    whole := convert_from(event, 'UTF8')::json;
    RETURN (SELECT string_agg(key || ' ' || (value #>> '{}'), ', ' ORDER BY key)
            -- In CloudEvents' binary mode the value is the data itself.
            FROM json_each(coalesce(whole -> 'data', whole))
            WHERE json_typeof(value) = 'number' OR key IN ('currency', 'asset') AND json_typeof(value) = 'string');
EXCEPTION
    WHEN data_exception OR invalid_parameter_value THEN RETURN NULL;
END $$;

-- Conflicts with both versions: the first arrival of an event id, and the later one that
-- says something else. Of the two the greater fingerprint stands. `moved` is what stands in
-- the books from that place: credit → debit. What the first one said stands in the topic
-- alone: `postonce incidents show PLACE --brokers …`.
-- ORDER BY opened_at DESC LIMIT n reads n incidents of all codes by incidents_opened_at, and
-- for each conflict one row by key of conflicts, events, resources, and its few postings.
CREATE VIEW conflict_versions AS
SELECT i.opened_at, i.closed_at, r.kind || '.' || first.state AS event_type, r.path AS resource, i.updated_at,
       'evt_' || encode(i.event_id, 'hex') AS event_id, i.detail,
       CASE WHEN second.fingerprint > first.fingerprint THEN 'second' ELSE 'first' END AS stands,
       coalesce(fs.topic || '/' || fs.partition, first.stream::text) || '/' || first.message_offset AS first_place,
       first.message_time AS first_time, first.source AS first_source, first.fingerprint AS first_fingerprint,
       fm.moved AS first_moved,
       coalesce(ss.topic || '/' || ss.partition, i.stream::text) || '/' || i.message_offset AS second_place,
       second.message_time AS second_time, second.source AS second_source, second.fingerprint AS second_fingerprint,
       sm.moved AS second_moved, money_of(second.value) AS second_says
FROM incidents i
LEFT JOIN conflicts second ON second.stream = i.stream AND second.message_offset = i.message_offset
LEFT JOIN events first ON first.updated_at = i.updated_at AND first.event_id = i.event_id
LEFT JOIN resources r ON r.resource_id = i.resource_id
LEFT JOIN streams fs ON fs.stream = first.stream
LEFT JOIN streams ss ON ss.stream = i.stream
LEFT JOIN LATERAL (
    SELECT string_agg(p.amount || ' ' || d.asset || ' ' || c.path || ' → ' || d.path, '; ' ORDER BY p.line) AS moved
    FROM postings p JOIN accounts d ON d.account_id = p.debit JOIN accounts c ON c.account_id = p.credit
    WHERE p.stream = first.stream AND p.message_offset = first.message_offset
) fm ON true
LEFT JOIN LATERAL (
    SELECT string_agg(p.amount || ' ' || d.asset || ' ' || c.path || ' → ' || d.path, '; ' ORDER BY p.line) AS moved
    FROM postings p JOIN accounts d ON d.account_id = p.debit JOIN accounts c ON c.account_id = p.credit
    WHERE p.stream = i.stream AND p.message_offset = i.message_offset
) sm ON true
WHERE i.code = 'conflict';

-- Resources of which somebody said a lower state at a later time ("payment succeeded" after
-- "payment reversed"): what came, and the state that stands. Reads as conflict_versions.
CREATE VIEW regressions AS
SELECT i.opened_at, i.closed_at, r.kind, r.path AS resource, e.state AS arrived_state, i.updated_at AS arrived_time,
       r.state AS standing_state, r.updated_at AS standing_time, i.detail,
       coalesce(s.topic || '/' || s.partition, i.stream::text) || '/' || i.message_offset AS place,
       'evt_' || encode(i.event_id, 'hex') AS event_id
FROM incidents i
LEFT JOIN resources r ON r.resource_id = i.resource_id
LEFT JOIN events e ON e.updated_at = i.updated_at AND e.event_id = i.event_id
LEFT JOIN streams s ON s.stream = i.stream
WHERE i.code = 'regression';

-- "Is anything lost?": offsets that retention deleted unread, and who accepted it. actions
-- has a row for each decision of a person: few.
CREATE VIEW accepted_gaps AS
SELECT a.acted_at, a.person, a.why, s.topic, s.partition, a.from_offset, a.next_offset - 1 AS to_offset,
       a.next_offset - a.from_offset AS offsets
FROM actions a LEFT JOIN streams s ON s.stream = a.stream
WHERE a.action = 'accept_gap';

-- "Is anything doubled or lost?", by the last word of `postonce verify`. A row for each run.
CREATE VIEW verification_runs AS
SELECT v.finished_at, v.finished_at - v.started_at AS took, v.deep, v.since_last, v.findings,
       (SELECT sum(s.next_offset) FROM verified_streams s WHERE s.verification_id = v.verification_id) AS offsets
FROM verifications v;

-- From a time of recording to its batches; they are recorded in this order, so the tree
-- grows at its right edge.
CREATE INDEX batches_recorded_at ON batches (recorded_at);

-- Money posted in each hour by kind: what the books say, and not what a counter says. It
-- reads the newest batches between two times, up to `most` offsets of them, and by key the
-- event and the resource of each posting: some 20 µs each. On a ledger that has had more
-- than `most` the oldest hour that it shows is cut: `whole` is false there, and older ones
-- are missing. For long times on a busy one: postonce_posted_minor_units_total.
CREATE FUNCTION posted_by_hour(since timestamptz, until timestamptz, most bigint DEFAULT 100000)
RETURNS TABLE (hour timestamptz, kind text, asset text, postings bigint, amount numeric, whole boolean)
LANGUAGE sql STABLE SECURITY DEFINER AS $$
WITH newest AS MATERIALIZED (
    SELECT b.stream, b.from_offset, b.next_offset, b.recorded_at,
           sum(b.next_offset - b.from_offset) OVER (ORDER BY b.recorded_at DESC, b.stream, b.seq) AS offsets
    FROM (SELECT * FROM batches WHERE recorded_at >= since AND recorded_at < until
          -- No batch is empty: so many batches have as many offsets at least.
          ORDER BY recorded_at DESC LIMIT most) b
), read AS MATERIALIZED (
    -- The batch that goes over the limit is read whole, and is the last.
    SELECT * FROM newest WHERE offsets - (next_offset - from_offset) < most
), cut AS (
    SELECT date_trunc('hour', min(recorded_at), 'UTC') AS hour FROM read HAVING max(offsets) >= most
)
SELECT date_trunc('hour', b.recorded_at, 'UTC'), r.kind, a.asset, count(*), sum(p.amount),
       date_trunc('hour', b.recorded_at, 'UTC') IS DISTINCT FROM (SELECT cut.hour FROM cut)
FROM read b
CROSS JOIN LATERAL (
    SELECT * FROM postings WHERE stream = b.stream AND message_offset >= b.from_offset AND message_offset < b.next_offset
    -- OFFSET 0: from each batch to its postings, and not all postings at once.
    OFFSET 0
) p
LEFT JOIN LATERAL (
    SELECT resource_id FROM events
    WHERE updated_at = p.effective_at AND stream = p.stream AND message_offset = p.message_offset
    UNION ALL
    -- A conflict that stands has posted, too.
    SELECT resource_id FROM conflicts WHERE stream = p.stream AND message_offset = p.message_offset
) e ON true
LEFT JOIN resources r ON r.resource_id = e.resource_id
LEFT JOIN accounts a ON a.account_id = p.debit
GROUP BY 1, 2, 3
$$;

-- The newest `most` postings of an account before a time, with the balance after each:
-- `postonce statement` in one statement, and by the same way (consumer/src/read/statement.rs
-- says why each part is as it is). It reads account_postings backwards from that time; the
-- balance there is today's less what came later, so a time long ago reads what came since.
CREATE FUNCTION account_statement(account text, asset text, until timestamptz DEFAULT 'infinity', most bigint DEFAULT 100)
RETURNS TABLE (effective_at timestamptz, event_type text, resource text, counter_account text, amount numeric,
               balance numeric, posting text, event_id text, recorded_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER AS $$
WITH wanted AS MATERIALIZED (
    SELECT a.account_id, b.debits - b.credits AS balance
    FROM accounts a JOIN balances b USING (account_id)
    WHERE a.path = account_statement.account AND a.asset = account_statement.asset
), rows AS (
    (SELECT a.stream, a.base_offset, a.offsets FROM account_postings a
     WHERE a.account_id = (SELECT account_id FROM wanted) AND a.last_effective_at >= until
       AND a.last_effective_at < date_trunc('hour', until, 'UTC') + interval '1 hour')
    UNION ALL
    (SELECT a.stream, a.base_offset, a.offsets FROM account_postings a
     WHERE a.account_id = (SELECT account_id FROM wanted) AND a.last_effective_at < until
     ORDER BY a.last_effective_at DESC FETCH FIRST (most) ROWS WITH TIES)
), page AS MATERIALIZED (
    SELECT p.effective_at, p.stream, p.message_offset, p.line,
           CASE p.debit WHEN w.account_id THEN p.credit ELSE p.debit END AS counter,
           CASE p.debit WHEN w.account_id THEN p.amount ELSE -p.amount END AS amount
    FROM wanted w CROSS JOIN rows r
    CROSS JOIN LATERAL unnest(r.offsets) AS o(past)
    CROSS JOIN LATERAL (
        SELECT * FROM postings WHERE stream = r.stream AND message_offset = r.base_offset + o.past OFFSET 0
    ) p
    WHERE w.account_id IN (p.debit, p.credit) AND p.effective_at < until
    ORDER BY p.effective_at DESC, p.stream DESC, p.message_offset DESC, p.line DESC LIMIT most
), later AS (
    SELECT coalesce(sum(CASE p.debit WHEN w.account_id THEN p.amount ELSE -p.amount END), 0) AS amount
    FROM wanted w
    JOIN account_postings r ON r.account_id = w.account_id AND r.last_effective_at >= until
    CROSS JOIN LATERAL unnest(r.offsets) AS o(past)
    CROSS JOIN LATERAL (
        SELECT * FROM postings WHERE stream = r.stream AND message_offset = r.base_offset + o.past OFFSET 0
    ) p
    WHERE w.account_id IN (p.debit, p.credit) AND p.effective_at >= until
)
SELECT p.effective_at, r.kind || '.' || e.state, r.path, a.path, p.amount::numeric,
       w.balance - l.amount - coalesce(sum(p.amount) OVER (
           ORDER BY p.effective_at DESC, p.stream DESC, p.message_offset DESC, p.line DESC
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0),
       coalesce(s.topic || '/' || s.partition, p.stream::text) || '/' || p.message_offset || '/' || p.line,
       'evt_' || encode(e.event_id, 'hex'), b.recorded_at
FROM page p CROSS JOIN wanted w CROSS JOIN later l
LEFT JOIN streams s ON s.stream = p.stream
LEFT JOIN accounts a ON a.account_id = p.counter
LEFT JOIN LATERAL (
    SELECT event_id, resource_id, state FROM events
    WHERE updated_at = p.effective_at AND stream = p.stream AND message_offset = p.message_offset
    UNION ALL
    SELECT c.event_id, c.resource_id, first.state FROM conflicts c JOIN events first USING (updated_at, event_id)
    WHERE c.stream = p.stream AND c.message_offset = p.message_offset
) e ON true
LEFT JOIN resources r ON r.resource_id = e.resource_id
LEFT JOIN LATERAL (
    SELECT recorded_at FROM batches WHERE stream = p.stream AND from_offset <= p.message_offset
    ORDER BY from_offset DESC LIMIT 1
) b ON true
ORDER BY p.effective_at DESC, p.stream DESC, p.message_offset DESC, p.line DESC
$$;

DO $$
DECLARE
    ledger text := current_schema();
    called text;
BEGIN
    FOREACH called IN ARRAY ARRAY['posted_by_hour(timestamptz, timestamptz, bigint)',
                                  'account_statement(text, text, timestamptz, bigint)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', called, ledger);
        -- By key, whatever the statistics say: without them the planner reads all postings.
        EXECUTE format('ALTER FUNCTION %s SET enable_seqscan = off', called);
        EXECUTE format('ALTER FUNCTION %s SET enable_bitmapscan = off', called);
        EXECUTE format('ALTER FUNCTION %s SET enable_hashjoin = off', called);
        EXECUTE format('ALTER FUNCTION %s SET enable_mergejoin = off', called);
        -- It has its owner's rights: not for everybody who may connect.
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', called);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postonce_reader, postonce_operator', called);
    END LOOP;
END $$;
GRANT EXECUTE ON FUNCTION money_of(bytea) TO postonce_reader, postonce_operator;
GRANT SELECT ON stream_commits, quarantine_cases, conflict_versions, regressions, accepted_gaps, verification_runs
    TO postonce_reader, postonce_operator;
