//! `--watch`: two consumers, a steady workload without end, Prometheus where it is installed,
//! and `postonce top` on the terminal.

use super::Settings;
use super::consumer::Consumer;
use super::parts::{self, Parts, TOPIC};
use super::progress::say;
use super::prometheus::Prometheus;
use crate::args::DatabaseArgs;
use crate::commands::interrupt;
use crate::commands::top::Top;
use crate::private_postgres::free_port;
use anyhow::Result;
use postonce_producer::generate::{Pace, Steady};
use postonce_producer::{Config, Producer, send_all};
use std::io::{IsTerminal, stdout};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const CONSUMERS: usize = 2;
/// Where nobody draws, it only waits for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs until somebody ends it.
pub fn run(settings: &Settings, rate: NonZeroU32) -> Result<()> {
    let parts = super::set_up(settings)?;
    let web = free_address()?;
    let scraped = &(0..CONSUMERS).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
    let workers = settings.workers.to_string();
    let start = |address: &SocketAddr| {
        Consumer::start_with(&parts, &["--workers", &workers, "--listen", &address.to_string(), "--stop-linger", "0"])
    };
    let consumers = scraped.iter().map(start).collect::<Result<Vec<_>>>()?;
    let prometheus = Prometheus::start(parts.directory(), web, scraped)?;
    say(&format!("{} consumers: {}", consumers.len(), join(scraped)))?;
    say(&match &prometheus {
        Some(_) => format!("Prometheus: http://{web}"),
        None => "no Prometheus: it is not installed (Debian, Ubuntu: apt-get install prometheus)".to_owned(),
    })?;
    let (ended, brokers) = (AtomicBool::new(false), parts.brokers());
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&brokers, settings, rate, &ended));
        let watched = watch(&parts, scraped);
        ended.store(true, Ordering::Relaxed);
        let sent = sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?;
        watched.and(sent)
    })
}

fn watch(parts: &Parts, consumers: &[SocketAddr]) -> Result<()> {
    if stdout().is_terminal() {
        let database = DatabaseArgs { database_url: parts.database_url(), schema: parts::SCHEMA.to_owned() };
        return Top::new(consumers.iter().map(SocketAddr::to_string).collect(), Some(database))?.watch();
    }
    say("Ctrl-C or SIGTERM ends it.")?;
    while interrupt::signal().is_none() {
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn send(brokers: &str, settings: &Settings, rate: NonZeroU32, ended: &AtomicBool) -> Result<()> {
    let producer = Producer::new(&Config::new(brokers, TOPIC))?;
    let mut pace = Pace::new(rate);
    let mut steady = Steady::new(settings.workload())?;
    let unwanted = || ended.load(Ordering::Relaxed) || interrupt::signal().is_some();
    let events = std::iter::from_fn(|| pace.wait(unwanted).then(|| steady.next()).flatten());
    send_all(&producer, events, |_| ())?;
    Ok(())
}

fn free_address() -> Result<SocketAddr> {
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)))
}

fn join(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(|address| format!("http://{address}/metrics")).collect::<Vec<_>>().join(", ")
}
