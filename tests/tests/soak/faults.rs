//! What happens to the system, while messages go on coming.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::recovery::{base_backup, follow, has_base_backup, put_back, snapshot, stop_following};
use postonce_tests::{Db, Kafka, PrivatePostgres, Transaction, payments, read_all, start_postgres, unique, wait_until};
use postonce_tests::{Fault as Statement, Message};
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};

use super::{LIMIT, LOGIN, World};
use crate::faults_disk::disk_of;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, and another in its place.
    KillConsumer,
    /// Frozen until the group has thrown it out, then let go on: a zombie.
    FreezeConsumer,
    /// SIGTERM, and another in its place.
    ReplaceConsumer,
    /// One more joins the group for a while.
    JoinAndLeave,
    StopPostgres,
    KillPostgres,
    /// The postmaster dies behind the record of a COMMIT that nobody has been told of.
    KillPostgresInCommit,
    /// The first consumer's connection breaks at a COMMIT: before it, behind it, or while
    /// it is on its way.
    LoseCommit,
    /// An older backup is put back.
    RestoreBackup,
    /// A standby takes over that has not heard of the last commits.
    PromoteStandby,
    /// No room for another page of the postings.
    FillDisk,
    /// Every session ends where it stands.
    EndSessions,
    /// No way from the first consumer to the database, for a moment or for longer than a
    /// life: refused, or silent.
    CutOff,
    /// Both ways of the first consumer delay, narrow, lose and reset.
    Storm,
    StopBroker,
    KillBroker,
    /// What stands behind an open transaction waits; then it is committed or aborted.
    OpenTransaction,
    /// Keys move to other partitions.
    AddPartition,
    /// Messages of the past come again, in another order and on other partitions, as from a
    /// mirror.
    SendCopies,
    /// A verification and a replay through the real transaction, beside the consumers.
    ProveBesideThem,
}

pub const FAULTS: [Fault; 20] = [
    Fault::KillConsumer,
    Fault::FreezeConsumer,
    Fault::ReplaceConsumer,
    Fault::JoinAndLeave,
    Fault::StopPostgres,
    Fault::KillPostgres,
    Fault::KillPostgresInCommit,
    Fault::LoseCommit,
    Fault::RestoreBackup,
    Fault::PromoteStandby,
    Fault::FillDisk,
    Fault::EndSessions,
    Fault::CutOff,
    Fault::Storm,
    Fault::StopBroker,
    Fault::KillBroker,
    Fault::OpenTransaction,
    Fault::AddPartition,
    Fault::SendCopies,
    Fault::ProveBesideThem,
];

const MOST_PARTITIONS: usize = 10;
const MOST_COPIES: usize = 2_000;
/// How much of each partition is replayed through the real transaction: its streams stay
/// in the ledger, and each later proof reads them, too.
const REPLAYED: i64 = 300;

