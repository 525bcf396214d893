//! What the commands that read the topic again have in common.

use crate::args::{DatabaseArgs, DecoderArgs, KafkaArgs};
use crate::commands::interrupt;
use postonce_consumer::config::{GroupProtocol, Kafka};
use postonce_consumer::replay::{ReplayError, Span};
use std::fmt::Write as _;
use std::process::ExitCode;

/// It ran well, and ledger and topic do not say the same.
const DIFFERENT: u8 = 3;

/// The topic, the ledger, and how messages become events.
#[derive(clap::Args)]
pub struct RereadArgs {
    #[command(flatten)]
    pub kafka: KafkaArgs,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub decoder: DecoderArgs,

    /// Threads, each with a Kafka consumer and a Postgres connection of its own; by
    /// default one for each core. More than the topic has partitions do nothing
    #[arg(long, env = "POSTONCE_WORKERS", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,

    /// Go on although the broker cannot tell the topic's id. Only for test doubles
    #[arg(long, env = "POSTONCE_UNIDENTIFIED_TOPIC")]
    unidentified_topic: bool,
}

impl RereadArgs {
    pub fn kafka(&self) -> Kafka {
        Kafka {
            brokers: self.kafka.brokers.clone(),
            topic: self.kafka.topic.name.clone(),
            // No group is joined.
            group: String::new(),
            protocol: GroupProtocol::Classic,
            properties: self.kafka.client.properties.clone(),
            unidentified_topic: self.unidentified_topic,
        }
    }

    pub fn workers(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.map_or_else(cores, usize::from)
    }
}

/// What the log does not hold any more, and what follows for the reading.
pub fn push_gone(out: &mut String, spans: &[Span], so: &str) {
    for span in spans.iter().filter(|span| span.deleted() > 0) {
        let Span { partition, log_start, live, .. } = span;
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "partition {partition}: retention has deleted {} offsets, up to {log_start}: {so}",
            span.deleted()
        );
        if let Some(live) = live.filter(|live| live.next_offset < *log_start) {
            let (at, lost) = (live.next_offset, log_start.saturating_sub(live.next_offset));
            let _ = writeln!(
                out,
                "partition {partition}: {lost} of them the ledger has never read, it stands at {at}: `postonce consume` \
                 says what to do"
            );
        }
    }
}

/// 0 or 3.
pub fn exit_code(equal: bool) -> ExitCode {
    if equal { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) }
}

/// A signal ends it as a shell has it; whatever else is an error.
pub fn end(error: ReplayError) -> anyhow::Result<ExitCode> {
    match error {
        ReplayError::Interrupted => Ok(interrupt::signal().map_or(ExitCode::FAILURE, interrupt::exit_code)),
        // It has an exit code of its own.
        ReplayError::Stop(stop) => Err(stop.into()),
        error => Err(error.into()),
    }
}
