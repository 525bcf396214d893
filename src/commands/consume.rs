//! `postonce consume`: the topic into the ledger, for as long as the process lives.

use crate::args::{self, DatabaseArgs, DecoderArgs, KafkaArgs};
use crate::commands::interrupt;
use crate::person::PersonArgs;
use anyhow::Context;
use clap::ValueEnum;
use postonce_consumer::accept::{Accepted, Gap};
use postonce_consumer::config::{self, Config, GroupProtocol, Kafka};
use postonce_consumer::database::Database;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Post the topic's events into the ledger, each exactly once
///
/// Runs until SIGTERM or SIGINT, and finishes what it has begun. Start as many as
/// you like, on as many machines: Kafka's group shares the partitions out.
#[derive(clap::Args)]
#[command(after_long_help = "\
Exit codes: 0 after SIGTERM or SIGINT, 1 an error, 2 wrong usage, 10 the topic is another one
(deleted and made again, or another cluster), 11 a gap (offsets deleted before they were read),
12 the log ends before the ledger's offset, 13 the rules file contradicts the rules in use,
14 the ledger contradicts itself, 15 an offset that cannot be read.

Examples:
  postonce consume -b localhost:9092 --database-url postgres://postonce@localhost/ledger
  postonce consume --workers 4 --listen 9464
  postonce consume --accept-gap 0:120-355 --person ada
  postonce consume -X security.protocol=SASL_SSL -X sasl.mechanisms=SCRAM-SHA-512 \\
                   -X sasl.username=postonce -X sasl.password=\"$PASSWORD\"")]
pub struct Args {
    #[command(flatten)]
    kafka: KafkaArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    /// The consumer group, which shares the partitions out. Offsets are kept in Postgres:
    /// Kafka hears of them for lag tools only
    #[arg(long, short = 'g', env = "POSTONCE_GROUP", default_value = "postonce")]
    group: String,

    /// Which protocol the group speaks: classic (cooperative-sticky), or consumer
    /// (KIP-848, Kafka 4 and later)
    #[arg(long, env = "POSTONCE_GROUP_PROTOCOL", default_value = "classic")]
    group_protocol: Protocol,

    /// Threads, each with a Kafka consumer and a Postgres connection of its own. More
    /// than the topic has partitions do nothing
    #[arg(long, env = "POSTONCE_WORKERS", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,

    /// The most messages in one transaction (a quiet topic makes small ones by itself)
    #[arg(long, env = "POSTONCE_BATCH", default_value_t = config::BATCH_MESSAGES, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    #[command(flatten)]
    decoder: DecoderArgs,

    /// Where to serve /metrics, /livez and /readyz; nowhere by default. A port alone, such as
    /// 9464, is for this machine only; 0.0.0.0:9464 is for whoever reaches it
    #[arg(long, env = "POSTONCE_LISTEN", value_name = "[ADDRESS:]PORT", value_parser = args::listen)]
    listen: Option<SocketAddr>,

    /// For how many seconds these pages are served on when a person is needed (exit codes 10
    /// to 15), so that Prometheus sees why; SIGTERM or SIGINT ends it at once. By default 60
    /// with --listen; without it there is nothing to wait for
    #[arg(long, env = "POSTONCE_STOP_LINGER", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=86_400))]
    stop_linger: Option<u32>,

    /// Go on with the topic of this id, from its first message, although the ledger knows
    /// another of that name (exit code 10 prints the flag). What is posted already comes as
    /// duplicates; what was unread in the other one is not read any more. Needed once
    #[arg(long, env = "POSTONCE_ACCEPT_LINEAGE", value_name = "TOPIC_ID")]
    accept_lineage: Option<String>,

    /// Go on without these offsets, both ends included, that were deleted before they were
    /// read (exit code 11 prints the flag); they are written down as lost. Repeatable
    #[arg(long, env = "POSTONCE_ACCEPT_GAP", value_name = "[PARTITION:]FROM-TO", value_delimiter = ',')]
    accept_gap: Vec<Gap>,

    #[command(flatten)]
    person: PersonArgs,

    /// After how many seconds a partition that has messages, and of which none comes, ends
    /// the worker's connections; it begins anew
    #[arg(long, env = "POSTONCE_STUCK_AFTER", default_value = "60", value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(5..=3600))]
    stuck_after: u32,

    /// For how many hours back the ledger must be able to heal from the topic: the age of the
    /// oldest backup that may be put back, and the time to notice it and to read again. A topic
    /// that keeps its messages for less is warned of
    #[arg(long, env = "POSTONCE_RECOVERY_WINDOW_HOURS", default_value = "168", value_name = "HOURS",
          value_parser = clap::value_parser!(u32).range(1..))]
    recovery_window_hours: u32,

    /// Go on although the broker cannot tell the topic's id and policy. Only for test
    /// doubles: a topic that was deleted and made again would not be noticed
    #[arg(long, env = "POSTONCE_UNIDENTIFIED_TOPIC")]
    unidentified_topic: bool,
}

#[derive(ValueEnum, Clone, Copy)]
pub enum Protocol {
    Classic,
    Consumer,
}

impl From<Protocol> for GroupProtocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Classic => Self::Classic,
            Protocol::Consumer => Self::Consumer,
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let config = config(args)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), brokers = %config.kafka.brokers, topic = %config.kafka.topic,
        group = %config.kafka.group, database = %config.database, workers = config.workers, "consumer starts"
    );
    postonce_consumer::consume::consume(config, &|| interrupt::signal().is_some())?;
    tracing::info!("consumer done");
    Ok(ExitCode::SUCCESS)
}

fn config(args: Args) -> anyhow::Result<Config> {
    let decoder = args.decoder.read()?;
    let accepts = args.accept_lineage.is_some() || !args.accept_gap.is_empty();
    let accepted = Accepted {
        topic_id: args.accept_lineage,
        gaps: args.accept_gap,
        // Who accepts nothing needs no name.
        person: if accepts { args.person.name()? } else { String::new() },
    };
    Ok(Config {
        database: Database::new(&args.database.database_url, &args.database.schema)?,
        kafka: Kafka {
            brokers: args.kafka.brokers,
            topic: args.kafka.topic.name,
            group: args.group,
            protocol: args.group_protocol.into(),
            properties: args.kafka.client.properties,
            unidentified_topic: args.unidentified_topic,
        },
        decoder,
        workers: usize::from(args.workers),
        batch_messages: usize::try_from(args.batch)?,
        listen: args.listen,
        stop_linger: args
            .listen
            .map_or(Duration::ZERO, |_| Duration::from_secs(u64::from(args.stop_linger.unwrap_or(60)))),
        accepted,
        stuck_after: Duration::from_secs(u64::from(args.stuck_after)),
        recovery_window: Duration::from_secs(u64::from(args.recovery_window_hours) * 3_600),
    })
}