impl World {
    pub fn happen(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::KillConsumer => self.kill_consumer(),
            Fault::FreezeConsumer => self.freeze_consumer(),
            Fault::ReplaceConsumer => self.replace_consumer(),
            Fault::JoinAndLeave => self.join_and_leave(),
            Fault::StopPostgres => self.stop_postgres(PrivatePostgres::stop_fast),
            Fault::KillPostgres => self.stop_postgres(PrivatePostgres::kill_postmaster),
            Fault::KillPostgresInCommit => self.kill_postgres_in_commit(),
            Fault::LoseCommit => self.lose_commit(),
            Fault::RestoreBackup => self.restore_backup(),
            Fault::PromoteStandby => self.promote_standby(),
            Fault::FillDisk => self.fill_disk(),
            Fault::EndSessions => self.end_sessions(),
            Fault::CutOff => self.cut_off(),
            Fault::Storm => self.storm(),
            Fault::StopBroker => self.stop_broker(Kafka::stop),
            Fault::KillBroker => self.stop_broker(Kafka::kill),
            Fault::OpenTransaction => self.open_transaction(),
            Fault::AddPartition => self.add_partition(),
            Fault::SendCopies => self.send_copies(),
            Fault::ProveBesideThem => self.prove_beside_them(),
        }
    }

    fn one_of_the_consumers(&mut self) -> usize {
        self.random.random_range(0..self.consumers.len())
    }

    fn kill_consumer(&mut self) -> Result<()> {
        let which = self.one_of_the_consumers();
        self.consumers[which].kill()?;
        self.consumers[which] = self.consumer(which)?;
        Ok(())
    }

    fn freeze_consumer(&mut self) -> Result<()> {
        let which = self.one_of_the_consumers();
        self.consumers[which].freeze()?;
        self.pause(500, 4_000);
        self.consumers[which].thaw()
    }

    fn replace_consumer(&mut self) -> Result<()> {
        let which = self.one_of_the_consumers();
        let new = self.consumer(which)?;
        std::mem::replace(&mut self.consumers[which], new).finish()
    }

    fn join_and_leave(&mut self) -> Result<()> {
        let third = self.consumer(2)?;
        self.pause(0, 3_000);
        third.finish()
    }

    fn stop_postgres(&mut self, way: fn(&mut PrivatePostgres) -> Result<()>) -> Result<()> {
        way(&mut self.postgres)?;
        self.pause(0, 3_000);
        self.postgres.start_again()
    }

    fn kill_postgres_in_commit(&mut self) -> Result<()> {
        let db = &self.flow.ledger.db;
        db.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")?;
        db.execute("SELECT pg_reload_conf()")?;
        wait_until(LIMIT, "a COMMIT that waits for its standby", || {
            let waiting: i64 = db.one("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")?;
            Ok((waiting > 0).then_some(()))
        })?;
        std::fs::write(self.postgres.data_dir().join("postgresql.auto.conf"), "")?;
        self.stop_postgres(PrivatePostgres::kill_postmaster)
    }

    fn lose_commit(&mut self) -> Result<()> {
        let ways = [Statement::CutBefore("COMMIT"), Statement::CutAfter("COMMIT"), Statement::Delay("COMMIT")];
        self.statements.arm(*ways.choose(&mut self.random).context("no ways")?);
        self.statements.wait_fired(LIMIT)?;
        self.pause(0, 3_000);
        self.statements.release();
        Ok(())
    }

    fn restore_backup(&mut self) -> Result<()> {
        let live = has_base_backup(&self.postgres);
        let early = if live { base_backup(&self.postgres)? } else { snapshot(&mut self.postgres)? };
        self.pause(500, 4_000);
        put_back(&mut self.postgres, &early)?;
        self.postgres.start_again()?;
        self.flow.ledger.db.reconnect();
        Ok(())
    }

    fn promote_standby(&mut self) -> Result<()> {
        if !has_base_backup(&self.postgres) {
            return skipped("this Postgres has no pg_basebackup to make a standby with");
        }
        let mut standby = start_postgres(&[])?;
        let own = standby.url("postgres");
        follow(&mut standby, &self.postgres)?;
        let (_, database) = self.flow.ledger.url.rsplit_once('/').context("no database in the URL")?;
        let promoted = Db::new(&format!("postgres://{LOGIN}@127.0.0.1:{}/{database}", standby.port()));
        self.pause(0, 1_000);
        stop_following(&promoted)?;
        self.pause(500, 2_000);
        self.postgres.kill_postmaster()?;
        // The ways lead to the standby before it may be written to.
        self.home.lead_to(standby.port());
        self.to_postgres.lead_to(standby.port());
        self.pause(0, 1_000);
        ensure!(promoted.one::<bool>("SELECT pg_promote()")?, "the standby was not promoted");
        // It has its primary's passwords; whoever takes a backup of it has its own.
        let password = own.split([':', '@']).nth(2).context("no password in the URL")?;
        promoted.execute(&format!("ALTER ROLE postgres PASSWORD '{password}'"))?;
        self.postgres = standby;
        self.flow.ledger.db.reconnect();
        Ok(())
    }

    fn fill_disk(&mut self) -> Result<()> {
        let db = &self.flow.ledger.db;
        let size: i64 = db.one("SELECT pg_table_size('postings')")?;
        let Some(disk) = disk_of(&self.postgres, 16 + u32::try_from(size >> 20)?)? else {
            return skipped("this user may not mount a small disk");
        };
        let place = disk.path().join("postgres");
        db.execute(&format!("CREATE TABLESPACE small LOCATION '{}'", place.display()))?;
        db.execute("ALTER TABLE postings SET TABLESPACE small")?;
        disk.fill()?;
        self.pause(1_000, 4_000);
        disk.make_room()?;
        // A backup that is taken later shall not need the small disk.
        let db = &self.flow.ledger.db;
        db.execute("ALTER TABLE postings SET TABLESPACE pg_default")?;
        db.execute("DROP TABLESPACE small")?;
        Ok(())
    }

    fn end_sessions(&mut self) -> Result<()> {
        for _ in 0..self.random.random_range(1..5) {
            self.flow.ledger.db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'postonce-worker'",
            )?;
            self.pause(0, 300);
        }
        Ok(())
    }

    fn cut_off(&mut self) -> Result<()> {
        if self.random.random() {
            self.to_postgres.cut()
        } else {
            self.to_postgres.fall_silent()
        }
        self.pause(0, 12_000);
        self.to_postgres.calm();
        Ok(())
    }

    fn storm(&mut self) -> Result<()> {
        let (seed, lasts) = (self.random.random(), Duration::from_millis(self.random.random_range(3_000..8_000)));
        thread::scope(|scope| {
            scope.spawn(|| self.to_postgres.storm(seed, lasts));
            self.to_kafka.storm(seed.wrapping_add(1), lasts);
        });
        Ok(())
    }

    fn stop_broker(&mut self, way: fn(&mut Kafka) -> Result<()>) -> Result<()> {
        way(&mut self.kafka)?;
        self.pause(0, 3_000);
        self.kafka.start_again()
    }

    fn open_transaction(&mut self) -> Result<()> {
        let transaction = Transaction::begin(&self.kafka.bootstrap())?;
        transaction.send(&self.flow.topic, payments(&unique("transaction"), 50))?;
        self.pause(0, 4_000);
        if self.random.random() { transaction.commit() } else { transaction.abort() }
    }

    fn add_partition(&mut self) -> Result<()> {
        if self.partitions < MOST_PARTITIONS {
            self.partitions += 1;
            self.kafka.add_partitions(&self.flow.topic, self.partitions)?;
        }
        Ok(())
    }

    fn send_copies(&mut self) -> Result<()> {
        let mut messages = read_all(&self.kafka.bootstrap(), &self.flow.topic)?;
        messages.shuffle(&mut self.random);
        messages.truncate(MOST_COPIES);
        // Without a key each goes to any partition.
        let copies =
            messages.into_iter().map(|message| Message { key: None, partition: None, offset: None, ..message });
        self.flow.send(copies)
    }

    fn prove_beside_them(&mut self) -> Result<()> {
        self.proves(&["verify"])?;
        let positions: Vec<(i32, i64)> =
            self.flow.ledger.db.rows("SELECT partition, next_offset FROM streams WHERE NOT replay ORDER BY 1")?;
        let from = positions.iter().map(|(partition, next)| format!("{partition}:{}", (next - REPLAYED).max(0)));
        let from: Vec<String> = from.collect();
        self.proves(&["replay", "--execute", "--from", &from.join(",")])
    }
}

fn skipped(why: &str) -> Result<()> {
    eprintln!("soak: skipped: {why}");
    Ok(())
}
