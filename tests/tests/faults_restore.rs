//! The database goes back in time: an old backup is put back, a standby that had not heard
//! of the last commits takes over, a crash leaves a COMMIT unknown. The consumer heals it
//! from the topic, and nobody has to do anything.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::recovery::{base_backup, follow, has_base_backup, put_back, snapshot, stop_following};
use postonce_tests::{
    Barrier, Consumer, Db, Fault, Flow, Ledger, Network, PrivatePostgres, Proxy, Trial, kafka, payments,
    start_postgres, start_postgres_18, trials, unique, wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Trial> {
    trials![
        an_old_backup_is_put_back,
        an_old_snapshot_is_put_back_on_postgres_18,
        nobody_sends_anything_after_the_restore,
        a_zombie_wakes_up_in_the_past,
        a_zombie_meets_its_successor_in_the_past,
        a_zombie_with_a_claim_that_looks_right,
        the_fence_compares_the_chain,
        a_standby_that_lost_the_last_commits,
        killed_before_the_commit_is_written,
        killed_after_the_commit_is_written,
    ]
}

/// Under load, by `pg_basebackup`; a consumer that was there before and one that is new.
fn an_old_backup_is_put_back() -> Result<()> {
    let server = start_postgres(&[])?;
    if has_base_backup(&server) {
        put_back_later(server, |server| base_backup(server))
    } else {
        put_back_later(server, snapshot)
    }
}

fn an_old_snapshot_is_put_back_on_postgres_18() -> Result<()> {
    match start_postgres_18()? {
        Some(server) => put_back_later(server, snapshot),
        None => Ok(()),
    }
}

fn put_back_later(
    mut server: PrivatePostgres,
    copy: impl FnOnce(&mut PrivatePostgres) -> Result<std::path::PathBuf>,
) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "restore")?, "restore", 3)?;
    flow.ledger.slow_down(0.03)?;
    flow.send_load(20_000, 1)?;
    let mut consumer = flow.consume(&["--batch", "300"])?;
    flow.wait_offsets(3_000, LIMIT)?;
    let early = copy(&mut server)?;
    flow.ledger.db.reconnect();
    let copied = flow.ledger.offsets()?;
    // Much later. What the early copy has of it are quarantine, conflicts and incidents, too.
    flow.wait_offsets(copied + 6_000, LIMIT)?;
    put_back(&mut server, &early)?;
    server.start_again()?;
    flow.ledger.db.reconnect();
    let restored = flow.ledger.offsets()?;
    ensure!(restored <= copied, "the backup holds {restored} offsets, its server had {copied} a moment after");
    // It was there all the time and has noticed nothing but an outage.
    flow.wait_offsets(copied + 1_000, LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");
    let fence_losses = consumer.metric("postonce_fence_losses_total", &[])?;
    ensure!(fence_losses >= 1.0, "nobody has noticed that the database has gone back");
    // A new one beside it, and then alone.
    let new = flow.consume(&["--batch", "300"])?;
    wait_until(LIMIT, "a partition for the new one", || {
        let owners: i64 = flow.ledger.db.one("SELECT count(DISTINCT backend_pid) FROM streams")?;
        Ok((owners == 3).then_some(()))
    })?;
    flow.send(payments("beside", 300))?;
    new.wait_metric("postonce_events_total", &[], 1.0, LIMIT)?;
    consumer.kill()?;
    flow.ledger.slow_down(0.0)?;
    flow.wait_done(LIMIT)?;
    new.finish()?;
    flow.check_against_undisturbed()
}

/// An idle consumer notices by itself that its database is away, and then that it has gone back.
fn nobody_sends_anything_after_the_restore() -> Result<()> {
    let kafka = kafka();
    let mut server = start_postgres(&[])?;
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "quiet")?, "quiet", 2)?;
    let consumer = flow.consume(&[])?;
    flow.send(payments("early", 20))?;
    flow.wait_offsets(20, LIMIT)?;
    let early = snapshot(&mut server)?;
    flow.send(payments("last", 30))?;
    flow.wait_offsets(50, LIMIT)?;
    consumer.wait_ready(200, LIMIT)?;
    put_back(&mut server, &early)?;
    consumer.wait_ready(503, LIMIT)?;
    server.start_again()?;
    flow.wait_done(LIMIT)?;
    consumer.wait_ready(200, LIMIT)?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// A consumer of the lost time line, with its claim in the backup. It has a batch in
/// flight, to offset 60; its database has gone back to offset 5.
struct Zombie {
    server: PrivatePostgres,
    flow: Flow,
    way: Proxy,
    consumer: Consumer,
}

