//! Logs go to stderr: stdout carries results alone.

mod otlp;
mod repeats;

use clap::{Args, ValueEnum};
use repeats::Repeats;
use std::io::IsTerminal;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How much is logged, and in which form. The fields are named as their flags: they stand
/// beside those of every command.
#[derive(Args)]
pub struct LogArgs {
    // Behind the command's own flags in each --help.
    /// What is logged: a level (error, warn, info, debug, trace), or a filter such as
    /// `info,postonce_consumer=debug`
    #[arg(
        long,
        env = "POSTONCE_LOG",
        default_value = "info",
        value_name = "FILTER",
        global = true,
        display_order = 900
    )]
    log: String,

    /// The form of the log; by default for people on a terminal, JSON elsewhere
    #[arg(long, env = "POSTONCE_LOG_FORMAT", value_name = "FORMAT", global = true, display_order = 901)]
    log_format: Option<Format>,
}

#[derive(ValueEnum, Clone, Copy)]
enum Format {
    Human,
    Json,
}

/// What is still to be said when the process ends.
pub struct Log {
    repeats: Repeats,
    unsent: otlp::Unsent,
}

impl Log {
    pub fn finish(&self) {
        self.repeats.finish();
        self.unsent.wait();
    }
}

/// Begins to log.
pub fn start(args: &LogArgs) -> Log {
    let terminal = std::io::stderr().is_terminal();
    let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|error| {
        eprintln!("postonce: --log {}: {error}; logging at info", args.log);
        EnvFilter::new("info")
    });
    let log = Log { repeats: Repeats::default(), unsent: otlp::Unsent::default() };
    let base = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(terminal)
        // Where stderr is a pipe that nobody reads any more, the complaint about it would
        // panic: a log must not stop the money.
        .log_internal_errors(false);
    let layer = match args.log_format.unwrap_or(if terminal { Format::Human } else { Format::Json }) {
        Format::Human => base.with_target(false).boxed(),
        Format::Json => base.json().flatten_event(true).boxed(),
    };
    let filter = filter.and(log.repeats.clone()).and(filter_fn(|metadata| !otlp::is_link(metadata)));
    let spans =
        otlp::Export::from_environment(&log.unsent).map(|export| export.with_filter(filter_fn(otlp::is_exported)));
    tracing_subscriber::registry().with(layer.with_filter(filter)).with(spans).init();
    log
}
