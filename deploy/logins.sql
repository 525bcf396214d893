-- Logins for the roles that `postonce migrate` has made. Run by whoever owns the database,
-- with the two passwords as psql variables; any number of times.
\set ON_ERROR_STOP on
SELECT format('CREATE ROLE %I LOGIN', login)
FROM (VALUES ('consumer'), ('grafana')) AS wanted (login)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) \gexec
-- format quotes the passwords; nothing else does.
SELECT format('ALTER ROLE consumer PASSWORD %L', :'consumer_password') \gexec
SELECT format('ALTER ROLE grafana PASSWORD %L', :'grafana_password') \gexec
GRANT postonce_consumer TO consumer;
GRANT postonce_reader TO grafana;
-- A dashboard that asks too much must not hold up the money.
ALTER ROLE grafana SET statement_timeout = '15s';
