//! `postonce incidents`: what was accepted and should be looked at.

mod close;
mod list;
mod show;

use crate::reader;
use clap::{Args as ClapArgs, Subcommand};
use postonce_consumer::cases::incidents::Filter;
use postonce_schema::Timestamp;
use std::process::ExitCode;

const HELP: &str = "\
conflict: one event id came with two contents; both are kept and the greater
fingerprint stands. regression: a state of lower rank is later in time than the one
that stands. restatement: the same state again with other money. None of them stops
anything, and the books are right by the rules: a person looks whether the rules
are. The way to correct a resource is an event with a later updatedAt.

An incident is named by its place, topic/partition/offset, or by eight digits or more
of its event's id; --code chooses where one event has several.";

/// Show what should be looked at, and close it
#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Close(close::Args),
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Close(args) => close::run(args),
    }
}

/// Which incidents.
#[derive(ClapArgs, Clone)]
struct FilterArgs {
    /// Only this code: conflict, regression or restatement
    #[arg(long, env = "POSTONCE_CODE", value_parser = ["conflict", "regression", "restatement"])]
    code: Option<String>,

    /// Only of resources of this kind, such as payment
    #[arg(long, env = "POSTONCE_KIND")]
    kind: Option<String>,

    /// Only of this resource, such as stripe/acct_1/pi_3Nf
    #[arg(long, env = "POSTONCE_RESOURCE")]
    resource: Option<String>,

    /// Only those opened at or after this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_SINCE", value_name = "TIME", value_parser = reader::time)]
    since: Option<Timestamp>,

    /// Only those opened before this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_UNTIL", value_name = "TIME", value_parser = reader::time)]
    until: Option<Timestamp>,
}

impl FilterArgs {
    fn filter(&self, all_states: bool) -> Filter {
        Filter {
            all_states,
            code: self.code.clone(),
            kind: self.kind.clone(),
            resource: self.resource.clone(),
            since: self.since,
            until: self.until,
        }
    }
}
