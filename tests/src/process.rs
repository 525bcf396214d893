//! `postonce` as a child process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postonce::child_process;
use tempfile::TempDir;

use crate::trial::remember;

const SHOWN_LINES: usize = 60;

/// A running `postonce`; dropping it kills it.
pub struct PostonceProcess {
    child: Child,
    told: String,
    output: TempDir,
}

impl PostonceProcess {
    /// Starts `postonce ARGS` with these variables and no other of its own:
    /// what `POSTONCE_…` the shell has set is taken away.
    pub fn start(args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        Self::start_by(&binary()?, args, env)
    }

    /// The same, by another build of `postonce`.
    pub fn start_by(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let output = tempfile::Builder::new().prefix("postonce-process-").tempdir()?;
        let mut command = command_of(program, args, env);
        command
            .stdin(Stdio::null())
            .stdout(File::create(output.path().join("stdout"))?)
            .stderr(File::create(output.path().join("stderr"))?);
        let child = child_process::spawn_bound(command, libc::SIGKILL).context("cannot start postonce")?;
        Ok(Self { child, told: format!("postonce {}", args.join(" ")), output })
    }

    /// `postonce ARGS` as it is started here, for other pipes.
    pub fn command(args: &[&str], env: &[(&str, &str)]) -> Result<Command> {
        Ok(command_of(&binary()?, args, env))
    }

    /// Runs `postonce ARGS` to its end and gives its stdout; an exit code
    /// other than 0 is an error that shows stderr.
    pub fn run(args: &[&str], env: &[(&str, &str)], limit: Duration) -> Result<String> {
        let mut process = Self::start(args, env)?;
        let status = process.wait(limit)?;
        ensure!(status.success(), "{}: {status}\n{}", process.told, process.stderr());
        Ok(process.stdout())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGSTOP: the process is there and does nothing.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// SIGCONT: it goes on where it was.
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&mut self) -> Result<()> {
        self.signal(libc::SIGTERM)
    }

    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for the end; an error if it has not come after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        match child_process::wait_at_most(&mut self.child, limit)? {
            Some(status) => Ok(status),
            None => bail!("{} still runs after {:.1} s", self.told, limit.as_secs_f64()),
        }
    }

    /// All that it has written to stdout so far.
    pub fn stdout(&self) -> String {
        self.written("stdout")
    }

    /// The same, byte for byte.
    pub fn stdout_bytes(&self) -> Vec<u8> {
        fs::read(self.output.path().join("stdout")).unwrap_or_default()
    }

    /// All that it has written to stderr so far.
    pub fn stderr(&self) -> String {
        self.written("stderr")
    }

    fn signal(&mut self, signal: i32) -> Result<()> {
        Ok(child_process::signal(&mut self.child, signal)?)
    }

    fn written(&self, name: &str) -> String {
        let bytes = fs::read(self.output.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for PostonceProcess {
    fn drop(&mut self) {
        let _ = self.kill();
        let stderr = self.stderr();
        let lines: Vec<&str> = stderr.lines().collect();
        let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        remember(format!("--- {} (pid {}), the end of its stderr:\n{}", self.told, self.pid(), shown.join("\n")));
    }
}

fn command_of(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POSTONCE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("DATABASE_URL").env_remove("KAFKA_BROKERS").args(args).envs(env.iter().copied());
    command
}

/// target/PROFILE/postonce, beside the directory of this test's program.
fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let profile = own.ancestors().nth(2).context("the test's program has no place in target/")?;
    let path = profile.join("postonce");
    ensure!(path.is_file(), "there is no {}: run `cargo build` first, with the profile of the tests", path.display());
    Ok(path)
}