impl Zombie {
    fn of_a_lost_time() -> Result<Self> {
        let kafka = kafka();
        let mut server = start_postgres(&[])?;
        let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "zombie")?, "zombie", 1)?;
        let way = Proxy::start(&flow.ledger.url)?;
        // Its group must not take the partition away while it sleeps: that would be the end of
        // its batch, too.
        let mut consumer = flow.consume_through(way.url(), &["--workers", "1", "-X", "session.timeout.ms=60000"])?;
        flow.send(payments("early", 5))?;
        flow.wait_offsets(5, LIMIT)?;
        let early = snapshot(&mut server)?;
        flow.ledger.db.reconnect();
        // It may have had to renew its claim: the copy must hold the one that it keeps.
        let claim: String = flow.ledger.db.one("SELECT claim::text FROM streams")?;
        flow.send(payments("lost", 45))?;
        flow.wait_offsets(50, LIMIT)?;
        way.arm(Fault::Hold("COPY events"));
        flow.send(payments("in_flight", 10))?;
        way.wait_fired(LIMIT)?;
        let kept: String = flow.ledger.db.one("SELECT claim::text FROM streams")?;
        ensure!(kept == claim, "the zombie has another claim than the backup");
        consumer.freeze()?;
        put_back(&mut server, &early)?;
        server.start_again()?;
        flow.ledger.db.reconnect();
        ensure!(flow.ledger.offsets()? == 5, "the backup is not that old");
        Ok(Self { server, flow, way, consumer })
    }

    fn wakes_up(&mut self) -> Result<()> {
        self.way.release();
        self.consumer.thaw()
    }

    /// What it held has died, and everything is there once.
    fn ends_well(mut self) -> Result<()> {
        self.flow.wait_done(LIMIT)?;
        self.consumer.wait_metric("postonce_fence_losses_total", &[], 1.0, LIMIT)?;
        ensure!(self.consumer.is_running()?, "the zombie has ended");
        self.consumer.finish()?;
        let balance = self.flow.ledger.balance("assets:psp:stripe", "EUR")?;
        ensure!(balance == 60 * 100, "60 payments of 100 stand in the books as {balance}");
        self.flow.check_against_undisturbed()?;
        drop(self.server);
        Ok(())
    }
}

/// Alone. Its token is that of the row, and its offset is not.
fn a_zombie_wakes_up_in_the_past() -> Result<()> {
    let mut zombie = Zombie::of_a_lost_time()?;
    zombie.wakes_up()?;
    zombie.ends_well()
}

/// A new consumer has healed the books when it wakes up.
fn a_zombie_meets_its_successor_in_the_past() -> Result<()> {
    let mut zombie = Zombie::of_a_lost_time()?;
    let successor = Consumer::start(&kafka(), &zombie.flow.topic, &unique("other"), &zombie.flow.ledger.url, &[])?;
    zombie.flow.wait_done(LIMIT)?;
    successor.finish()?;
    let batches: i64 = zombie.flow.ledger.db.one("SELECT count(*) FROM batches")?;
    zombie.wakes_up()?;
    zombie.consumer.wait_metric("postonce_fence_losses_total", &[], 1.0, LIMIT)?;
    zombie.consumer.wait_ready(200, LIMIT)?;
    let now: i64 = zombie.flow.ledger.db.one("SELECT count(*) FROM batches")?;
    ensure!(now == batches, "the zombie has committed {} batches", now - batches);
    zombie.ends_well()
}

/// Token and offset are those of the row; only the history before them is another one.
/// (No restore brings that about by itself. The row is made so by hand, as by one who
/// edits it.) It must not take the claim up again.
fn a_zombie_with_a_claim_that_looks_right() -> Result<()> {
    let mut zombie = Zombie::of_a_lost_time()?;
    zombie.flow.ledger.db.execute("UPDATE streams SET next_offset = 50")?;
    zombie.wakes_up()?;
    zombie.consumer.wait_metric("postonce_fence_losses_total", &[], 1.0, LIMIT)?;
    // A new life, and no old claim.
    zombie.consumer.wait_metric("postonce_worker_lives_total", &[], 2.0, LIMIT)
}

/// The same for a batch that has not lost its connection: the fence itself.
fn the_fence_compares_the_chain() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("chain")?, "chain", 1)?;
    let way = Proxy::start(&flow.ledger.url)?;
    let consumer = flow.consume_through(way.url(), &["--workers", "1"])?;
    flow.send(payments("before", 5))?;
    flow.wait_offsets(5, LIMIT)?;
    way.arm(Fault::Hold("COPY events"));
    flow.send(payments("in_flight", 5))?;
    way.wait_fired(LIMIT)?;
    flow.ledger.db.execute("UPDATE streams SET message_chain = sha256('another history')")?;
    way.release();
    consumer.wait_metric("postonce_transaction_failures_total", &[], 1.0, LIMIT)?;
    ensure!(consumer.failures("fence_lost")? == 1.0, "it was not the fence that it died on");
    Ok(())
}

