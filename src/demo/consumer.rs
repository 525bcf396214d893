//! `postonce consume` as a child process.

use super::Settings;
use super::parts::{self, Parts};
use crate::child_process;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, OpenOptions};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What is being applied is finished first, and Kafka hears of the last offsets.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A consumer at work; dropping it kills it.
pub struct Consumer(Child);

impl Consumer {
    pub fn start(parts: &Parts, settings: &Settings) -> Result<Self> {
        let (workers, batch) = (settings.workers.to_string(), settings.batch().to_string());
        Self::start_with(parts, &["--workers", &workers, "--batch", &batch])
    }

    /// With these arguments beside those that lead it to the demo's parts.
    pub fn start_with(parts: &Parts, more: &[&str]) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(parts.consumer_log())?;
        let own = std::env::current_exe().context("this program does not know where it is")?;
        let mut command = Command::new(own);
        for (name, _) in std::env::vars_os() {
            // What the shell has set speaks of another ledger.
            let name_text = name.to_string_lossy();
            if ["POSTONCE_", "PG"].iter().any(|prefix| name_text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
            .args(["consume", "--unidentified-topic", "--log-format", "human", "--topic", parts::TOPIC])
            .args(["--schema", parts::SCHEMA])
            .args(more)
            .env("KAFKA_BROKERS", parts.brokers())
            // Not as an argument: `ps` shows those to everyone.
            .env("DATABASE_URL", parts.database_url())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = child_process::spawn_bound(command, libc::SIGKILL).context("cannot start postonce consume")?;
        Ok(Self(child))
    }

    /// An error if it has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("postonce consume has ended by itself: {status}"),
        }
    }

    /// SIGKILL: nothing prepares for it.
    pub fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the orderly end.
    pub fn stop(&mut self) -> Result<()> {
        child_process::signal(&mut self.0, libc::SIGTERM)?;
        let ended = child_process::wait_at_most(&mut self.0, STOP_LIMIT)?;
        let status = ended.with_context(|| format!("postonce consume did not stop within {STOP_LIMIT:?}"))?;
        ensure!(status.success(), "postonce consume did not stop well: {status}");
        Ok(())
    }

    /// The most memory that it has ever held, where the kernel tells.
    pub fn peak_memory_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.kill();
    }
}
