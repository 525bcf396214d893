//! An Apache Kafka broker in KRaft mode, as plain Java processes.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postonce::child_process;
use postonce::private_postgres::free_port;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::certificates::Authority;
use crate::parts::{repository, unique};
use crate::secured::Secured;
use crate::wait::wait_until;

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const PORT_TRIES: usize = 3;

/// A broker with its own data. Dropping it kills it and removes the data.
pub struct Kafka {
    directory: TempDir,
    port: u16,
    /// Where the broker listens for those who come through `advertised`, and what it
    /// tells them to call.
    behind: Option<(u16, u16)>,
    secured: Option<Secured>,
    broker: Option<Child>,
}

impl Kafka {
    /// Formats a new cluster and starts its only node.
    pub fn start() -> Result<Self> {
        Self::start_with(None, None)
    }

    /// The same, with the listeners of [`Secured`] beside the open one.
    pub fn start_secured(trusted: &Authority) -> Result<Self> {
        Self::start_with(None, Some(trusted))
    }

    /// The same, with a second listener that sends its clients to this port: somebody
    /// there must bring them to [`Kafka::behind_port`].
    pub fn start_behind(advertised: u16) -> Result<Self> {
        Self::start_with(Some(advertised), None)
    }

    fn start_with(advertised: Option<u16>, trusted: Option<&Authority>) -> Result<Self> {
        let mut tries = 1;
        loop {
            match Self::start_once(advertised, trusted) {
                // Somebody took a port between our look and the broker's bind.
                Err(error) if tries < PORT_TRIES && format!("{error:#}").contains("Address already in use") => {
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    fn start_once(advertised: Option<u16>, trusted: Option<&Authority>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("postonce-kafka-").tempdir()?;
        let behind = advertised.map(|port| Ok::<_, anyhow::Error>((free_port()?, port))).transpose()?;
        let secured = trusted.map(|trusted| Secured::new(trusted, directory.path())).transpose()?;
        let mut kafka = Self { directory, port: free_port()?, behind, secured, broker: None };
        kafka.write_properties(free_port()?)?;
        kafka.format()?;
        kafka.start_again()?;
        Ok(kafka)
    }

    /// `host:port` for a client.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The broker's process; none while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.broker.as_ref().map(Child::id)
    }

    /// The second listener's own port; 0 if there is none.
    pub fn behind_port(&self) -> u16 {
        self.behind.map_or(0, |(port, _)| port)
    }

    /// The listeners that want TLS, of a broker that was started so.
    pub fn secured(&self) -> &Secured {
        self.secured.as_ref().expect("a broker of start_secured")
    }

    /// SIGTERM: the broker closes its log in order.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut broker) = self.broker.take() {
            child_process::signal(&mut broker, libc::SIGTERM)?;
            if child_process::wait_at_most(&mut broker, STOP_LIMIT)?.is_none() {
                broker.kill()?;
                broker.wait()?;
                bail!("the broker did not stop within {} s", STOP_LIMIT.as_secs());
            }
        }
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut broker) = self.broker.take() {
            broker.kill()?;
            broker.wait()?;
        }
        Ok(())
    }

    /// Starts a stopped broker on the same port and data.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.broker.is_none(), "the broker is already running");
        let log = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let mut command = java(&["-Xms256m", "-Xmx768m"]);
        command
            .arg("kafka.Kafka")
            .arg(self.properties_path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.broker = Some(child_process::spawn_bound(command, libc::SIGKILL).context("cannot start java")?);
        let probe: BaseConsumer = self.client().create()?;
        let ready = wait_until(START_LIMIT, "the broker's answer", || {
            let Some(broker) = self.broker.as_mut() else { bail!("the broker is gone") };
            if let Some(status) = broker.try_wait()? {
                return Ok(Some(Err(status)));
            }
            let metadata = probe.fetch_metadata(None, Duration::from_millis(200))?;
            Ok((!metadata.brokers().is_empty()).then_some(Ok(())))
        });
        match ready {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => bail!("the broker ended at its start ({status}):\n{}", self.log_tail(30)),
            Err(error) => Err(error.context(self.log_tail(30))),
        }
    }

    /// Makes a topic with a name of its own, which begins with `label`.
    pub fn topic(&self, label: &str, partitions: i32) -> Result<String> {
        let name = unique(label);
        self.create_topic(&name, partitions, &[])?;
        Ok(name)
    }

