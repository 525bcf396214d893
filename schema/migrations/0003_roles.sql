-- Two roles without a login, for an operator to grant:
--   postonce_consumer  writes the ledger; cannot change or delete what is posted
--   postonce_reader    reads everything (Grafana, auditors)
-- Whoever runs the migrations owns the tables and is the migrator.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['postonce_consumer', 'postonce_reader'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION
            -- Roles belong to the whole cluster: another database may have won the race.
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % is missing and % may not create it', wanted, current_user
                    USING HINT = format('As a superuser: CREATE ROLE %I NOLOGIN; then migrate again.', wanted);
        END;
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO postonce_consumer, postonce_reader', current_schema());
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO postonce_consumer, postonce_reader', current_schema());
END $$;

GRANT INSERT ON rules, streams, claims, events, resources, accounts, postings, balances, batches,
                quarantine, conflicts, incidents TO postonce_consumer;
-- Column by column: the consumer can move these and nothing else.
GRANT UPDATE (next_offset, epoch, claim, backend_pid, backend_start, batch_seq, message_chain, batch_chain)
    ON streams TO postonce_consumer;
GRANT UPDATE (state, updated_at, revision, rules_version, facts) ON resources TO postonce_consumer;
GRANT UPDATE (debits, credits) ON balances TO postonce_consumer;
GRANT UPDATE (last_stream, last_offset, times_seen, last_seen) ON quarantine TO postonce_consumer;
