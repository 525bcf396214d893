-- Who may do what: docs/security.md has the table, tests/tests/roles.rs tries every right
-- that is not in it.
--
-- Of all roles only the owner of the tables (whoever migrates) may alter or drop anything.
--   postonce_consumer        writes the ledger, and never changes or deletes what is posted
--   postonce_operator        reads everything, closes cases, verifies
--   postonce_auditor         reads the tables, for the commands that read; not the payloads
--   postonce_reader          reads the views, for Grafana and people's SQL; not the payloads
--   postonce_payload_reader  the payloads: beside one of the two above, for whoever may see
--                            what customers have sent
--   postonce_gateway         takes events in over HTTP. It has nothing to write to yet, and
--                            nothing of the ledger to read: whoever breaks into it finds no money
--
-- A payload is what came from outside as it came: key, value and headers of a message. Data
-- of persons may be in it that no field of the ledger would take.
--
-- A later migration that makes a table or a view says who may read it: nothing is granted
-- in advance.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['postonce_auditor', 'postonce_payload_reader', 'postonce_gateway'] LOOP
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
END $$;

DO $$
DECLARE
    here CONSTANT name := current_schema();
    one  record;
    -- All of it, or all of its columns but the payload.
    open_part text;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO postonce_auditor, postonce_payload_reader, postonce_gateway', here);
    -- Until here the reader read the tables, and the consumer the views and the payloads.
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM postonce_reader', here);
    EXECUTE format('REVOKE SELECT ON ALL TABLES IN SCHEMA %I FROM postonce_consumer', here);
    -- Postgres lets everybody call a new function. None of these is for everybody.
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA %I FROM PUBLIC', here);
    FOR one IN
        SELECT oid::regprocedure AS signature FROM pg_proc
        WHERE pronamespace = here::regnamespace AND prokind = 'f' AND prorettype <> 'trigger'::regtype
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO postonce_reader, postonce_auditor, postonce_operator',
                       one.signature);
    END LOOP;

    FOR one IN
        SELECT c.relname, c.relkind = 'v' AS is_view, p.has_payload, p.open_columns
        FROM pg_class c
        CROSS JOIN LATERAL (
            SELECT bool_or(is_payload) AS has_payload,
                   string_agg(quote_ident(attname), ', ') FILTER (WHERE NOT is_payload) AS open_columns
            -- In a view whatever is still bytes is payload; the tables keep hashes as bytes, too.
            FROM (SELECT attname,
                         CASE WHEN c.relkind = 'v' THEN atttypid = 'bytea'::regtype
                              ELSE c.relname IN ('quarantine', 'conflicts') AND attname IN ('key', 'value', 'headers')
                         END AS is_payload
                  FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) a
        ) p
        WHERE c.relnamespace = here::regnamespace AND c.relkind IN ('r', 'p', 'v')
    LOOP
        open_part := CASE WHEN one.has_payload THEN format('(%s)', one.open_columns) ELSE '' END;
        EXECUTE format('GRANT SELECT %s ON %I TO postonce_auditor', open_part, one.relname);
        EXECUTE format('GRANT SELECT ON %I TO postonce_operator', one.relname);
        EXECUTE format('GRANT SELECT %s ON %I TO %I', open_part, one.relname,
                       CASE WHEN one.is_view THEN 'postonce_reader' ELSE 'postonce_consumer' END);
        IF one.has_payload THEN
            -- Not only those columns: `verify` finds rows by their place, which is none of them.
            EXECUTE format('GRANT SELECT ON %I TO postonce_payload_reader', one.relname);
        END IF;
    END LOOP;
END $$;
