//! What a person can do about an error of Kafka or Postgres that names a cause and no
//! remedy: rights, passwords, certificates, and the two ends not speaking the same.

use sqlx::error::DatabaseError;
use std::io::ErrorKind;

/// Postgres: insufficient_privilege.
const DENIED: &str = "42501";
/// Postgres: invalid_password, and invalid_authorization_specification (pg_hba.conf).
const WRONG_PASSWORD: &str = "28P01";
const NO_ENTRY: &str = "28000";

const RIGHTS: &str = "\
the login of --database-url lacks a right. GRANT it one of these roles:
  postonce_auditor         for the commands that only read
  postonce_payload_reader  beside it, for the bytes of messages (quarantine show, incidents show, verify)
  postonce_operator        for all of these, and to close, dismiss and retry
  postonce_consumer        for consume and replay --execute
docs/security.md has all of it";

const NO_FILE: &str = "\
a file that --database-url names is not there: sslrootcert, sslcert or sslkey, or the socket of host=/DIRECTORY";

/// librdkafka's words, and what to do. The first that fits; the same words stand in its logs.
const KAFKA: [(&str, &str); 7] = [
    (
        "certificate verify failed",
        "the broker's certificate is not trusted: -X ssl.ca.location=FILE must name the authority that signed it, and the \
         certificate must be for the host as --brokers and the broker's advertised.listeners have it",
    ),
    (
        "connecting to a PLAINTEXT broker listener",
        "the broker speaks no TLS at this port: name its TLS listener in --brokers, or leave -X security.protocol out",
    ),
    (
        "invalid credentials",
        "the broker does not know this user with this password: look at -X sasl.username and -X sasl.password \
         (POSTONCE_KAFKA_PROPERTIES), and at the user's credentials for this mechanism on the broker (kafka-configs.sh \
         --describe --entity-type users)",
    ),
    (
        "SASL mechanism",
        "the broker does not take this mechanism: -X sasl.mechanisms must be one of its sasl.enabled.mechanisms, such as \
         SCRAM-SHA-512",
    ),
    (
        "Disconnected: SSL connection closed by peer",
        "the broker takes TLS at this port and ends the connection: it wants a password, so -X security.protocol=SASL_SSL, \
         -X sasl.mechanisms=SCRAM-SHA-512, -X sasl.username and -X sasl.password",
    ),
    (
        "Disconnected: connection closed by peer",
        "the broker wants TLS at this port: -X security.protocol=SSL, or SASL_SSL where it asks for a password, and \
         -X ssl.ca.location=FILE",
    ),
    (
        "Broker transport failure",
        "is a broker there, and what does it want at this port? For TLS -X security.protocol=SSL, for TLS and a password \
         -X security.protocol=SASL_SSL; the log at debug (--log debug) has each try",
    ),
];

/// The words of rustls and sqlx.
const POSTGRES_TLS: [(&str, &str); 3] = [
    (
        "UnknownIssuer",
        "the server's certificate is not trusted: sslrootcert=FILE in --database-url must name the authority that signed it",
    ),
    (
        "certificate not valid for name",
        "the server's certificate is for another host: --database-url must have the host's name as the certificate has it",
    ),
    (
        "does not support TLS",
        "the server speaks no TLS: switch it on there (ssl = on), or ask for none with sslmode=disable in --database-url",
    ),
];

/// A sentence to be told below the error, if there is one.
pub fn remedy(error: &anyhow::Error) -> Option<&'static str> {
    let told = format!("{error:#}");
    error.chain().find_map(of_postgres).or_else(|| first(&POSTGRES_TLS, &told)).or_else(|| first(&KAFKA, &told))
}

fn of_postgres(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let told = match error.downcast_ref::<sqlx::Error>() {
        // No connection over TCP ends like this.
        Some(sqlx::Error::Io(why)) if why.kind() == ErrorKind::NotFound => return Some(NO_FILE),
        Some(error) => error.as_database_error(),
        // An error that shows itself as its cause leaves only what is below that.
        None => error.downcast_ref::<Box<dyn DatabaseError>>().map(|told| &**told),
    }?;
    match told.code()?.as_ref() {
        DENIED => Some(RIGHTS),
        WRONG_PASSWORD => Some("look at user and password in --database-url (DATABASE_URL)"),
        NO_ENTRY if told.message().contains("no encryption") => {
            Some("the server takes this login over TLS only: sslmode=verify-full&sslrootcert=FILE in --database-url")
        }
        NO_ENTRY => Some("the server's pg_hba.conf lets this login in from elsewhere, or not at all"),
        _ => None,
    }
}

fn first(remedies: &[(&str, &'static str)], told: &str) -> Option<&'static str> {
    remedies.iter().find(|(words, _)| told.contains(words)).map(|(_, remedy)| *remedy)
}
