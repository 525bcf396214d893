//! Kafka and Postgres over TLS and with passwords, on real servers with certificates of
//! this run: who should come in does, and who is refused is told what to do.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Authority, Db, Flow, Kafka, Ledger, PASSWORD, PostonceProcess, PrivatePostgres, Trial, USER, kafka, payments,
    start_postgres, trials, wait_until,
};
use tempfile::TempDir;

pub fn tests() -> Vec<Trial> {
    trials![kafka_over_tls_and_with_a_password, postgres_over_tls_and_with_a_password]
}

const LIMIT: Duration = Duration::from_secs(120);
const WRONG: &str = "incorrect-horse";

/// The authority that signed the servers' certificates, and one that did not.
struct Trust {
    files: TempDir,
    authority: Authority,
}

impl Trust {
    fn new() -> Result<Self> {
        let trust = Self { files: tempfile::tempdir()?, authority: Authority::new("postonce test authority")? };
        trust.authority.write(Path::new(&trust.right()))?;
        Authority::new("somebody else")?.write(Path::new(&trust.wrong()))?;
        Ok(trust)
    }

    fn right(&self) -> String {
        self.files.path().join("right.pem").to_string_lossy().into_owned()
    }

    fn wrong(&self) -> String {
        self.files.path().join("wrong.pem").to_string_lossy().into_owned()
    }
}

/// As they stand in POSTONCE_KAFKA_PROPERTIES: a password belongs into no list of processes.
fn properties(list: &[(&str, &str)]) -> String {
    list.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("\n")
}

fn tls(authority: &str) -> String {
    properties(&[("security.protocol", "SSL"), ("ssl.ca.location", authority)])
}

fn login(authority: &str, mechanism: &str, password: &str) -> String {
    properties(&[
        ("security.protocol", "SASL_SSL"),
        ("ssl.ca.location", authority),
        ("sasl.mechanisms", mechanism),
        ("sasl.username", USER),
        ("sasl.password", password),
    ])
}

