//! `postonce config check`: whether the settings are right, and whether they lead somewhere.

use super::{database, kafka};
use crate::args::{ClientArgs, DecoderArgs, Output, OutputArgs, TopicArgs};
use crate::cli::told;
use crate::commands::consume::Protocol;
use crate::remedy::remedy;
use crate::settings::Settings;
use crate::table;
use clap::Command;
use postonce_consumer::config;
use postonce_consumer::database::Database;
use postonce_consumer::stream::Stream;
use serde::Serialize;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
All that is wrong with the file is told at once, each with its line and what to do.
Rules, Kafka properties and the Postgres URL are those that `consume` would use: flags
and environment count too, and [consume] wins over what stands before it.

Exit codes: 0 all is right (warnings may be there), 1 an error, 2 wrong usage,
3 something must be mended.

Examples:
  postonce config check --config postonce.toml
  postonce config check --config postonce.toml --connect
  DATABASE_URL_FILE=/run/secrets/url postonce config check --connect -b localhost:9092";

/// Check the file of settings, and with --connect what it leads to
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Ask Kafka for the cluster and the topic, and Postgres for its version, the ledger's
    /// migrations and the settings that the promises rest on
    #[arg(long, env = "POSTONCE_CONFIG_CONNECT")]
    connect: bool,

    /// Kafka bootstrap servers, `host:port[,host:port…]`
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    brokers: Option<String>,

    #[command(flatten)]
    topic: TopicArgs,

    #[command(flatten)]
    client: ClientArgs,

    /// Which protocol the group speaks: it decides which Kafka properties there are
    #[arg(long, env = "POSTONCE_GROUP_PROTOCOL", default_value = "classic")]
    group_protocol: Protocol,

    /// Postgres, `postgres://user:password@host:port/database`
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,

    /// The Postgres schema that holds the ledger
    #[arg(long, env = "POSTONCE_SCHEMA", default_value = "postonce")]
    schema: String,

    #[command(flatten)]
    decoder: DecoderArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// What one question came to.
#[derive(Serialize)]
pub struct Finding {
    check: &'static str,
    result: Grade,
    what: String,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    Warning,
    Problem,
}

impl Finding {
    pub fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, result: Grade::Ok, what: what.into() }
    }

    pub fn warning(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, result: Grade::Warning, what: what.into() }
    }

    pub fn problem(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, result: Grade::Problem, what: what.into() }
    }

    /// An error of Kafka or Postgres, where its cause is set, and what can be done about it.
    pub fn failed(check: &'static str, place: &str, error: &anyhow::Error) -> Self {
        let remedy = remedy(error).map(|remedy| remedy.split_whitespace().collect::<Vec<_>>().join(" "));
        let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        Self::problem(check, format!("{place}: {}{remedy}", told(error)))
    }
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Finding>,
}

pub fn run(args: Args, cli: &Command, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    let settings = file.map(|path| Settings::read(path, cli)).transpose()?;
    let mut checks = Vec::new();
    match (&settings, file) {
        (Some(settings), Some(path)) => checks.extend(of_file(settings, path, cli)?),
        _ => checks.push(Finding::ok("file", "none: --config and POSTONCE_CONFIG name no file")),
    }
    checks.push(rules(&args.decoder));
    checks.extend(of_kafka(&args, settings.as_ref()));
    checks.extend(of_postgres(&args, settings.as_ref())?);
    let ok = checks.iter().all(|finding| finding.result != Grade::Problem);
    let report = Report { ok, checks };
    table::print(&match output {
        Output::Json => table::json(&report)?,
        Output::Table => as_text(&report),
    })?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

fn of_file(settings: &Settings, path: &Path, cli: &Command) -> anyhow::Result<Vec<Finding>> {
    let mut found: Vec<Finding> =
        settings.problems.iter().map(|problem| Finding::problem("file", problem.to_string())).collect();
    if found.is_empty() {
        found.push(Finding::ok("file", format!("{}: {} settings", path.display(), settings.len())));
    }
    let mode = std::fs::metadata(path)?.permissions().mode();
    if settings.holds_secrets(cli) && mode & 0o077 != 0 {
        let what = "holds a password, and others may read it: `chmod 600` it, or use DATABASE_URL_FILE";
        found.push(Finding::warning("file", format!("{}: {what}", path.display())));
    }
    Ok(found)
}

fn rules(args: &DecoderArgs) -> Finding {
    match args.read() {
        Ok(_) => Finding::ok("rules", "they can be read"),
        Err(error) => Finding::problem("rules", format!("{error:#}")),
    }
}

fn of_kafka(args: &Args, settings: Option<&Settings>) -> Vec<Finding> {
    let kafka = config::Kafka {
        brokers: args.brokers.clone().unwrap_or_default(),
        topic: args.topic.name.clone(),
        // Nobody joins it.
        group: "postonce".to_owned(),
        protocol: args.group_protocol.into(),
        properties: args.client.properties.clone(),
        unidentified_topic: false,
    };
    let of_properties =
        |why: String| vec![Finding::problem("kafka", format!("{}: {why}", origin(settings, "property", None)))];
    if let Err(error) = kafka.check() {
        return of_properties(error.to_string());
    }
    if let Err(error) = Stream::check(&kafka) {
        return of_properties(error.to_string());
    }
    match &args.brokers {
        None => vec![Finding::warning("kafka", "no brokers: set `brokers` in the file or KAFKA_BROKERS")],
        Some(brokers) if args.connect => kafka::ask(&kafka, &origin(settings, "brokers", Some(brokers))),
        Some(_) => vec![Finding::ok("kafka", "brokers and properties can be read; --connect asks them")],
    }
}

fn of_postgres(args: &Args, settings: Option<&Settings>) -> anyhow::Result<Vec<Finding>> {
    let Some(url) = &args.database_url else {
        let what = "no database: set `database-url` in the file, DATABASE_URL or DATABASE_URL_FILE";
        return Ok(vec![Finding::warning("postgres", what)]);
    };
    let place = origin(settings, "database-url", Some(url));
    let database = match Database::new(url, &args.schema) {
        Ok(database) => database,
        Err(error) => return Ok(vec![Finding::problem("postgres", format!("{place}: {error}"))]),
    };
    if args.connect {
        return database::ask(&database, &place);
    }
    Ok(vec![Finding::ok("postgres", format!("{database}; --connect asks it"))])
}

/// Where a value comes from, to be looked for there.
fn origin(settings: Option<&Settings>, flag: &str, value: Option<&str>) -> String {
    let of_file = settings.and_then(|settings| settings.place_of(&["consume"], flag, value));
    of_file.unwrap_or_else(|| format!("--{flag}"))
}

fn as_text(report: &Report) -> String {
    let rows = report.checks.iter().map(|finding| {
        let result = match finding.result {
            Grade::Ok => "ok",
            Grade::Warning => "warning",
            Grade::Problem => "PROBLEM",
        };
        [finding.check.to_owned(), result.to_owned(), table::visible(&finding.what)]
    });
    let mut text = table::columns(&["CHECK", "RESULT", "WHAT"], rows);
    text.push_str(if report.ok { "\nall is right\n" } else { "\nsomething must be mended\n" });
    text
}
