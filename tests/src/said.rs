//! A command that runs to its end, and what it has said.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::faults::Flow;
use crate::process::PostonceProcess;

const LIMIT: Duration = Duration::from_secs(120);

/// The end of a command.
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Runs `postonce ARGS` on a topic and its ledger to its end, whatever that is.
    pub fn by(flow: &Flow, args: &[&str]) -> Result<Self> {
        let env =
            [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", &flow.ledger.url), ("POSTONCE_TOPIC", &flow.topic)];
        let mut process = PostonceProcess::start(args, &env)?;
        let code = process.wait(LIMIT)?.code().context("ended by a signal")?;
        Ok(Self { code, stdout: process.stdout(), stderr: process.stderr() })
    }

    /// Its JSON, after this exit code.
    pub fn json(&self, code: i32) -> Result<Value> {
        ensure!(self.code == code, "exit code {} instead of {code}:\n{}\n{}", self.code, self.stdout, self.stderr);
        serde_json::from_str(&self.stdout).with_context(|| format!("no JSON: {}", self.stdout))
    }

    /// Its complaint, after this exit code.
    pub fn complaint(&self, code: i32, says: &[&str]) -> Result<()> {
        ensure!(self.code == code, "exit code {} instead of {code}:\n{}\n{}", self.code, self.stdout, self.stderr);
        for text in says {
            ensure!(self.stderr.contains(text), "{text:?} is not said:\n{}", self.stderr);
        }
        Ok(())
    }
}
