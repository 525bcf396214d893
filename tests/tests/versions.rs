//! A rolling update: two releases in one group, on a schema that is migrated under load.
//! What the next release may do to the schema is tried on this one.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use postonce_tests::{Flow, Ledger, PostonceProcess, QUICK, Said, Trial, kafka, payments, trials};

const LIMIT: Duration = Duration::from_secs(120);
/// The program `postonce` of the release before this one.
const PREVIOUS: &str = "POSTONCE_PREVIOUS";

pub fn tests() -> Vec<Trial> {
    // Until there is a release, nobody has the program of the one before: the report says
    // that this test was not run, and what it needs.
    let missing = std::env::var_os(PREVIOUS).is_none();
    let previous = trials![the_previous_release_beside_this_one].into_iter();
    let previous = previous.map(|trial| trial.with_kind(format!("needs {PREVIOUS}")).with_ignored_flag(missing));
    trials![the_schema_of_the_next_release].into_iter().chain(previous).collect()
}

/// All that a migration may do while older programs run: it adds, and every column that it
/// adds has a default. Tables in the order in which a batch comes to them: in another order
/// a batch that is under way and the migration would wait for each other.
const EXPANDED: &str = "
    DO $$
    DECLARE name text;
    BEGIN
        FOREACH name IN ARRAY ARRAY['resources', 'events', 'accounts', 'postings', 'quarantine', 'conflicts', 'incidents',
                                    'balances', 'batches', 'streams', 'rules', 'claims', 'actions', 'verifications',
                                    'verified_streams', 'verified_balances'] LOOP
            EXECUTE format('ALTER TABLE %I ADD COLUMN of_the_next_release text NOT NULL DEFAULT ''next''', name);
        END LOOP;
        FOR name IN SELECT viewname FROM pg_views WHERE schemaname = current_schema() LOOP
            EXECUTE format('CREATE OR REPLACE VIEW %I AS SELECT v.*, 1 AS of_the_next_release FROM (%s) v',
                           name, rtrim(pg_get_viewdef(name::regclass), '; '));
        END LOOP;
        CREATE TABLE of_the_next_release (stream bigint PRIMARY KEY, batches bigint NOT NULL);
        CREATE FUNCTION of_the_next_release() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN
            INSERT INTO of_the_next_release VALUES (new.stream, 1)
            ON CONFLICT (stream) DO UPDATE SET batches = of_the_next_release.batches + 1;
            RETURN NULL;
        END $f$;
        CREATE TRIGGER of_the_next_release AFTER INSERT ON batches FOR EACH ROW
            EXECUTE FUNCTION of_the_next_release();
        CREATE INDEX of_the_next_release_index ON quarantine (code, of_the_next_release);
        INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9000, 'of the next release', true, 'checksum', 1);
    END $$";

/// It is migrated while this release posts. Nobody notices, whoever starts on it starts,
/// and every command works.
fn the_schema_of_the_next_release() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("expanded")?, "expanded", 3)?;
    flow.ledger.slow_down(0.05)?;
    flow.send_load(8_000, 9)?;
    let more = [&QUICK[..], &["--workers", "1", "--batch", "100"]].concat();
    let mut consumer = flow.consume(&more)?;
    flow.wait_offsets(1_000, LIMIT)?;
    flow.ledger.db.execute(EXPANDED)?;
    let at = flow.ledger.offsets()?;
    ensure!(at < 7_000, "the load was over");
    flow.wait_offsets(at + 500, LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");
    ensure!(consumer.metric("postonce_worker_lives_total", &[])? == 1.0, "it had to begin anew");
    let other = flow.consume(&more)?;
    flow.ledger.slow_down(0.0)?;
    consumer.finish()?;
    flow.send(payments("last", 100))?;
    flow.wait_done(LIMIT)?;
    other.finish()?;
    flow.check_against_undisturbed()?;

    let commands: [&[&str]; 9] = [
        // After a rollback the older program is the one that migrates.
        &["migrate"],
        &["status"],
        &["balances"],
        &["quarantine", "list"],
        &["incidents", "list"],
        &["checkpoint"],
        &["export", "--format", "jsonl"],
        &["replay"],
        &["verify", "--deep"],
    ];
    for command in commands {
        Said::by(&flow, command)?.complaint(0, &[])?;
    }
    Ok(())
}

/// There and back again: what each of the two has written, the other one goes on from.
fn the_previous_release_beside_this_one() -> Result<()> {
    let Some(previous) = std::env::var_os(PREVIOUS) else {
        anyhow::bail!("give the program of the release before this one in {PREVIOUS}");
    };
    let previous = Path::new(&previous);
    let kafka = kafka();
    let ledger = Ledger::made_by("versions", |url| {
        let mut migrate = PostonceProcess::start_by(previous, &["migrate"], &[("DATABASE_URL", url)])?;
        let status = migrate.wait(LIMIT)?;
        ensure!(status.success(), "the previous release's migrate: {status}\n{}", migrate.stderr());
        Ok(())
    })?;
    let flow = Flow::new(&kafka, ledger, "versions", 4)?;
    flow.ledger.slow_down(0.03)?;
    flow.send_load(30_000, 9)?;
    let more = [&QUICK[..], &["--workers", "1", "--batch", "300"]].concat();
    let (one, other) = (flow.consume_by(previous, &more)?, flow.consume_by(previous, &more)?);
    flow.wait_offsets(3_000, LIMIT)?;
    // Whoever updates migrates first, while the previous one posts.
    PostonceProcess::run(&["migrate"], &[("DATABASE_URL", &flow.ledger.url)], LIMIT)?;
    flow.wait_offsets(flow.ledger.offsets()? + 1_500, LIMIT)?;
    let new = flow.consume(&more)?;
    one.finish()?;
    flow.wait_offsets(flow.ledger.offsets()? + 4_000, LIMIT)?;
    // Both have posted, side by side.
    for (consumer, which) in [(&other, "previous"), (&new, "new")] {
        consumer.wait_metric("postonce_events_total", &[], 1.0, LIMIT)?;
        ensure!(consumer.ready()? == 200, "the {which} release is not ready");
    }
    // Back again: what the new one wrote, the previous one reads.
    let back = flow.consume_by(previous, &more)?;
    new.finish()?;
    flow.wait_offsets(flow.ledger.offsets()? + 4_000, LIMIT)?;
    ensure!(flow.ledger.offsets()? < 30_000, "the load was over");
    flow.ledger.slow_down(0.0)?;
    let last = flow.consume(&more)?;
    other.finish()?;
    back.finish()?;
    flow.send(payments("last", 100))?;
    flow.wait_done(LIMIT)?;
    last.finish()?;
    flow.check_against_undisturbed()
}
