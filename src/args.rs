//! Arguments that several commands share, each with its environment variable.

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use postonce_schema::{Decoder, Kinds, POSITIONS_TOML, Rules};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// How to reach Kafka.
#[derive(Args, Clone)]
pub struct KafkaArgs {
    /// Kafka bootstrap servers, `host:port[,host:port…]`
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    pub brokers: String,

    #[command(flatten)]
    pub topic: TopicArgs,

    #[command(flatten)]
    pub client: ClientArgs,
}

/// Which topic.
#[derive(Args, Clone)]
pub struct TopicArgs {
    /// The topic with the payment events
    #[arg(long = "topic", short = 't', id = "topic", env = "POSTONCE_TOPIC", default_value = "payments")]
    pub name: String,
}

/// What the Kafka client is told beside the brokers.
#[derive(Args, Clone)]
pub struct ClientArgs {
    /// Any librdkafka property, repeatable: `-X security.protocol=SASL_SSL`.
    /// In the environment each stands on a line of its own
    #[arg(
        short = 'X',
        long = "property",
        env = "POSTONCE_KAFKA_PROPERTIES",
        value_name = "KEY=VALUE",
        value_delimiter = '\n',
        value_parser = property,
        // A property may be a password: --help shows that the variable exists, never its value.
        hide_env_values = true
    )]
    pub properties: Vec<(String, String)>,
}

/// How to reach Postgres.
#[derive(Args, Clone)]
pub struct DatabaseArgs {
    /// Postgres, `postgres://user:password@host:port/database`. Not through a
    /// pooler in transaction mode
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: String,

    /// The Postgres schema that holds the ledger
    #[arg(long, env = "POSTONCE_SCHEMA", default_value = "postonce")]
    pub schema: String,
}

/// Which rules judge the events.
#[derive(Args, Clone)]
pub struct RulesArgs {
    /// Rules of your own, instead of those that ship with Postonce
    #[arg(long, env = "POSTONCE_POSITIONS", value_name = "FILE")]
    pub positions: Option<PathBuf>,
}

impl RulesArgs {
    /// Reads and checks the rules; an error names file and line.
    pub fn read(&self) -> anyhow::Result<Rules> {
        let Some(path) = &self.positions else {
            return Rules::parse(POSITIONS_TOML).context("the rules that ship with Postonce");
        };
        let text = std::fs::read_to_string(path).with_context(|| format!("--positions {}", path.display()))?;
        Rules::parse(&text).map_err(|error| anyhow!("{}:{}: {}", path.display(), error.line, error.why))
    }
}

/// How messages become events.
#[derive(Args, Clone)]
pub struct DecoderArgs {
    /// The kinds of events that the topic may carry, separated by commas, or `all`; by
    /// default every kind of the rules but journals
    #[arg(long, env = "POSTONCE_KINDS", value_delimiter = ',', value_name = "KIND")]
    pub kinds: Vec<String>,

    #[command(flatten)]
    pub rules: RulesArgs,

    /// How many hours an event's updatedAt may be ahead of its message's Kafka timestamp
    #[arg(long, env = "POSTONCE_MAX_AHEAD_HOURS", default_value = "24", value_name = "HOURS")]
    pub max_ahead_hours: u32,
}

impl DecoderArgs {
    /// Reads the rules and checks the kinds against them.
    pub fn read(&self) -> anyhow::Result<Decoder> {
        let rules = self.rules.read()?;
        let kinds = kinds(&self.kinds, &rules)?;
        Ok(Decoder { rules, kinds, max_ahead: Duration::from_secs(u64::from(self.max_ahead_hours) * 3600) })
    }
}

/// How a command prints its result on stdout.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// For people
    Table,
    /// For programs: one JSON document
    Json,
}

/// The `--output` flag.
#[derive(Args, Clone)]
pub struct OutputArgs {
    /// How the result is printed on stdout
    #[arg(long, short = 'o', env = "POSTONCE_OUTPUT", default_value = "table")]
    pub output: Output,
}

/// Ends the process as the parser does, unless a flag is absent or what it needs is there.
/// The parser itself takes a setting of the file for a default, and so for absent.
pub fn needs(absent: bool, there: bool, what: &str) {
    if !absent && !there {
        clap::Error::raw(clap::error::ErrorKind::MissingRequiredArgument, format!("{what}\n")).exit();
    }
}

fn kinds(names: &[String], rules: &Rules) -> anyhow::Result<Kinds> {
    let known = rules.kind_names();
    match names {
        [] => Ok(Kinds::AllButJournals),
        [all] if all == "all" => Ok(Kinds::All),
        names => match names.iter().find(|name| !known.contains(name.as_str())) {
            None => Ok(Kinds::Only(names.iter().cloned().collect())),
            Some(name) => {
                let known: Vec<&str> = known.into_iter().collect();
                Err(anyhow!("--kinds: the rules have no kind \"{name}\"; they have {}", known.join(", ")))
            }
        },
    }
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        // The text is not repeated: it may be half of a password.
        _ => Err("expected KEY=VALUE, such as security.protocol=SASL_SSL".to_owned()),
    }
}

/// Where pages are served: they ask nobody for a password, so a port alone is one of this
/// machine.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => {
            text.parse().map_err(|_| "write a port such as 9464, or ADDRESS:PORT such as 0.0.0.0:9464".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_for_this_machine() {
        assert_eq!(listen("9464"), Ok(SocketAddr::from(([127, 0, 0, 1], 9464))));
        assert_eq!(listen("0.0.0.0:9464"), Ok(SocketAddr::from(([0, 0, 0, 0], 9464))));
        assert_eq!(listen("[::1]:9464").map(|address| address.is_ipv6()), Ok(true));
        for refused in ["", ":9464", "localhost", "70000", "127.0.0.1"] {
            assert!(listen(refused).is_err(), "{refused}");
        }
    }
}
