//! `postonce quarantine dismiss`

use super::ChoiceArgs;
use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::cases::CHUNK;
use crate::commands::interrupt;
use crate::person::{self, PersonArgs};
use crate::{reader, table};
use anyhow::Context;
use postonce_consumer::cases::CaseError;
use postonce_consumer::cases::actions::{self, Decision};
use std::process::ExitCode;

const HELP: &str = "\
Closes the row for good: this message shall not come into the books as it is, say
because upstream has sent it corrected. The decision is kept with person, role and
reason, in the same transaction. It lives in the database alone: a ledger that is
built anew from the topic knows nothing of it, and the message is open there.

Examples:
  postonce quarantine dismiss 3f9c2a7b81d4 --why 'test traffic of 31 January, PAY-1234'
  postonce quarantine dismiss --all --code bad_json --topic staging --yes --why 'staging noise'";

/// Close refused messages that shall not be posted
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    choice: ChoiceArgs,

    /// Why: it is kept for ever
    #[arg(long, env = "POSTONCE_WHY", value_name = "TEXT", value_parser = person::why)]
    why: String,

    #[command(flatten)]
    person: PersonArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let person = args.person.name()?;
    let decision = Decision { person: &person, why: Some(&args.why) };
    let (asked, dismissed) = reader::ask(&args.database, async |connection| {
        let keys = args.choice.keys(connection, "Dismiss").await?;
        let mut dismissed = 0;
        for chunk in keys.chunks(CHUNK) {
            if interrupt::signal().is_some() {
                break;
            }
            dismissed += actions::dismiss(connection, chunk, decision).await?.len();
        }
        if let (Some(name), true) = (&args.choice.name, dismissed == 0) {
            return Err(CaseError::Changed(name.to_string()).into());
        }
        Ok((keys.len(), dismissed))
    })?;
    table::print(&match args.output.output {
        Output::Json => table::json(&serde_json::json!({ "asked": asked, "dismissed": dismissed, "person": person }))?,
        Output::Table => format!("{dismissed} of {asked} dismissed\n"),
    })?;
    Ok(interrupt::signal().map_or(ExitCode::SUCCESS, interrupt::exit_code))
}
