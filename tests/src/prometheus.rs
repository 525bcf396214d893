//! The real Prometheus, which scrapes real consumers by the real rules.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use postonce::child_process;
use postonce::private_postgres::free_port;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::get;
use crate::parts::repository;
use crate::wait::wait_until;

const LIMIT: Duration = Duration::from_secs(60);

/// A Prometheus with its own data. Dropping it kills it and removes the data.
pub struct Prometheus {
    directory: TempDir,
    port: u16,
    server: Child,
    since: u64,
}

/// One series of an answer: its labels, and its values at each second asked for.
pub struct Series {
    pub labels: Value,
    pub values: Vec<f64>,
}

impl Prometheus {
    /// Scrapes these ports of this machine once a second, by grafana/rules.
    pub fn start(ports: &[u16]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("postonce-prometheus-").tempdir()?;
        let (port, log) = (free_port()?, fs::File::create(directory.path().join("log"))?);
        let config = directory.path().join("prometheus.yml");
        let targets: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let rules = repository().join("grafana/rules/postonce.yml");
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\n\
                 scrape_configs:\n- job_name: postonce\n  static_configs:\n  - targets: [{}]\n",
                rules.display(),
                targets.iter().map(|target| format!("'{target}'")).collect::<Vec<_>>().join(", "),
            ),
        )?;
        let mut command = Command::new(program()?);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = child_process::spawn_bound(command, libc::SIGKILL).context("cannot start prometheus")?;
        let mut started = Self { directory, port, server, since: now()? };
        wait_until(LIMIT, "Prometheus", || {
            if started.server.try_wait()?.is_some() {
                return Ok(Some(Err(started.log())));
            }
            Ok((get(port, "/-/ready")?.0 == 200).then_some(Ok(())))
        })?
        .map_err(|log| anyhow::anyhow!("Prometheus has ended at its start:\n{log}"))?;
        Ok(started)
    }

    /// What an expression came to in each second since the start.
    pub fn history(&self, expression: &str) -> Result<Vec<Series>> {
        let (since, now) = (self.since, now()?);
        self.ask(&format!("/api/v1/query_range?start={since}&end={now}&step=1&query={}", encoded(expression)))
    }

    /// Waits until an expression has an answer now.
    pub fn wait(&self, expression: &str) -> Result<()> {
        let path = format!("/api/v1/query?query={}", encoded(expression));
        wait_until(LIMIT, &format!("Prometheus to see {expression}"), || {
            Ok((!self.ask(&path)?.is_empty()).then_some(()))
        })
    }

    fn ask(&self, path: &str) -> Result<Vec<Series>> {
        let (status, body) = get(self.port, path)?;
        let answer: Value = serde_json::from_str(&body).with_context(|| body.clone())?;
        ensure!(status == 200, "Prometheus says {answer}");
        let series = answer["data"]["result"].as_array().context("no result")?;
        series.iter().map(|one| Ok(Series { labels: one["metric"].clone(), values: values(one)? })).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn values(one: &Value) -> Result<Vec<f64>> {
    let pairs = one["values"].as_array().cloned().unwrap_or_else(|| vec![one["value"].clone()]);
    pairs.iter().map(|pair| Ok(pair[1].as_str().context("no value")?.parse()?)).collect()
}

/// Where setup.sh has put it, or the machine's own.
fn program() -> Result<PathBuf> {
    let fetched = repository().join("target/prometheus/usr/bin/prometheus");
    let of_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        std::env::split_paths(&path).map(|directory| directory.join("prometheus")).collect::<Vec<_>>()
    });
    match std::iter::once(fetched).chain(of_path).find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => bail!("there is no prometheus: run `./setup.sh test`, or install the package prometheus"),
    }
}

fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        let _ = write!(all, "%{byte:02X}");
        all
    })
}
