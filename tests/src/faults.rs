//! A consumer to be mistreated, and what mistreats it from outside: barriers and
//! failures that triggers make in its database. The product knows of none of it.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce::private_postgres::free_port;
use postonce_producer::generate::{Generator, Workload};
use postonce_schema::Kinds;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Builder;

use crate::auditor::{Audited, Terms, audit};
use crate::books::Ledger;
use crate::database::Db;
use crate::http::{get, metric};
use crate::kafka::Kafka;
use crate::messages::{Message, Sender, end_offsets, read_all};
use crate::model::books;
use crate::parts::unique;
use crate::process::PostonceProcess;
use crate::wait::wait_until;

/// So short that a dead or frozen consumer's partitions move within a test.
pub const QUICK: [&str; 4] = ["-X", "session.timeout.ms=1500", "-X", "heartbeat.interval.ms=300"];

/// A running `postonce consume`, with its metrics.
pub struct Consumer {
    process: PostonceProcess,
    port: u16,
}

impl Consumer {
    /// Of this topic and group, into the database of this URL. `more` are further
    /// arguments.
    pub fn start(kafka: &Kafka, topic: &str, group: &str, url: &str, more: &[&str]) -> Result<Self> {
        Self::start_by(None, &[("KAFKA_BROKERS", &kafka.bootstrap()), ("DATABASE_URL", url)], topic, group, more)
    }

    /// By another program than the one that was just built.
    fn start_by(program: Option<&Path>, env: &[(&str, &str)], topic: &str, group: &str, more: &[&str]) -> Result<Self> {
        let port = free_port()?;
        let listen = format!("127.0.0.1:{port}");
        let own = ["consume", "--topic", topic, "--group", group, "--listen", &listen];
        let args = [&own, more].concat();
        // Who waits for the exit code does not wait for a minute; a flag in `more` says otherwise.
        let env = [env, &[("POSTONCE_STOP_LINGER", "0")]].concat();
        let process = match program {
            None => PostonceProcess::start(&args, &env)?,
            Some(program) => PostonceProcess::start_by(program, &args, &env)?,
        };
        Ok(Self { process, port })
    }

    /// The sum of a metric over its series with these labels; 0 if it has none.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let (status, page) = get(self.port, "/metrics")?;
        ensure!(status == 200, "/metrics says {status}");
        Ok(metric(&page, name, labels).unwrap_or(0.0))
    }

    /// Waits until a metric has at least this value.
    pub fn wait_metric(&self, name: &str, labels: &[(&str, &str)], least: f64, limit: Duration) -> Result<()> {
        wait_until(limit, &format!("{name}{labels:?} of {least}"), || {
            Ok((self.metric(name, labels)? >= least).then_some(()))
        })
    }

    /// How many batches were rolled back for this reason.
    pub fn failures(&self, reason: &str) -> Result<f64> {
        self.metric("postonce_transaction_failures_total", &[("reason", reason)])
    }

    /// Where it serves its pages.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The status of `/readyz`.
    pub fn ready(&self) -> Result<u16> {
        Ok(get(self.port, "/readyz")?.0)
    }

    /// Waits until `/readyz` says so.
    pub fn wait_ready(&self, status: u16, limit: Duration) -> Result<()> {
        wait_until(limit, &format!("/readyz to say {status}"), || Ok((self.ready()? == status).then_some(())))
    }

    /// SIGTERM, and the end that it must come to.
    pub fn finish(mut self) -> Result<()> {
        // Before it has begun to watch for signals, SIGTERM would end it like any process.
        wait_until(Duration::from_secs(20), "/livez", || Ok((get(self.port, "/livez")?.0 == 200).then_some(())))?;
        self.process.terminate()?;
        let status = self.process.wait(Duration::from_secs(20))?;
        ensure!(status.success(), "after SIGTERM: {status}");
        Ok(())
    }

    /// Waits for the end and its exit code, which must not be that of a signal.
    pub fn exit_code(&mut self, limit: Duration) -> Result<i32> {
        self.process.wait(limit)?.code().context("ended by a signal")
    }
}

impl Deref for Consumer {
    type Target = PostonceProcess;

    fn deref(&self) -> &PostonceProcess {
        &self.process
    }
}

impl DerefMut for Consumer {
    fn deref_mut(&mut self) -> &mut PostonceProcess {
        &mut self.process
    }
}

/// A topic, the ledger it goes into, and the group that brings it there.
pub struct Flow {
    bootstrap: String,
    pub topic: String,
    pub group: String,
    pub ledger: Ledger,
    sender: Sender,
}

impl Flow {
    pub fn new(kafka: &Kafka, ledger: Ledger, label: &str, partitions: i32) -> Result<Self> {
        Self::of(&kafka.bootstrap(), kafka.topic(label, partitions)?, ledger)
    }

    /// Of a topic that is there already.
    pub fn on(kafka: &Kafka, topic: &str, ledger: Ledger) -> Result<Self> {
        Self::of(&kafka.bootstrap(), topic.to_owned(), ledger)
    }