/// Asynchronous replication: the primary dies with commits that its standby never heard
/// of. The consumer is brought to the standby, and nobody restarts it.
fn a_standby_that_lost_the_last_commits() -> Result<()> {
    let kafka = kafka();
    let (mut primary, mut standby) = (start_postgres(&[])?, start_postgres(&[])?);
    if !has_base_backup(&primary) {
        eprintln!("skipped: this Postgres has no pg_basebackup to make a standby with");
        return Ok(());
    }
    let flow = Flow::new(&kafka, Ledger::fresh_in(&primary, "failover")?, "failover", 3)?;
    let way = Network::to(primary.port())?;
    flow.ledger.slow_down(0.05)?;
    follow(&mut standby, &primary)?;
    let (login, _) = flow.ledger.url.rsplit_once('@').context("no @")?;
    let (_, database) = flow.ledger.url.rsplit_once('/').context("no database")?;
    let promoted = Db::new(&format!("{login}@127.0.0.1:{}/{database}", standby.port()));

    flow.send_load(20_000, 14)?;
    let mut consumer = flow.consume_through(&way.url(&flow.ledger.url)?, &["--batch", "300"])?;
    flow.wait_offsets(3_000, LIMIT)?;
    stop_following(&promoted)?;
    let offsets = "SELECT coalesce(sum(next_offset - first_offset), 0)::bigint FROM streams";
    let heard: i64 = promoted.one(offsets)?;
    flow.wait_offsets(heard + 3_000, LIMIT)?;
    primary.kill_postmaster()?;
    // The way leads to the standby before it may be written to.
    way.lead_to(standby.port());
    consumer.wait_ready(503, LIMIT)?;
    let answer: bool = promoted.one("SELECT pg_promote()")?;
    ensure!(answer, "the standby was not promoted");
    consumer.wait_ready(200, LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");

    // From here on the standby is the ledger's server.
    let flow = flow.moved_to(promoted.url());
    wait_until(LIMIT, "the healing", || Ok((flow.ledger.offsets()? > heard).then_some(())))?;
    flow.ledger.slow_down(0.0)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// In the COMMIT, and before its record is written: rolled back, and read again.
fn killed_before_the_commit_is_written() -> Result<()> {
    let counted = killed_in_commit(|flow, server| {
        flow.ledger.db.execute(
            "CREATE TABLE at_commit (); CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO at_commit DEFAULT VALUES; RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON batches DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION at_commit()",
        )?;
        let barrier = Barrier::before(&flow.ledger, "INSERT", "at_commit")?;
        flow.send(payments("commit", 100))?;
        barrier.wait_arrived(1, LIMIT)?;
        server.kill_postmaster()?;
        server.start_again()?;
        flow.ledger.db.reconnect();
        ensure!(flow.ledger.db.one::<i64>("SELECT count(*) FROM at_commit")? == 0, "it was committed");
        Ok(())
    })?;
    ensure!(counted == 100.0, "the second time is the first that counts, not {counted}");
    Ok(())
}

/// In the COMMIT, behind its record: the server waits for a standby that is not there, and
/// has told nobody when it dies. The offset row tells.
fn killed_after_the_commit_is_written() -> Result<()> {
    let counted = killed_in_commit(|flow, server| {
        let admin = Db::new(&server.url("postgres"));
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")?;
        admin.execute("SELECT pg_reload_conf()")?;
        flow.send(payments("commit", 100))?;
        wait_until(LIMIT, "a COMMIT that waits for its standby", || {
            let waiting: i64 = admin.one("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")?;
            Ok((waiting > 0).then_some(()))
        })?;
        // A server that dies does not ask whether somebody still waits for a standby.
        std::fs::write(server.data_dir().join("postgresql.auto.conf"), "")?;
        server.kill_postmaster()?;
        server.start_again()?;
        Ok(())
    })?;
    ensure!(counted == 0.0, "{counted} messages were read again although they were committed");
    Ok(())
}

/// What the consumer has counted as posted itself, after its server died in a COMMIT of 100.
fn killed_in_commit(die: impl FnOnce(&Flow, &mut PrivatePostgres) -> Result<()>) -> Result<f64> {
    let kafka = kafka();
    let mut server = start_postgres(&[])?;
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "crash")?, "crash", 1)?;
    let mut consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_claimed(1)?;
    die(&flow, &mut server)?;
    flow.wait_offsets(100, LIMIT)?;
    consumer.wait_ready(200, LIMIT)?;
    consumer.wait_metric("postonce_worker_lives_total", &[], 2.0, LIMIT)?;
    ensure!(consumer.failures("commit_unknown")? == 1.0, "the COMMIT was not taken for unknown");
    let counted = consumer.metric("postonce_events_total", &[])?;
    flow.send(payments("later", 50))?;
    flow.wait_done(LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");
    consumer.finish()?;
    let balance = flow.ledger.balance("assets:psp:stripe", "EUR")?;
    ensure!(balance == 150 * 100, "150 payments of 100 stand in the books as {balance}");
    flow.check_against_undisturbed()?;
    Ok(counted)
}
