-- The way from an account to its postings, and from a place to its postings.
--
-- Two b-trees on postings (debit, effective_at) and (credit, effective_at) cost four
-- insertions for each payment, at as many places as there are accounts: as much as all
-- of the rest. A batch knows which accounts it touches, so it writes one row for each
-- of them.
DROP INDEX postings_debit, postings_credit;

-- One row for each account that a batch has posted to in a stream, for each hour of effect
-- and at most 64 offsets. `statement` relies on all of these:
--   a row's last_effective_at is that of one of its postings, so the newest n postings
--   stand in n rows at most;
--   a row does not reach over an hour's border, so what stands before a time is found
--   without the rows of later hours;
--   a row is short, so that an account of every event is read by the page, too.
-- It says nothing that postings does not say: `verify` computes it anew.
CREATE TABLE account_postings (
    account_id        uuid        NOT NULL,
    last_effective_at timestamptz NOT NULL,
    stream            bigint      NOT NULL,
    -- The offset whose effect comes first.
    base_offset       bigint      NOT NULL,
    -- Each offset at which the account is debited or credited, less base_offset.
    offsets           integer[]   NOT NULL
);

-- All of it from the postings alone: for what was posted before this migration, and for
-- whose `verify` finds it damaged (TRUNCATE account_postings; CALL fill_account_postings()
-- while no consumer writes).
CREATE PROCEDURE fill_account_postings() LANGUAGE sql AS $$
INSERT INTO account_postings (account_id, last_effective_at, stream, base_offset, offsets)
WITH sides AS (
    SELECT DISTINCT side.account_id, p.stream, b.seq, p.effective_at, p.message_offset
    FROM postings p
    CROSS JOIN LATERAL (VALUES (p.debit), (p.credit)) AS side(account_id)
    CROSS JOIN LATERAL (
        SELECT seq FROM batches WHERE stream = p.stream AND from_offset <= p.message_offset
        ORDER BY from_offset DESC LIMIT 1
    ) b
), parts AS (
    SELECT *, date_trunc('hour', effective_at, 'UTC') AS hour, message_offset >> 30 AS block FROM sides
), numbered AS (
    SELECT *, row_number() OVER part - 1 AS nth FROM parts
    WINDOW part AS (PARTITION BY account_id, stream, seq, hour, block ORDER BY effective_at, message_offset)
), rows AS (
    SELECT account_id, stream, max(effective_at) AS last_effective_at,
           array_agg(message_offset ORDER BY effective_at, message_offset) AS offsets
    FROM numbered GROUP BY account_id, stream, seq, hour, block, nth / 64
)
SELECT account_id, last_effective_at, stream, offsets[1],
       ARRAY(SELECT (o.message_offset - offsets[1])::integer
             FROM unnest(offsets) WITH ORDINALITY AS o(message_offset, nth) ORDER BY o.nth)
FROM rows;
$$;
CALL fill_account_postings();

CREATE INDEX account_postings_account ON account_postings (account_id, last_effective_at);
CREATE INDEX account_postings_offset ON account_postings USING brin (stream, base_offset) WITH (pages_per_range = 32);
ALTER TABLE account_postings SET (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);

-- From a place to its postings: 64 offsets are 64 short ways down a tree, where a range
-- index would read 32 pages for each. The rows come in its order, so it grows at its right
-- edge. Not unique: `events` and the fence see to that, and a third time costs as much again.
DROP INDEX postings_offset;
CREATE INDEX postings_offset ON postings (stream, message_offset);

GRANT SELECT ON account_postings TO postonce_consumer, postonce_reader, postonce_operator;
GRANT INSERT ON account_postings TO postonce_consumer;
