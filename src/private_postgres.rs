//! A private Postgres server for `postonce demo` and for the tests: found on
//! this machine, started in a directory of its own on a free port of
//! 127.0.0.1, with every promise about durability switched on, and gone
//! without a trace afterwards.

mod installation;
mod owner;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::child_process;
use installation::Installation;
use owner::Owner;

const SUPERUSER: &str = "postgres";
const START_LIMIT: Duration = Duration::from_secs(60);
/// A fast shutdown writes a checkpoint, which may be gigabytes.
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// Between the look for a free port and the bind somebody else may take it.
const PORT_TRIES: usize = 3;

/// What a private server is started with.
#[derive(Debug, Default, Clone)]
pub struct StartOptions {
    /// The directory of `initdb` and `postgres`; looked for if not given.
    pub bin_dir: Option<PathBuf>,
    /// Lines for postgresql.conf, on top of this module's own.
    pub settings: Vec<(String, String)>,
}

/// A running (or stopped) private server. Dropping it stops the server and
/// removes its data.
#[derive(Debug)]
pub struct PrivatePostgres {
    installation: Installation,
    owner: Option<Owner>,
    directory: TempDir,
    password: String,
    port: u16,
    postmaster: Option<Child>,
}

/// A server that goes on without us, see [`PrivatePostgres::detach`].
#[derive(Debug, Clone)]
pub struct Detached {
    /// To connect with.
    pub url: String,
    /// Holds the data, the log and the server's settings.
    pub directory: PathBuf,
    /// A shell line that stops the server and removes its data.
    pub stop_line: String,
}

impl PrivatePostgres {
    /// Makes a cluster and starts its server.
    pub fn start(options: StartOptions) -> Result<Self> {
        let owner = Owner::needed()?;
        let directory = private_directory(owner.as_ref())?;
        let mut installation = Installation::find(options.bin_dir.as_deref())?;
        if owner.is_some() && !owner::everyone_may_enter(&installation.bin_dir) {
            installation = installation.copy_to(&directory.path().join("postgres"))?;
        }
        let mut server = Self { installation, owner, directory, password: random_hex()?, port: 0, postmaster: None };
        server.make_cluster()?;
        server.write_settings(&options.settings)?;
        server.start_on_free_port()?;
        Ok(server)
    }

    /// The URL of a database of this server, as its superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }

    /// The port on 127.0.0.1, the same for the server's whole life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The cluster's data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The major version, such as 18.
    pub fn major_version(&self) -> u32 {
        self.installation.major
    }

    /// Makes an empty database.
    pub fn create_database(&self, name: &str) -> Result<()> {
        ensure!(
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
            "a database name here is made of a-z, 0-9 and _, not {name:?}"
        );
        let url = self.url("postgres");
        let statement = format!("CREATE DATABASE {name}");
        // A thread of its own: the caller may be inside an async runtime, where blocking on another one panics.
        thread::scope(|scope| scope.spawn(|| run_statement(&url, statement)).join())
            .map_err(|_| anyhow::anyhow!("the thread that creates databases panicked"))?
            .with_context(|| format!("cannot create database {name}"))
    }

    /// Ends the server with SIGQUIT, as `pg_ctl stop -m immediate` does: no
    /// checkpoint, the next start recovers from the log.
    pub fn stop_immediately(&mut self) -> Result<()> {
        self.stop_with(libc::SIGQUIT)
    }

    /// Ends every session, writes a checkpoint and stops (`-m fast`).
    pub fn stop_fast(&mut self) -> Result<()> {
        self.stop_with(libc::SIGINT)
    }

    /// SIGKILL to the postmaster: the crash that nothing prepares for. Its
    /// sessions notice and end soon after.
    pub fn kill_postmaster(&mut self) -> Result<()> {
        self.stop_with(libc::SIGKILL)
    }

    /// Whether the server has ended by itself; then it can be started again.
    pub fn has_ended(&mut self) -> Result<bool> {
        if let Some(postmaster) = self.postmaster.as_mut()
            && postmaster.try_wait()?.is_some()
        {
            self.postmaster = None;
        }
        Ok(self.postmaster.is_none())
    }