    /// The same, by the brokers' `host:port`.
    pub fn of(bootstrap: &str, topic: String, ledger: Ledger) -> Result<Self> {
        let sender = Sender::new(bootstrap, "lz4")?;
        Ok(Self { bootstrap: bootstrap.to_owned(), group: unique("group"), topic, ledger, sender })
    }

    /// `host:port` of its broker.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The same, with the ledger on another server by now.
    pub fn moved_to(self, url: &str) -> Self {
        Self { ledger: Ledger::at(url), ..self }
    }

    /// A consumer of the group, straight to the database.
    pub fn consume(&self, more: &[&str]) -> Result<Consumer> {
        self.consume_through(&self.ledger.url, more)
    }

    /// A consumer of the group with another way to the database.
    pub fn consume_through(&self, url: &str, more: &[&str]) -> Result<Consumer> {
        self.consume_from(&self.bootstrap, url, more)
    }

    /// A consumer of the group with another way to the broker, too.
    pub fn consume_from(&self, brokers: &str, url: &str, more: &[&str]) -> Result<Consumer> {
        let env = [("KAFKA_BROKERS", brokers), ("DATABASE_URL", url)];
        Consumer::start_by(None, &env, &self.topic, &self.group, more)
    }

    /// A consumer of the group with more variables in its environment.
    pub fn consume_in(&self, env: &[(&str, &str)], more: &[&str]) -> Result<Consumer> {
        let own = [("KAFKA_BROKERS", self.bootstrap.as_str()), ("DATABASE_URL", &self.ledger.url)];
        Consumer::start_by(None, &[&own, env].concat(), &self.topic, &self.group, more)
    }

    /// A consumer of the group by another build of `postonce`.
    pub fn consume_by(&self, program: &Path, more: &[&str]) -> Result<Consumer> {
        let env = [("KAFKA_BROKERS", self.bootstrap.as_str()), ("DATABASE_URL", &self.ledger.url)];
        Consumer::start_by(Some(program), &env, &self.topic, &self.group, more)
    }

    pub fn send(&self, messages: impl IntoIterator<Item = Message>) -> Result<()> {
        self.sender.send(&self.topic, messages)?;
        Ok(())
    }

    /// Sends a realistic [`load`].
    pub fn send_load(&self, events: u64, seed: u64) -> Result<()> {
        self.send(load(events, seed)?)
    }

    /// Waits until so many streams have an owner.
    pub fn wait_claimed(&self, streams: i64) -> Result<()> {
        wait_until(Duration::from_secs(20), "the claims", || {
            let claimed: i64 = self.ledger.db.one("SELECT count(*) FROM streams WHERE claim IS NOT NULL")?;
            Ok((claimed == streams).then_some(()))
        })
    }

    /// Waits until every offset of the topic has an outcome.
    pub fn wait_done(&self, limit: Duration) -> Result<()> {
        self.wait_offsets(self.end()?, limit)
    }

    /// How many offsets the topic has.
    pub fn end(&self) -> Result<i64> {
        Ok(end_offsets(&self.bootstrap, &self.topic)?.iter().sum())
    }

    /// Waits until at least so many offsets have an outcome.
    pub fn wait_offsets(&self, least: i64, limit: Duration) -> Result<()> {
        let mut at = 0;
        let waited = wait_until(limit, "the ledger", || {
            at = self.ledger.offsets()?;
            Ok((at >= least).then_some(()))
        });
        waited.with_context(|| format!("it is at {at} of {least} offsets"))
    }

    /// The ledger is right in itself, and each recorded outcome is right, too: how every
    /// test of a consumer ends. Nobody may be writing.
    pub fn check(&self) -> Result<()> {
        self.check_by(&Terms::shipped(Kinds::AllButJournals)?).map(drop)
    }

    /// The same, where events were accepted by these terms.
    pub fn check_by(&self, terms: &Terms) -> Result<Audited> {
        self.ledger.check()?;
        let seen = self.audit_by(terms)?;
        ensure!(seen.internal == 0, "{} messages that could be accepted were set aside", seen.internal);
        Ok(seen)
    }

    /// Each recorded outcome is right. Nobody may be writing.
    pub fn audit(&self) -> Result<Audited> {
        self.audit_by(&Terms::shipped(Kinds::AllButJournals)?)
    }

    /// The same, where events were accepted by these terms.
    pub fn audit_by(&self, terms: &Terms) -> Result<Audited> {
        audit(&self.ledger, &[(&self.bootstrap, &self.topic)], terms)
    }

    /// [`Flow::check`], and the ledger follows from the topic, all of which is still there.
    pub fn check_whole(&self) -> Result<()> {
        let seen = self.check_by(&Terms::shipped(Kinds::AllButJournals)?)?;
        ensure!(seen.gone == 0, "{} of the messages that the ledger knows are not in the topic", seen.gone);
        self.ledger.check_message_chain(&self.bootstrap, &self.topic)
    }

