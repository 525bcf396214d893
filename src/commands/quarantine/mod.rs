//! `postonce quarantine`: the refused messages, and what a person does about them.

mod dismiss;
mod list;
mod resend;
mod retry;
mod show;

use crate::confirm::YesArgs;
use crate::reader;
use anyhow::ensure;
use clap::{Args as ClapArgs, Subcommand};
use postonce_consumer::cases::key::MessageKey;
use postonce_consumer::cases::name::Name;
use postonce_consumer::cases::quarantine::{Filter, find, open_keys};
use postonce_schema::Timestamp;
use sqlx::postgres::PgConnection;
use std::process::ExitCode;

const HELP: &str = "\
A message is named by its id, the SHA-256 of its key, value and headers (eight digits
or more of it, as `list` shows them), or by a place where it was refused,
topic/partition/offset. One message may have been refused under several codes: then
--code chooses one, and without it all of them are meant.

A closed row stays closed, whatever comes: the same bytes refused again count on
in it (times seen, last seen) and wake nobody. Event ids and balances never
change by anything done here.";

/// Show the refused messages, send them again, or dismiss them
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
    Retry(retry::Args),
    Dismiss(dismiss::Args),
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Retry(args) => retry::run(args),
        Command::Dismiss(args) => dismiss::run(args),
    }
}

/// Which refused messages.
#[derive(ClapArgs, Clone)]
struct FilterArgs {
    /// Only those refused with this code, such as unknown_type
    #[arg(long, env = "POSTONCE_CODE")]
    code: Option<String>,

    /// Only those first refused in this topic
    #[arg(long = "topic", id = "of_topic", env = "POSTONCE_CASES_TOPIC", value_name = "TOPIC")]
    topic: Option<String>,

    /// Only those that the ledger first refused at or after this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_SINCE", value_name = "TIME", value_parser = reader::time)]
    since: Option<Timestamp>,

    /// Only those that the ledger first refused before this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_UNTIL", value_name = "TIME", value_parser = reader::time)]
    until: Option<Timestamp>,
}

impl FilterArgs {
    fn filter(&self, all_states: bool) -> Filter {
        Filter { all_states, code: self.code.clone(), topic: self.topic.clone(), since: self.since, until: self.until }
    }
}

/// Which messages are to be decided: one, or all that fit.
#[derive(ClapArgs, Clone)]
struct ChoiceArgs {
    /// An id (eight hex digits or more), or topic/partition/offset
    #[arg(env = "POSTONCE_MESSAGE", value_name = "ID|PLACE", value_parser = Name::of_message,
          required_unless_present = "all", conflicts_with_all = ["all", "of_topic", "since", "until"])]
    name: Option<Name>,

    /// Every open message that fits --code, --topic, --since and --until
    #[arg(long, env = "POSTONCE_ALL")]
    all: bool,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    yes: YesArgs,
}

impl ChoiceArgs {
    /// The open rows that are meant; none where nothing fits or the person thinks better of it.
    async fn keys(&self, connection: &mut PgConnection, what: &str) -> anyhow::Result<Vec<MessageKey>> {
        let Some(name) = &self.name else {
            let keys = open_keys(connection, &self.filter.filter(false)).await?;
            let many = keys.len();
            ensure!(many > 0, "no open message fits; `postonce quarantine list` shows those there are");
            let go_on =
                self.yes.confirm(&format!("{what} {many} refused message{}", if many == 1 { "" } else { "s" }))?;
            return Ok(if go_on { keys } else { Vec::new() });
        };
        let rows = find(connection, name, self.filter.code.as_deref()).await?;
        let open: Vec<MessageKey> = rows.iter().filter(|row| row.closed_at.is_none()).map(|row| row.key()).collect();
        if let (Some(closed), true) = (rows.first(), open.is_empty()) {
            closed.check_open()?;
        }
        Ok(open)
    }
}
