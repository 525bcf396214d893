//! `postonce health`: a container's health check without a shell, curl or wget in its image.

use crate::args::listen;
use anyhow::{Context, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;
use ureq::Agent;

const ANSWER_WITHIN: Duration = Duration::from_secs(3);

const HELP: &str = "\
Ready: every worker is connected to Kafka and Postgres, or the answer says which is
not and why. A consumer that is not ready loses nothing, and killing it helps
nobody: restart it only where --live fails.

Exit codes: 0 yes, 1 no or no answer, 2 wrong usage.

Examples:
  postonce health
  postonce health --live --listen 127.0.0.1:9464";

/// Ask a consumer on this machine whether it is ready
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Where it was told to listen (consume --listen); 0.0.0.0 is asked on the loopback
    #[arg(long, env = "POSTONCE_LISTEN", value_name = "[ADDRESS:]PORT", value_parser = listen,
          default_value = "9464")]
    listen: SocketAddr,

    /// Ask /livez instead of /readyz: whether its workers still turn, whatever they wait for
    #[arg(long, env = "POSTONCE_HEALTH_LIVE")]
    live: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let page = if args.live { "livez" } else { "readyz" };
    let url = format!("http://{}/{page}", reachable(args.listen));
    // An answer of 503 says why; as an error it would be lost.
    let agent: Agent =
        Agent::config_builder().timeout_global(Some(ANSWER_WITHIN)).http_status_as_error(false).build().into();
    let mut answer = agent.get(&url).call().with_context(|| url.clone())?;
    let said = answer.body_mut().read_to_string().with_context(|| url.clone())?;
    if answer.status().is_success() {
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::bail!("{url}: {}: {}", answer.status(), said.trim());
}

/// Who listens on every address is asked on one.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_asked_on_the_loopback() {
        for (listen, asked) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:2", "[::1]:2"), ("10.0.0.5:3", "10.0.0.5:3")] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }
}