    /// The books are those of the naive model, which knows the events of the topic and not
    /// their order. Nobody may be writing.
    pub fn check_against_model(&self) -> Result<()> {
        let terms = Terms::shipped(Kinds::AllButJournals)?;
        let events = terms.accepted(&read_all(&self.bootstrap, &self.topic)?)?;
        let expected = books(terms.rules, events.iter().map(String::as_str));
        let found = self.ledger.model_books()?;
        ensure!(found == expected, "the model:\n{expected:#?}\nthe ledger:\n{found:#?}");
        Ok(())
    }

    /// The ledger is right, follows from the topic, and holds the same books as a run
    /// that nobody disturbed. Nobody may be writing.
    pub fn check_against_undisturbed(&self) -> Result<()> {
        self.check_whole()?;
        let quiet = Self::of(&self.bootstrap, self.topic.clone(), Ledger::fresh("undisturbed")?)?;
        let consumer = quiet.consume(&[])?;
        quiet.wait_done(Duration::from_secs(120))?;
        consumer.finish()?;
        quiet.check_whole()?;
        let (expected, found) = (quiet.ledger.books()?, self.ledger.books()?);
        ensure!(found == expected, "undisturbed:\n{expected:#?}\ndisturbed:\n{found:#?}");
        Ok(())
    }
}

/// A realistic load: duplicates, disorder, conflicts, poison.
pub fn load(events: u64, seed: u64) -> Result<impl Iterator<Item = Message>> {
    let workload =
        Workload { duplicates: 0.1, disorder: 0.1, poison: 0.01, conflicts: 0.02, ..Workload::new(events, seed) };
    Ok(Generator::new(workload)?.map(|one| Message {
        key: one.key.map(|key| key.as_bytes().to_vec()),
        value: one.value,
        ..Message::default()
    }))
}

/// Deletes the messages of a partition before an offset, as retention does.
pub fn delete_before(kafka: &Kafka, topic: &str, partition: i32, offset: i64) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = kafka.client().create()?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let deleted = runtime.block_on(admin.delete_records(&list, &AdminOptions::new()))?;
    deleted.elements().iter().try_for_each(|element| Ok(element.error()?))
}

/// A payment to `m_1` in euros: its provider owes `amount` as soon as it has succeeded.
pub fn payment(resource: &str, state: &str, time: &str, amount: i64) -> Message {
    let json = format!(
        r#"{{"type":"payment.{state}","resource":"{resource}","updatedAt":"{time}","data":{{"provider":"stripe","merchant":"m_1","currency":"EUR","amount":{amount},"fee":0}}}}"#
    );
    Message::new(json).key(resource)
}

/// So many succeeded payments of 100, each its own resource.
pub fn payments(label: &str, count: usize) -> Vec<Message> {
    (0..count)
        .map(|n| payment(&format!("stripe/{label}/pi_{n}"), "succeeded", &format!("2026-01-02T03:04:05.{n:06}Z"), 100))
        .collect()
}

impl Ledger {
    /// Each batch takes so many seconds longer, so that a load lasts for what shall happen
    /// to it, on a fast machine too. 0 takes it back.
    pub fn slow_down(&self, seconds: f64) -> Result<()> {
        self.db.execute(&format!(
            "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$"
        ))?;
        let there: bool = self.db.one("SELECT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'slow')")?;
        if !there {
            self.db
                .execute("CREATE TRIGGER slow BEFORE INSERT ON batches FOR EACH STATEMENT EXECUTE FUNCTION slow()")?;
        }
        Ok(())
    }
}

/// Whoever writes to a table waits here until the test opens. It takes no lock that
/// any of the product's statements needs.
pub struct Barrier<'l> {
    ledger: &'l Ledger,
    /// Holds the lock that the others wait for.
    holder: Db,
    key: i64,
}

impl<'l> Barrier<'l> {
    /// At the beginning of each statement that does `event` (such as `INSERT`) on `table`.
    pub fn before(ledger: &'l Ledger, event: &str, table: &str) -> Result<Self> {
        static NEXT: AtomicI64 = AtomicI64::new(1_000);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let holder = Db::new(&ledger.url);
        holder.one::<bool>(&format!("SELECT pg_try_advisory_lock({key})"))?;
        ledger.db.execute(&format!(
            "CREATE FUNCTION barrier_{key}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_advisory_lock_shared({key});
                 PERFORM pg_advisory_unlock_shared({key});
                 RETURN NULL;
             END $$;
             CREATE TRIGGER barrier_{key} BEFORE {event} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION barrier_{key}()"
        ))?;
        Ok(Self { ledger, holder, key })
    }

    /// Waits until so many have arrived.
    pub fn wait_arrived(&self, many: i64, limit: Duration) -> Result<()> {
        let key = self.key;
        wait_until(limit, &format!("{many} at the barrier"), || {
            let waiting: i64 = self.ledger.db.one(&format!(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = {key}
                 AND classid = 0 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ))?;
            Ok((waiting >= many).then_some(()))
        })
    }

    /// Lets all of them go on, and all that come later.
    pub fn open(&self) -> Result<()> {
        self.holder.one::<bool>(&format!("SELECT pg_advisory_unlock({})", self.key))?;
        Ok(())
    }
}