    /// Starts a stopped server on the same port and data.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.postmaster.is_none(), "the private Postgres is already running");
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match self.launch() {
                // Sessions of a killed postmaster hold its shared memory for a moment longer.
                Err(_) if Instant::now() < deadline && self.log_tail(5).contains("pre-existing shared memory") => {
                    thread::sleep(Duration::from_millis(50));
                }
                result => return result,
            }
        }
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let all: Vec<&str> = text.lines().collect();
        all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
    }

    /// Leaves the server running after this process has ended. It is started
    /// anew for that: what binds a child to us cannot be taken off again.
    pub fn detach(mut self) -> Result<Detached> {
        self.stop_fast()?;
        let mut command = self.postgres_command()?;
        command.process_group(0);
        self.postmaster = Some(command.spawn().context("cannot start postgres")?);
        self.wait_until_ready()?;
        // Dropping a Child neither stops nor waits for it.
        drop(self.postmaster.take());
        let url = self.url("postgres");
        let pid_file = self.data_dir().join("postmaster.pid");
        self.directory.disable_cleanup(true);
        let directory = self.directory.path().to_owned();
        // By signal, not by pg_ctl, which refuses root and anyone but the data's owner.
        let stop_line = format!(
            "kill -INT $(head -1 '{pid}') && while [ -e '{pid}' ]; do sleep 0.2; done; rm -r '{all}'",
            pid = pid_file.display(),
            all = directory.display()
        );
        Ok(Detached { url, directory, stop_line })
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("server.log")
    }

    fn make_cluster(&self) -> Result<()> {
        let password_file = self.directory.path().join("password");
        fs::write(&password_file, &self.password)?;
        self.give_to_owner(&password_file)?;
        let output = self
            .command("initdb")
            .arg("--pgdata")
            .arg(self.data_dir())
            .args(["--username", SUPERUSER, "--encoding=UTF8", "--locale=C"])
            // Sessions over TCP could be any user of this machine; the socket's directory is ours alone.
            .args(["--auth-host=scram-sha-256", "--auth-local=trust"])
            .arg("--pwfile")
            .arg(&password_file)
            // An empty cluster need not survive a crash; what is written later does.
            .arg("--no-sync")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.installation.program("initdb").display()))?;
        fs::remove_file(&password_file)?;
        if !output.status.success() {
            bail!("initdb failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(())
    }

    fn write_settings(&self, extra: &[(String, String)]) -> Result<()> {
        let socket_dir = self.directory.path().to_string_lossy().into_owned();
        let own = [
            ("listen_addresses", "127.0.0.1"),
            // A socket's path has room for about 100 bytes; without a socket TCP still works.
            ("unix_socket_directories", if socket_dir.len() <= 80 { socket_dir.as_str() } else { "" }),
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("max_connections", "200"),
            ("shared_buffers", "256MB"),
            // Few checkpoints: each is followed by full-page images of everything that is touched.
            ("max_wal_size", "4GB"),
            ("checkpoint_timeout", "30min"),
            ("wal_compression", self.best_wal_compression()),
            ("log_line_prefix", "%m [%p] %d "),
            ("log_timezone", "UTC"),
            ("timezone", "UTC"),
        ];
        let mut file = OpenOptions::new().append(true).open(self.data_dir().join("postgresql.conf"))?;
        for (name, value) in own {
            writeln!(file, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        for (name, value) in extra {
            writeln!(file, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        Ok(())
    }

    /// lz4 costs a fraction of the built-in compression, but not every build has it.
    fn best_wal_compression(&self) -> &'static str {
        let lz4 = self
            .command("postgres")
            .args(["-C", "wal_compression", "-c", "wal_compression=lz4", "-D"])
            .arg(self.data_dir())
            .stdin(Stdio::null())
            .output();
        if lz4.is_ok_and(|output| output.status.success()) { "lz4" } else { "on" }
    }

    fn start_on_free_port(&mut self) -> Result<()> {
        for attempt in 1..=PORT_TRIES {
            self.port = free_port()?;
            match self.launch() {
                Ok(()) => return Ok(()),
                Err(_) if attempt < PORT_TRIES && self.log_tail(20).contains("could not bind") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("no free port on 127.0.0.1 after {PORT_TRIES} tries")
    }

    /// Starts the postmaster and waits until it takes sessions.
    fn launch(&mut self) -> Result<()> {
        let command = self.postgres_command()?;
        let child = child_process::spawn_bound(command, libc::SIGQUIT)
            .with_context(|| format!("cannot start {}", self.installation.program("postgres").display()))?;
        self.postmaster = Some(child);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        let pid_file = self.data_dir().join("postmaster.pid");
        loop {
            let Some(child) = self.postmaster.as_mut() else {
                bail!("the private Postgres is not running");
            };
            if let Some(status) = child.try_wait()? {
                self.postmaster = None;
                bail!("the private Postgres ended at its start ({status}):\n{}", self.log_tail(20));
            }
            // The first line is the postmaster's number, the eighth its state; pg_ctl waits for
            // it, too. After a crash the file is still the old one. It is not ours to remove:
            // by it Postgres sees that sessions of the killed postmaster are still writing.
            let file = fs::read_to_string(&pid_file).unwrap_or_default();
            let (number, state) = (file.lines().next(), file.lines().nth(7));
            // "standby" is ready, too: to be read.
            let ready = state.is_some_and(|state| matches!(state.trim(), "ready" | "standby"));
            if ready && number == Some(&child.id().to_string()) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let tail = self.log_tail(20);
                self.kill_postmaster()?;
                bail!("the private Postgres was not ready after {} s:\n{tail}", START_LIMIT.as_secs());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn stop_with(&mut self, signal: i32) -> Result<()> {
        let Some(mut child) = self.postmaster.take() else {
            return Ok(());
        };
        child_process::signal(&mut child, signal).context("cannot signal the private Postgres")?;
        if child_process::wait_at_most(&mut child, STOP_LIMIT)?.is_none() {
            child.kill()?;
            child.wait()?;
            bail!("the private Postgres did not stop within {} s:\n{}", STOP_LIMIT.as_secs(), self.log_tail(20));
        }
        Ok(())
    }

    fn postgres_command(&self) -> Result<Command> {
        let path = self.log_path();
        let log = OpenOptions::new().create(true).append(true).open(&path)?;
        self.give_to_owner(&path)?;
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data_dir())
            .args(["-p", &self.port.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    /// One of the server's programs, as the unprivileged user if we are root.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.installation.program(program));
        for (name, _) in std::env::vars_os() {
            // PGDATA, PGPORT, PGOPTIONS and the like speak of another server.
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        // The tails of the log are searched for English words.
        command.env("LC_ALL", "C").env_remove("LANGUAGE");
        // The unprivileged user may not be allowed in the directory where we are.
        command.current_dir(self.directory.path());
        if let Some(owner) = &self.owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        command
    }

    fn give_to_owner(&self, path: &Path) -> Result<()> {
        if let Some(owner) = &self.owner {
            owner.take(path)?;
        }
        Ok(())
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        // The data is thrown away: a checkpoint would be for nobody.
        let _ = self.stop_immediately();
    }
}

/// A new directory for one server, which its owner can reach.
fn private_directory(owner: Option<&Owner>) -> Result<TempDir> {
    let temporary = tempfile::env::temp_dir();
    let candidates = [temporary.as_path(), Path::new("/tmp"), Path::new("/var/tmp")];
    let parent = candidates
        .into_iter()
        .find(|parent| parent.is_dir() && (owner.is_none() || owner::everyone_may_enter(parent)))
        .context("no temporary directory that an unprivileged user can reach; set TMPDIR to one")?;
    let directory = tempfile::Builder::new()
        .prefix("postonce-postgres-")
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    if let Some(owner) = owner {
        owner.take(directory.path())?;
    }
    Ok(directory)
}

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn run_statement(url: &str, statement: String) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(url).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await?;
        sqlx::Connection::close(connection).await?;
        Ok(())
    })
}
