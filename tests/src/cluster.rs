//! Three Apache Kafka nodes, each broker and controller, that copy each other's logs.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce::child_process;
use postonce::private_postgres::free_port;
use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use tempfile::TempDir;

use crate::kafka::{cluster_id, java, make_topic, quiet_client};
use crate::parts::{repository, unique};
use crate::wait::wait_until;

const LIMIT: Duration = Duration::from_secs(90);
/// Small heaps, one thread for each job: three of them run beside everything else.
const JAVA: [&str; 4] = ["-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];

/// A cluster with its own data. Two of the nodes are enough for it to decide. Dropping it
/// kills them and removes the data.
pub struct Cluster {
    directory: TempDir,
    nodes: Vec<Node>,
}

struct Node {
    /// From 1 on.
    id: i32,
    port: u16,
    controller: u16,
    process: Option<Child>,
}

/// Who leads a partition, and who has all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Led {
    pub leader: i32,
    pub in_sync: Vec<i32>,
}

impl Cluster {
    /// Formats and starts three nodes.
    pub fn start() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("postonce-cluster-").tempdir()?;
        let node = |id| Ok(Node { id, port: free_port()?, controller: free_port()?, process: None });
        let mut cluster = Self { directory, nodes: (1..=3).map(node).collect::<Result<_>>()? };
        cluster.format()?;
        for id in 1..=3 {
            cluster.spawn(id)?;
        }
        cluster.wait_brokers(3)?;
        Ok(cluster)
    }

    /// All three, for a client.
    pub fn bootstrap(&self) -> String {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect::<Vec<_>>().join(",")
    }

    /// SIGKILL.
    pub fn kill(&mut self, id: i32) -> Result<()> {
        if let Some(mut process) = self.node(id)?.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Starts a node again on its port and data, without waiting for it.
    pub fn spawn(&mut self, id: i32) -> Result<()> {
        let (properties, log) = (self.path(id, "properties"), self.path(id, "log"));
        let node = self.node(id)?;
        ensure!(node.process.is_none(), "node {id} is running already");
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = java(&JAVA);
        command.arg("kafka.Kafka").arg(properties).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        node.process = Some(child_process::spawn_bound(command, libc::SIGKILL).context("cannot start java")?);
        Ok(())
    }

    /// A topic whose partitions each have their copies on these nodes; the first leads.
    pub fn topic(&self, label: &str, replicas: &[&[i32]], config: &[(&str, &str)]) -> Result<String> {
        let name = unique(label);
        let mut topic = NewTopic::new(&name, replicas.len().try_into()?, TopicReplication::Variable(replicas));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        make_topic(&self.client(), &topic)?;
        Ok(name)
    }

    /// Waits until this holds for each partition of a topic.
    pub fn wait_led(&self, topic: &str, what: &str, holds: impl Fn(&Led) -> bool) -> Result<()> {
        let mut last = Vec::new();
        let waited = wait_until(LIMIT, what, || {
            last = self.led(topic)?;
            Ok((!last.is_empty() && last.iter().all(&holds)).then_some(()))
        });
        waited.with_context(|| format!("{topic}: {last:?}\n{}", self.log_tails()))
    }

    /// Who leads each partition, by its number.
    pub fn led(&self, topic: &str) -> Result<Vec<Led>> {
        let probe: BaseConsumer = self.client().create()?;
        let metadata = probe.fetch_metadata(Some(topic), Duration::from_secs(5))?;
        let mut partitions: Vec<_> = metadata.topics().iter().flat_map(|topic| topic.partitions()).collect();
        partitions.sort_by_key(|partition| partition.id());
        let led = |partition: &&rdkafka::metadata::MetadataPartition| {
            let mut in_sync = partition.isr().to_vec();
            in_sync.sort_unstable();
            Led { leader: partition.leader(), in_sync }
        };
        Ok(partitions.iter().map(led).collect())
    }

    fn wait_brokers(&self, many: usize) -> Result<()> {
        let probe: BaseConsumer = self.client().create()?;
        let waited = wait_until(LIMIT, &format!("{many} brokers"), || {
            let metadata = probe.fetch_metadata(None, Duration::from_millis(500))?;
            Ok((metadata.brokers().len() >= many).then_some(()))
        });
        waited.with_context(|| self.log_tails())
    }

    fn client(&self) -> ClientConfig {
        quiet_client(&self.bootstrap())
    }

    fn node(&mut self, id: i32) -> Result<&mut Node> {
        self.nodes.iter_mut().find(|node| node.id == id).with_context(|| format!("there is no node {id}"))
    }

    fn path(&self, id: i32, what: &str) -> PathBuf {
        self.directory.path().join(format!("{id}.{what}"))
    }

    /// The three at once: a Java process takes a second to say that it has begun.
    fn format(&self) -> Result<()> {
        let cluster = cluster_id();
        let mut running = Vec::new();
        for node in &self.nodes {
            let properties = self.path(node.id, "properties");
            fs::write(&properties, self.properties(node)?)?;
            running.push((node.id, self.format_node(&cluster, &properties, node.id)?));
        }
        for (id, mut process) in running {
            let status = process.wait()?;
            ensure!(status.success(), "cannot format node {id} ({status}):\n{}", self.log_tails());
        }
        Ok(())
    }

    fn format_node(&self, cluster: &str, properties: &Path, id: i32) -> Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.path(id, "log"))?;
        let mut command = java(&JAVA);
        command
            .args(["kafka.tools.StorageTool", "format", "-t", cluster, "-c"])
            .arg(properties)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        child_process::spawn_bound(command, libc::SIGKILL).context("cannot run java")
    }

    /// A later line wins over an earlier one.
    fn properties(&self, node: &Node) -> Result<String> {
        let common = fs::read_to_string(repository().join("tests/kafka/server.properties"))?;
        let Node { id, port, controller, .. } = node;
        let voters: Vec<String> =
            self.nodes.iter().map(|node| format!("{}@127.0.0.1:{}", node.id, node.controller)).collect();
        Ok(format!(
            "{common}
            node.id={id}
            listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
            advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
            controller.quorum.voters={}
            log.dirs={}
            offsets.topic.replication.factor=3
            offsets.topic.num.partitions=1
            transaction.state.log.replication.factor=3
            # A follower that is gone leaves the set of those in sync within a test.
            replica.lag.time.max.ms=2000
            controller.quorum.election.timeout.ms=500
            controller.quorum.fetch.timeout.ms=1500
            ",
            voters.join(","),
            self.path(*id, "data").display()
        ))
    }

    fn log_tails(&self) -> String {
        let tail = |node: &Node| {
            let text = fs::read_to_string(self.path(node.id, "log")).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("--- node {}:\n{}", node.id, lines[lines.len().saturating_sub(10)..].join("\n"))
        };
        self.nodes.iter().map(tail).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for id in 1..=3 {
            let _ = self.kill(id);
        }
    }
}