    /// Makes a topic and waits until clients can see it.
    pub fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) -> Result<()> {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        make_topic(&self.client(), &topic)
    }

    /// Adds partitions to a topic, up to so many.
    pub fn add_partitions(&self, name: &str, partitions: usize) -> Result<()> {
        let more = NewPartitions::new(name, partitions);
        self.admin(async |admin| Ok(admin.create_partitions([&more], &AdminOptions::new()).await?.remove(0)))?
            .map_err(|(_, code)| anyhow::anyhow!("cannot add partitions to {name}: {code}"))?;
        Ok(())
    }

    /// The file that holds the first messages of a partition. To be altered only while the
    /// broker is stopped.
    pub fn segment(&self, topic: &str, partition: i32) -> Result<PathBuf> {
        let path = self.directory.path().join(format!("data/{topic}-{partition}/{:020}.log", 0));
        ensure!(path.is_file(), "there is no {}", path.display());
        Ok(path)
    }

    /// Deletes a topic and waits until it is gone.
    pub fn delete_topic(&self, name: &str) -> Result<()> {
        self.admin(async |admin| Ok(admin.delete_topics(&[name], &AdminOptions::new()).await?.remove(0)))?
            .map_err(|(_, code)| anyhow::anyhow!("cannot delete topic {name}: {code}"))?;
        let probe: BaseConsumer = self.client().create()?;
        wait_until(Duration::from_secs(20), "the end of a topic", || {
            let metadata = probe.fetch_metadata(None, Duration::from_secs(2))?;
            Ok((!metadata.topics().iter().any(|topic| topic.name() == name)).then_some(()))
        })
    }

    /// The configuration of a client of this broker, to be built upon.
    pub fn client(&self) -> ClientConfig {
        quiet_client(&self.bootstrap())
    }

    /// The last lines of the broker's log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = fs::read_to_string(self.log_path()).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    fn admin<T>(&self, ask: impl AsyncFnOnce(&AdminClient<DefaultClientContext>) -> Result<T>) -> Result<T> {
        admin(&self.client(), ask)
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("broker.log")
    }

    fn properties_path(&self) -> PathBuf {
        self.directory.path().join("server.properties")
    }

    fn write_properties(&self, controller: u16) -> Result<()> {
        let common = fs::read_to_string(repository().join("tests/kafka/server.properties"))?;
        let (port, data) = (self.port, self.directory.path().join("data"));
        let (inner, outer) = match self.behind {
            None => (String::new(), String::new()),
            Some((inner, outer)) => (format!(",BEHIND://127.0.0.1:{inner}"), format!(",BEHIND://127.0.0.1:{outer}")),
        };
        let more = self.secured.as_ref().map(Secured::listeners).unwrap_or_default();
        let own = format!(
            "listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{inner}{more}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{outer}{more}\n\
             controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n\
             log.dirs={}\n",
            data.display()
        );
        let tls = self.secured.as_ref().map(Secured::properties).unwrap_or_default();
        Ok(fs::write(self.properties_path(), common + &own + &tls)?)
    }

    fn format(&self) -> Result<()> {
        ensure!(
            libraries().join("kafka-tools.complete").is_file(),
            "Apache Kafka is not in {}: run `./setup.sh test` first",
            libraries().display()
        );
        let log = File::create(self.log_path())?;
        let status = java(&["-Xmx256m", "-XX:TieredStopAtLevel=1"])
            .args(["kafka.tools.StorageTool", "format", "--standalone", "-t", &cluster_id(), "-c"])
            .arg(self.properties_path())
            .args(self.secured.iter().flat_map(Secured::format_arguments))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()
            .context("cannot run java")?;
        ensure!(status.success(), "cannot format the broker's storage ({status}):\n{}", self.log_tail(20));
        Ok(())
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The configuration of a client that does not tell of brokers that start or are gone.
pub(crate) fn quiet_client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config.set_log_level(rdkafka::config::RDKafkaLogLevel::Emerg);
    config
}

fn admin<T>(
    client: &ClientConfig,
    ask: impl AsyncFnOnce(&AdminClient<DefaultClientContext>) -> Result<T>,
) -> Result<T> {
    let admin: AdminClient<DefaultClientContext> = client.create()?;
    Builder::new_current_thread().enable_all().build()?.block_on(ask(&admin))
}

/// Makes a topic and waits until each of its partitions has a leader.
pub(crate) fn make_topic(client: &ClientConfig, topic: &NewTopic<'_>) -> Result<()> {
    let name = topic.name;
    // A broker that answers may not have told its controller yet that it is there. A try
    // whose answer was lost may have made it.
    wait_until(START_LIMIT, "a new topic", || {
        match admin(client, async |admin| Ok(admin.create_topics([topic], &AdminOptions::new()).await?.remove(0)))? {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(Some(())),
            Err((_, code)) => bail!("cannot create topic {name}: {code}"),
        }
    })?;
    let probe: BaseConsumer = client.create()?;
    wait_until(Duration::from_secs(20), "the leaders of a new topic", || {
        let metadata = probe.fetch_metadata(Some(name), Duration::from_secs(2))?;
        let led = metadata.topics().iter().flat_map(|topic| topic.partitions()).filter(|part| part.leader() >= 0);
        Ok((led.count() == usize::try_from(topic.num_partitions)?).then_some(()))
    })
}

/// Where `setup.sh` puts the jars.
pub(crate) fn libraries() -> PathBuf {
    repository().join("target/kafka/lib")
}

pub(crate) fn java(options: &[&str]) -> Command {
    let home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    let mut command = Command::new(home.filter(|java| java.is_file()).unwrap_or_else(|| PathBuf::from("java")));
    command
        .args(options)
        .arg(format!("-Dlog4j2.configurationFile={}", repository().join("tests/kafka/log4j2.properties").display()))
        .arg("-cp")
        .arg(libraries().join("*"));
    command
}

/// 16 random bytes in URL-safe base64, as `StorageTool random-uuid` prints
/// them, without the second that a Java process takes. Digits of base 16 are
/// also digits of base 64; the last of 22 has four bits that must be zero.
pub(crate) fn cluster_id() -> String {
    let random: u128 = rand::random();
    format!("{:0>32x}", random)[..21].to_owned() + "A"
}
