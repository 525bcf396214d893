-- The ledger. Every table lives in the schema that comes first in search_path, so
-- that a second ledger can be built beside the live one.
--
-- No key on the path of money comes from a sequence: ids are hashes of what they
-- name, and a posting is (stream, message_offset, line). Two workers agree on them
-- without talking, and a failover that loses rows cannot hand an id out twice.
--
-- There are no foreign keys from the big tables: they cost half as much again as
-- the insert itself, and `verify` proves what they would.

-- The rules that judged events. A version is frozen as soon as it stands here.
CREATE TABLE rules (
    version       integer     CONSTRAINT rules_pkey PRIMARY KEY,
    valid_from    timestamptz NOT NULL CONSTRAINT rules_valid_from_once UNIQUE,
    -- SHA-256 of definition.
    hash          bytea       NOT NULL CONSTRAINT rules_hash_is_sha256 CHECK (octet_length(hash) = 32),
    -- Canonical form, one fact a line: says which line of a file was altered.
    definition    text        NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row for each lineage of offsets: the offset that travels with the money.
CREATE TABLE streams (
    stream        bigint  CONSTRAINT streams_pkey PRIMARY KEY,
    cluster_id    text    NOT NULL,
    topic         text    NOT NULL,
    -- A topic that was deleted and made again has another id and is another lineage.
    topic_id      text    NOT NULL,
    partition     integer NOT NULL CONSTRAINT streams_partition_not_negative CHECK (partition >= 0),
    first_offset  bigint  NOT NULL,
    -- The first offset that has no outcome yet.
    next_offset   bigint  NOT NULL,
    -- The owner: only a transaction that still finds its own claim here may commit.
    epoch         bigint  NOT NULL DEFAULT 0,
    claim         uuid,
    backend_pid   integer,
    backend_start timestamptz,
    batch_seq     bigint  NOT NULL DEFAULT 0,
    -- Over every message before next_offset; the same after any restore.
    message_chain bytea   NOT NULL CONSTRAINT streams_message_chain_is_sha256 CHECK (octet_length(message_chain) = 32),
    -- Over the rows that every batch wrote.
    batch_chain   bytea   NOT NULL CONSTRAINT streams_batch_chain_is_sha256 CHECK (octet_length(batch_chain) = 32),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT streams_lineage_once UNIQUE (cluster_id, topic, topic_id, partition),
    CONSTRAINT streams_offsets_in_order CHECK (0 <= first_offset AND first_offset <= next_offset)
) WITH (fillfactor = 50);

-- Who has owned a stream: tells a frozen former owner from a stranger.
CREATE TABLE claims (
    stream        bigint      NOT NULL,
    epoch         bigint      NOT NULL,
    claim         uuid        NOT NULL,
    backend_pid   integer     NOT NULL,
    backend_start timestamptz NOT NULL,
    claimed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT claims_pkey PRIMARY KEY (stream, epoch)
);

-- The dedup row: one for each accepted event, for ever. The time comes first in the
-- key because event_id is random: alone it would touch a random page for each row.
-- That is sound because the id is a hash that fixes the time.
CREATE TABLE events (
    updated_at     timestamptz NOT NULL,
    event_id       bytea       NOT NULL CONSTRAINT events_id_is_sha256 CHECK (octet_length(event_id) = 32),
    resource_id    uuid        NOT NULL,
    -- 16 bytes, of what the first arrival said. (uuid here and below: 16 bytes without a length.)
    fingerprint    uuid        NOT NULL,
    stream         bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    -- The message's Kafka timestamp.
    message_time   timestamptz,
    -- P posted, N noted, S superseded.
    outcome        "char"      NOT NULL CONSTRAINT events_outcome_known CHECK (outcome IN ('P', 'N', 'S')),
    state          text        NOT NULL,
    source         text,
    CONSTRAINT events_pkey PRIMARY KEY (updated_at, event_id)
);
-- `trace`: every event of a resource.
CREATE INDEX events_resource ON events (resource_id);
-- From an offset to its event; rows arrive in this order, so a few bytes a range do.
CREATE INDEX events_offset ON events USING brin (stream, message_offset) WITH (pages_per_range = 32);

-- Vacuum is what summarises new ranges of a BRIN index, and until then a look-up reads
-- them whole. By default it waits for a fifth of the table: on a large one for months.
ALTER TABLE events SET (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);

-- The state of each resource, and the facts from which its position is computed.
-- fillfactor: a new state fits beside the old one, and no index is touched.
CREATE TABLE resources (
    resource_id   uuid        CONSTRAINT resources_pkey PRIMARY KEY,
    kind          text        NOT NULL,
    path          text        NOT NULL,
    state         text        NOT NULL,
    updated_at    timestamptz NOT NULL,
    -- One more with each change: what compare-and-set compares.
    revision      bigint      NOT NULL CONSTRAINT resources_revision_from_one CHECK (revision > 0),
    rules_version integer     NOT NULL,
    facts         json        NOT NULL
) WITH (fillfactor = 85);

CREATE TABLE accounts (
    account_id uuid CONSTRAINT accounts_pkey PRIMARY KEY,
    -- "C": a prefix is a range of the index, and the order is the same everywhere.
    path       text COLLATE "C" NOT NULL,
    asset      text COLLATE "C" NOT NULL,
    CONSTRAINT accounts_path_and_asset_once UNIQUE (path, asset),
    CONSTRAINT accounts_root CHECK (split_part(path, ':', 1) IN ('assets', 'liabilities', 'equity', 'income', 'expenses'))
);

-- Money moves from credit to debit. One row is both sides, so it cannot be unbalanced.
-- No key of its own: (stream, message_offset, line) is unique because `events` and the
-- fence are.
CREATE TABLE postings (
    stream         bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    line           smallint    NOT NULL,
    debit          uuid        NOT NULL,
    credit         uuid        NOT NULL,
    -- Minor units.
    amount         bigint      NOT NULL CONSTRAINT postings_amount_positive CHECK (amount > 0),
    -- The event's updatedAt: with stream and offset the way to its dedup row.
    effective_at   timestamptz NOT NULL,
    CONSTRAINT postings_two_accounts CHECK (debit <> credit)
);
CREATE INDEX postings_offset ON postings USING brin (stream, message_offset) WITH (pages_per_range = 32);
ALTER TABLE postings SET (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);
-- `statement`: an account's postings in the order of their effect, page by page.
CREATE INDEX postings_debit ON postings (debit, effective_at);
CREATE INDEX postings_credit ON postings (credit, effective_at);

-- numeric: a few hundred of the largest amounts would overflow a bigint, and a sum
-- that fails after the line where nothing may fail stops the money.
CREATE TABLE balances (
    account_id uuid    CONSTRAINT balances_pkey PRIMARY KEY,
    debits     numeric NOT NULL CONSTRAINT balances_debits_not_negative CHECK (debits >= 0),
    credits    numeric NOT NULL CONSTRAINT balances_credits_not_negative CHECK (credits >= 0)
) WITH (fillfactor = 50);

-- One row for each stream in each transaction: what became of every offset.
CREATE TABLE batches (
    stream        bigint      NOT NULL,
    seq           bigint      NOT NULL,
    from_offset   bigint      NOT NULL,
    -- Exclusive.
    next_offset   bigint      NOT NULL,
    -- One byte for each offset, P N D S C R; a hole is '.', a long hole 'H' and its
    -- length in 8 bytes, big-endian.
    outcomes      bytea       NOT NULL,
    message_chain bytea       NOT NULL CONSTRAINT batches_message_chain_is_sha256 CHECK (octet_length(message_chain) = 32),
    previous_hash bytea       NOT NULL CONSTRAINT batches_previous_hash_is_sha256 CHECK (octet_length(previous_hash) = 32),
    hash          bytea       NOT NULL CONSTRAINT batches_hash_is_sha256 CHECK (octet_length(hash) = 32),
    -- As late as the transaction can say: this row is written just before the commit.
    recorded_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT batches_pkey PRIMARY KEY (stream, seq),
    CONSTRAINT batches_offsets_once UNIQUE (stream, from_offset),
    CONSTRAINT batches_offsets_in_order CHECK (from_offset < next_offset)
);

-- Refused messages with their bytes. The same bytes refused again count here.
CREATE TABLE quarantine (
    -- SHA-256 of SHA-256(key), SHA-256(value), SHA-256(headers), as in the message chain.
    message_hash bytea       NOT NULL CONSTRAINT quarantine_hash_is_sha256 CHECK (octet_length(message_hash) = 32),
    code         text        NOT NULL,
    -- JSON pointer, or header:NAME.
    place        text        NOT NULL,
    reason       text        NOT NULL,
    key          bytea,
    value        bytea,
    -- For each header: length of the name (4 bytes, big-endian), name, length of the
    -- value (4 bytes, FFFFFFFF for null), value.
    headers      bytea       NOT NULL,
    message_time timestamptz,
    first_stream bigint      NOT NULL,
    first_offset bigint      NOT NULL,
    last_stream  bigint      NOT NULL,
    last_offset  bigint      NOT NULL,
    times_seen   bigint      NOT NULL,
    first_seen   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen    timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at    timestamptz,
    CONSTRAINT quarantine_pkey PRIMARY KEY (message_hash, code)
);

-- The same event id with another content: kept once for each content, with its bytes.
CREATE TABLE conflicts (
    event_id       bytea       NOT NULL CONSTRAINT conflicts_id_is_sha256 CHECK (octet_length(event_id) = 32),
    fingerprint    uuid        NOT NULL,
    updated_at     timestamptz NOT NULL,
    resource_id    uuid        NOT NULL,
    stream         bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    message_time   timestamptz,
    source         text,
    key            bytea,
    value          bytea       NOT NULL,
    headers        bytea       NOT NULL,
    CONSTRAINT conflicts_pkey PRIMARY KEY (event_id, fingerprint)
);
CREATE INDEX conflicts_resource ON conflicts (resource_id);
CREATE INDEX conflicts_offset ON conflicts (stream, message_offset);

-- Accepted, but a person should look.
CREATE TABLE incidents (
    stream         bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    code           text        NOT NULL
                   CONSTRAINT incidents_code_known CHECK (code IN ('conflict', 'regression', 'restatement')),
    resource_id    uuid        NOT NULL,
    updated_at     timestamptz NOT NULL,
    event_id       bytea       NOT NULL,
    detail         text        NOT NULL,
    opened_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at      timestamptz,
    CONSTRAINT incidents_pkey PRIMARY KEY (stream, message_offset, code)
);
CREATE INDEX incidents_resource ON incidents (resource_id);

-- Append-only, whoever asks: a correction is an event, never an edit. A statement
-- trigger costs an INSERT or COPY nothing.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on %.% refused: the ledger is append-only', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Correct a posting by an event with a later updatedAt.';
END $$;

CREATE TRIGGER postings_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON postings
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER conflicts_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON conflicts
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER batches_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON batches
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER rules_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON rules
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER claims_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON claims
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
