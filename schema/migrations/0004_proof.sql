-- What people decide, what they accept as lost, and what was verified. It only adds:
-- a consumer of the previous version goes on beside it.

-- In the order in which a batch comes to them: in another one a batch that is under way and
-- this migration would wait for each other, and one of the two would be rolled back.
LOCK TABLE quarantine, incidents, streams IN ACCESS EXCLUSIVE MODE;

-- A replay that runs the real transaction has streams of its own. They are no part of
-- the topic's history: nobody goes on from them.
ALTER TABLE streams ADD COLUMN replay boolean NOT NULL DEFAULT false;
-- The leader's epoch of the last message: Kafka's own mark of a history that was cut off.
-- It is true at leader_epoch_offset only: a consumer of the previous version moves
-- next_offset alone, and an old epoch at a new offset would be a false alarm.
ALTER TABLE streams ADD COLUMN leader_epoch integer, ADD COLUMN leader_epoch_offset bigint;

CREATE OR REPLACE VIEW stream_positions AS
SELECT topic, partition, next_offset, epoch, cluster_id, topic_id, stream FROM streams WHERE NOT replay;

-- What closed it: the place of the copy that was accepted. Both are null where only a
-- person did.
ALTER TABLE quarantine ADD COLUMN closed_stream bigint, ADD COLUMN closed_offset bigint;
-- `quarantine list`, page by page. Not partial: the update of a row's counts touches no
-- column of it and stays cheap.
CREATE INDEX quarantine_first_seen ON quarantine (first_seen, message_hash, code);
-- `incidents list`, page by page.
CREATE INDEX incidents_opened_at ON incidents (opened_at, stream, message_offset, code);

-- Every decision of a person, for ever: who, when, why, about what.
CREATE TABLE actions (
    -- Random.
    action_id    uuid        CONSTRAINT actions_pkey PRIMARY KEY,
    acted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    action       text        NOT NULL CONSTRAINT actions_action_known
                 CHECK (action IN ('quarantine_retry', 'quarantine_dismiss', 'incident_close',
                                   'accept_lineage', 'accept_gap')),
    -- The name that the person gave, and the role that the database knows.
    person       text        NOT NULL,
    role         text        NOT NULL DEFAULT session_user,
    why          text,
    -- quarantine_…: which row. incident_close: stream, from_offset, code.
    -- accept_gap: stream and offsets, the end exclusive. accept_lineage: any stream of it.
    message_hash bytea,
    code         text,
    stream       bigint,
    from_offset  bigint,
    next_offset  bigint
);
CREATE INDEX actions_message ON actions (message_hash) WHERE message_hash IS NOT NULL;
CREATE INDEX actions_offset ON actions (stream, from_offset) WHERE stream IS NOT NULL;
CREATE TRIGGER actions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON actions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Each run of `verify`.
CREATE TABLE verifications (
    verification_id uuid        CONSTRAINT verifications_pkey PRIMARY KEY,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    deep            boolean     NOT NULL,
    -- Only what came after the run before it.
    since_last      boolean     NOT NULL,
    findings        bigint      NOT NULL,
    -- Σ times_seen of `quarantine`: what `--since-last` counts on from.
    quarantined     numeric     NOT NULL
);
-- How far it looked.
CREATE TABLE verified_streams (
    verification_id uuid   NOT NULL,
    stream          bigint NOT NULL,
    next_offset     bigint NOT NULL,
    batch_seq       bigint NOT NULL,
    message_chain   bytea  NOT NULL,
    batch_chain     bytea  NOT NULL,
    -- Proved from the topic up to there, as far as retention had left it.
    deep            boolean NOT NULL DEFAULT false,
    CONSTRAINT verified_streams_pkey PRIMARY KEY (verification_id, stream)
);
-- The balances that the last run without findings saw: what `--since-last` adds to.
CREATE TABLE verified_balances (
    account_id      uuid    CONSTRAINT verified_balances_pkey PRIMARY KEY,
    verification_id uuid    NOT NULL,
    debits          numeric NOT NULL,
    credits         numeric NOT NULL
);

-- A third role without a login: a person who closes cases and verifies the books, and
-- who cannot write the ledger.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'postonce_operator') THEN
        CREATE ROLE postonce_operator NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role postonce_operator is missing and % may not create it', current_user
            USING HINT = 'As a superuser: CREATE ROLE postonce_operator NOLOGIN; then migrate again.';
END $$;
DO $$ BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO postonce_operator', current_schema());
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO postonce_consumer, postonce_reader, postonce_operator',
                   current_schema());
END $$;

-- Column by column: role and acted_at are the database's own words, nobody's claim.
GRANT INSERT (action_id, action, person, why, message_hash, code, stream, from_offset, next_offset)
    ON actions TO postonce_consumer, postonce_operator;
GRANT UPDATE (leader_epoch, leader_epoch_offset) ON streams TO postonce_consumer;
GRANT UPDATE (closed_at, closed_stream, closed_offset) ON quarantine TO postonce_consumer;
GRANT UPDATE (closed_at) ON quarantine, incidents TO postonce_operator;
GRANT INSERT ON verifications, verified_streams TO postonce_operator;
GRANT INSERT, UPDATE, DELETE ON verified_balances TO postonce_operator;