fn kafka_over_tls_and_with_a_password() -> Result<()> {
    let trust = Trust::new()?;
    let kafka = Kafka::start_secured(&trust.authority)?;
    let ports = kafka.secured();
    for (port, properties) in
        [(ports.tls, tls(&trust.right())), (ports.login, login(&trust.right(), "SCRAM-SHA-512", PASSWORD))]
    {
        comes_in(&kafka, port, &properties).with_context(|| format!("{}\n{}", properties, kafka.log_tail(20)))?;
    }
    let flow = Flow::new(&kafka, Ledger::fresh("refused")?, "refused", 1)?;
    let right = trust.right();
    let refused = [
        (ports.tls, tls(&trust.wrong()), "ssl.ca.location=FILE must name the authority"),
        (ports.elsewhere, tls(&right), "must be for the host"),
        (ports.login, login(&right, "SCRAM-SHA-512", WRONG), "sasl.username and -X sasl.password"),
        (ports.login, login(&right, "SCRAM-SHA-256", PASSWORD), "sasl.enabled.mechanisms"),
        (ports.tls, properties(&[("client.id", "plain")]), "security.protocol=SSL"),
        (ports.login, tls(&right), "security.protocol=SASL_SSL"),
        (port_of(&kafka)?, tls(&right), "speaks no TLS at this port"),
    ];
    // All at once: each asks for ten seconds before it gives up.
    let mut asking = Vec::new();
    for (port, properties, remedy) in &refused {
        let brokers = format!("127.0.0.1:{port}");
        let env = [
            ("KAFKA_BROKERS", brokers.as_str()),
            ("DATABASE_URL", &flow.ledger.url),
            ("POSTONCE_TOPIC", &flow.topic),
            ("POSTONCE_KAFKA_PROPERTIES", properties),
        ];
        for command in [&["consume"][..], &["replay"], &["send", "/dev/null"]] {
            asking.push((PostonceProcess::start(command, &env)?, format!("{command:?} with {properties}"), remedy));
        }
    }
    let mut wrong = Vec::new();
    for (mut process, what, remedy) in asking {
        wrong.extend(is_refused(&mut process, remedy).err().map(|error| format!("{what}: {error:#}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

fn port_of(kafka: &Kafka) -> Result<u16> {
    Ok(kafka.bootstrap().rsplit_once(':').context("no port")?.1.parse()?)
}

/// Sends, posts and asks through this port.
fn comes_in(kafka: &Kafka, port: u16, properties: &str) -> Result<()> {
    let flow = Flow::new(kafka, Ledger::fresh("secured")?, "secured", 2)?;
    let brokers = format!("127.0.0.1:{port}");
    let file = tempfile::NamedTempFile::new()?;
    let lines: Vec<u8> = payments("secured", 20)
        .into_iter()
        .filter_map(|message| message.value)
        .flat_map(|value| [value, b"\n".to_vec()].concat())
        .collect();
    fs::write(file.path(), lines)?;
    let env = [
        ("KAFKA_BROKERS", brokers.as_str()),
        ("DATABASE_URL", &flow.ledger.url),
        ("POSTONCE_TOPIC", &flow.topic),
        ("POSTONCE_KAFKA_PROPERTIES", properties),
    ];
    PostonceProcess::run(&["send", &file.path().to_string_lossy()], &env, LIMIT)?;
    // The client tells all of its configuration, too.
    let talkative = properties.to_owned() + "\ndebug=conf,security,broker";
    let consumer = flow
        .consume_in(&[("KAFKA_BROKERS", &brokers), ("POSTONCE_KAFKA_PROPERTIES", &talkative)], &["--log", "trace"])?;
    flow.wait_offsets(20, LIMIT).with_context(|| consumer.stderr())?;
    ensure!(!consumer.stderr().contains(PASSWORD), "the password is told:\n{}", consumer.stderr());
    consumer.finish()?;
    let status = PostonceProcess::run(&["status", "-o", "json"], &env, LIMIT)?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    ensure!(status["streams"][0]["lag"] == 0, "{status}");
    PostonceProcess::run(&["verify", "--deep"], &env, LIMIT)?;
    flow.check()
}

/// It ends by itself, names the remedy, and never the password.
fn is_refused(process: &mut PostonceProcess, remedy: &str) -> Result<()> {
    let status = process.wait(LIMIT)?;
    let told = process.stderr();
    ensure!(status.code() == Some(1), "{status}\n{told}");
    ensure!(told.contains(remedy), "{remedy:?} is not said:\n{told}");
    for secret in [PASSWORD, WRONG] {
        ensure!(!told.contains(secret) && !process.stdout().contains(secret), "the password is told:\n{told}");
    }
    Ok(())
}

/// A server that takes logins over TLS only, with a certificate for 127.0.0.1.
fn secured_postgres(trust: &Trust) -> Result<PrivatePostgres> {
    let mut server = start_postgres(&[])?;
    let data = server.data_dir();
    let identity = trust.authority.sign("127.0.0.1")?;
    let owner = fs::metadata(&data)?;
    for (name, content) in [("server.crt", &identity.certificate), ("server.key", &identity.key)] {
        let path = data.join(name);
        fs::write(&path, content)?;
        // Postgres refuses a key that others may read.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
    }
    let settings = data.join("postgresql.conf");
    let before = fs::read_to_string(&settings)?;
    fs::write(&settings, before + "ssl = on\npassword_encryption = 'scram-sha-256'\n")?;
    fs::write(data.join("pg_hba.conf"), "hostssl all all 127.0.0.1/32 scram-sha-256\n")?;
    server.stop_fast()?;
    server.start_again()?;
    Ok(server)
}

fn postgres_over_tls_and_with_a_password() -> Result<()> {
    let trust = Trust::new()?;
    let server = secured_postgres(&trust)?;
    // The tests' own connections take TLS where it is offered, and ask for no certificate.
    let flow = Flow::new(&kafka(), Ledger::fresh_in(&server, "secured")?, "secured", 1)?;
    let (database, port) = (flow.ledger.url.rsplit_once('/').context("no database")?.1.to_owned(), server.port());
    flow.ledger.db.execute(&format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}' IN ROLE postonce_consumer"))?;
    let url = |host: &str, password: &str, query: &str| {
        format!("postgres://{USER}:{password}@{host}:{port}/{database}?{query}")
    };
    let full = |authority: &str| format!("sslmode=verify-full&sslrootcert={authority}");
    let (right, wrong) = (full(&trust.right()), full(&trust.wrong()));

    let consumer = flow.consume_through(&url("127.0.0.1", PASSWORD, &right), &["--log", "trace"])?;
    flow.send(payments("secured", 20))?;
    flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
    let encrypted = "SELECT coalesce(bool_and(ssl), false) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                     WHERE usename = 'postonce'";
    wait_until(LIMIT, "sessions over TLS", || Ok(flow.ledger.db.one::<bool>(encrypted)?.then_some(())))?;
    ensure!(!consumer.stderr().contains(PASSWORD), "the password is told:\n{}", consumer.stderr());
    consumer.finish()?;
    flow.check()?;

    let open = start_postgres(&[])?;
    let elsewhere = open.url("postgres") + "?" + &right;
    let refused = [
        (url("127.0.0.1", PASSWORD, &wrong), "sslrootcert=FILE in --database-url must name the authority"),
        (url("localhost", PASSWORD, &right), "--database-url must have the host's name"),
        (url("127.0.0.1", WRONG, &right), "look at user and password in --database-url"),
        (url("127.0.0.1", PASSWORD, "sslmode=disable"), "takes this login over TLS only"),
        (
            url("127.0.0.1", PASSWORD, "sslmode=verify-full&sslrootcert=/no/such/file"),
            "names is not there: sslrootcert",
        ),
        (elsewhere, "speaks no TLS"),
    ];
    for (url, remedy) in &refused {
        let env = [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", url), ("POSTONCE_TOPIC", &flow.topic)];
        for command in [&["consume"][..], &["status"], &["migrate"]] {
            let mut process = PostonceProcess::start(command, &env)?;
            is_refused(&mut process, remedy).with_context(|| format!("{command:?} at {url}"))?;
        }
    }
    // Who turns the check of the certificate off is let in: it was the certificate.
    let careless = Db::new(&url("localhost", PASSWORD, "sslmode=require"));
    ensure!(careless.one::<i32>("SELECT 1")? == 1, "not let in");
    Ok(())
}
