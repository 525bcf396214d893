//! Arguments that several commands share, each with its environment variable.

use clap::{Args, ValueEnum};

/// How to reach Kafka.
#[derive(Args, Clone)]
pub struct KafkaArgs {
    /// Kafka bootstrap servers, `host:port[,host:port…]`
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    pub brokers: String,

    /// The topic with the payment events
    #[arg(long, short = 't', env = "POSTONCE_TOPIC", default_value = "payments")]
    pub topic: String,

    /// Any librdkafka property, repeatable: `-X security.protocol=SASL_SSL`.
    /// In the environment several are separated by white space
    #[arg(
        short = 'X',
        long = "property",
        env = "POSTONCE_KAFKA_PROPERTIES",
        value_name = "KEY=VALUE",
        value_delimiter = ' ',
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

pub(crate) fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        // The text is not repeated: it may be half of a password.
        _ => Err("expected KEY=VALUE, such as security.protocol=SASL_SSL".to_owned()),
    }
}
