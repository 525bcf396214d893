//! `postonce incidents close`

use super::FilterArgs;
use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::cases::CHUNK;
use crate::commands::interrupt;
use crate::confirm::YesArgs;
use crate::person::{self, PersonArgs};
use crate::{reader, table};
use anyhow::{Context, ensure};
use postonce_consumer::cases::CaseError;
use postonce_consumer::cases::actions::{self, Decision};
use postonce_consumer::cases::incidents::{find, open_keys};
use postonce_consumer::cases::key::IncidentKey;
use postonce_consumer::cases::name::Name;
use sqlx::postgres::PgConnection;
use std::process::ExitCode;

const HELP: &str = "\
Closing says that a person has looked; it changes nothing in the books. It is kept with
person, role and reason, in the same transaction. A new conflict or regression of
the same resource opens a new incident.

Examples:
  postonce incidents close payments/3/1042 --why 'provider has confirmed the second amount'
  postonce incidents close --all --code regression --kind payout --yes --why 'known bug, PAY-77'";

/// Close incidents that a person has looked at
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// topic/partition/offset, or an event id (evt_ and eight hex digits or more)
    #[arg(env = "POSTONCE_INCIDENT", value_name = "PLACE|EVENT-ID", value_parser = Name::of_event,
          required_unless_present = "all", conflicts_with_all = ["all", "kind", "resource", "since", "until"])]
    name: Option<Name>,

    /// Every open incident that fits --code, --kind, --resource, --since and --until
    #[arg(long, env = "POSTONCE_ALL")]
    all: bool,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    yes: YesArgs,

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
    let (asked, closed) = reader::ask(&args.database, async |connection| {
        let keys = keys(&args, connection).await?;
        let mut closed = 0;
        for chunk in keys.chunks(CHUNK) {
            if interrupt::signal().is_some() {
                break;
            }
            closed += actions::close(connection, chunk, decision).await?.len();
        }
        if let (Some(name), true) = (&args.name, closed == 0) {
            return Err(CaseError::Changed(name.to_string()).into());
        }
        Ok((keys.len(), closed))
    })?;
    table::print(&match args.output.output {
        Output::Json => table::json(&serde_json::json!({ "asked": asked, "closed": closed, "person": person }))?,
        Output::Table => format!("{closed} of {asked} closed\n"),
    })?;
    Ok(interrupt::signal().map_or(ExitCode::SUCCESS, interrupt::exit_code))
}

/// The open incidents that are meant; none where the person thinks better of it.
async fn keys(args: &Args, connection: &mut PgConnection) -> anyhow::Result<Vec<IncidentKey>> {
    let Some(name) = &args.name else {
        let keys = open_keys(connection, &args.filter.filter(false)).await?;
        let many = keys.len();
        ensure!(many > 0, "no open incident fits; `postonce incidents list` shows those there are");
        let go_on = args.yes.confirm(&format!("Close {many} incident{}", if many == 1 { "" } else { "s" }))?;
        return Ok(if go_on { keys } else { Vec::new() });
    };
    let incident = find(connection, name, args.filter.code.as_deref()).await?;
    incident.check_open()?;
    Ok(vec![incident.key()])
}
