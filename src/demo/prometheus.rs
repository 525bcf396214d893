//! A private Prometheus, where one is installed: it scrapes the demo's consumers, with the
//! alarms that ship with Postonce.

use crate::child_process;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Prometheus writes its head block down.
const STOP_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// The configuration, but for who is scraped.
const SETTINGS: &str = "global:\n  scrape_interval: 1s\n  evaluation_interval: 5s\n";
const RULES: &str = include_str!("../../grafana/rules/postonce.yml");

pub struct Prometheus(Child);

impl Prometheus {
    /// None where it is not installed.
    pub fn start(directory: &Path, listen: SocketAddr, scraped: &[SocketAddr]) -> Result<Option<Self>> {
        let directory = directory.join("prometheus");
        fs::create_dir(&directory)?;
        fs::write(directory.join("postonce.yml"), RULES)?;
        fs::write(directory.join("prometheus.yml"), configuration(scraped))?;
        let log = File::create(directory.join("log"))?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={listen}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        match child_process::spawn_bound(command, libc::SIGKILL) {
            Ok(child) => Ok(Some(Self(child))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("cannot start prometheus"),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself; killed it is with this process in any case.
        let _ = child_process::signal(&mut self.0, libc::SIGTERM);
        if !matches!(child_process::wait_at_most(&mut self.0, STOP_LIMIT), Ok(Some(_))) {
            let _ = self.0.kill();
        }
    }
}

fn configuration(scraped: &[SocketAddr]) -> String {
    let targets: Vec<String> = scraped.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "{SETTINGS}rule_files: [postonce.yml]\nscrape_configs:\n  - job_name: postonce\n    static_configs:\n      \
         - targets: [{}]\n",
        targets.join(", ")
    )
}
