//! What a run costs beside time: processor seconds of each part, WAL, memory.
//!
//! Processor time is read from /proc, where the kernel keeps it. Where there is no /proc the
//! figure is missing, and nothing is made up for it.
#![allow(unsafe_code, reason = "raw bindings to libc or librdkafka, in tests")]

use crate::parts::Parts;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs;

/// Of one run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    /// Processor seconds of the consumer, or of the baseline in its place.
    pub client_seconds: Option<f64>,
    /// Of the whole server: backends, WAL writer, checkpointer, autovacuum.
    pub postgres_seconds: Option<f64>,
    pub broker_seconds: Option<f64>,
    pub wal_bytes: Option<u64>,
    /// Tables with their indexes, after a checkpoint.
    pub disk_bytes: Option<u64>,
    /// The most memory that the consumer's process has had.
    pub peak_memory_bytes: Option<u64>,
}

/// Counts from a moment on.
pub struct Meter<'p> {
    parts: &'p Parts,
    client: Client,
    client_before: Option<f64>,
    postgres_before: Option<f64>,
    broker_before: Option<f64>,
    wal_before: i64,
}

/// Whose processor time is the client's.
#[derive(Clone, Copy)]
pub enum Client {
    /// Threads of the bench itself.
    Ourselves,
    /// A process that begins after the meter does.
    Process,
}

impl<'p> Meter<'p> {
    pub fn start(parts: &'p Parts, client: Client) -> Result<Self> {
        Ok(Self {
            parts,
            client,
            client_before: match client {
                Client::Ourselves => process_seconds(std::process::id()),
                Client::Process => Some(0.0),
            },
            postgres_before: postgres_seconds(parts),
            broker_before: parts.kafka.pid().and_then(process_seconds),
            wal_before: wal(parts)?,
        })
    }

    /// Of the bench itself, as the client.
    pub fn stop(self) -> Result<Usage> {
        self.stop_with(std::process::id())
    }

    /// With the process that is the client, which must not have been waited for yet.
    pub fn stop_with(self, client: u32) -> Result<Usage> {
        let since = |now: Option<f64>, before: Option<f64>| Some(now? - before?);
        Ok(Usage {
            client_seconds: since(process_seconds(client), self.client_before),
            postgres_seconds: since(postgres_seconds(self.parts), self.postgres_before),
            broker_seconds: since(self.parts.kafka.pid().and_then(process_seconds), self.broker_before),
            wal_bytes: u64::try_from(wal(self.parts)? - self.wal_before).ok(),
            disk_bytes: None,
            peak_memory_bytes: match self.client {
                Client::Ourselves => None,
                Client::Process => peak_memory(client),
            },
        })
    }
}

/// How far the log of the whole server has been written, flushed or not.
fn wal(parts: &Parts) -> Result<i64> {
    parts.server.one("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").context("the place in the WAL")
}

/// The postmaster waits for each of its children, so what those have used that are gone is
/// in its own account; those that live are added.
fn postgres_seconds(parts: &Parts) -> Option<f64> {
    let file = fs::read_to_string(parts.postgres.data_dir().join("postmaster.pid")).ok()?;
    let postmaster: u32 = file.lines().next()?.parse().ok()?;
    loop {
        let before = Stat::of(postmaster)?;
        let living: f64 = children(postmaster)?.map(|child| child.own_seconds).sum();
        let after = Stat::of(postmaster)?;
        // One that has ended between the two looks would be counted twice, or not at all.
        if before.children_seconds == after.children_seconds {
            return Some(after.own_seconds + after.children_seconds + living);
        }
    }
}

fn children(parent: u32) -> Option<impl Iterator<Item = Stat>> {
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Some(pids.filter_map(Stat::of).filter(move |stat| stat.parent == parent))
}

fn process_seconds(pid: u32) -> Option<f64> {
    Some(Stat::of(pid)?.own_seconds)
}

/// The most memory that was resident, in bytes.
fn peak_memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Of /proc/PID/stat.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    own_seconds: f64,
    /// Of children that were waited for.
    children_seconds: f64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        // SAFETY: a question that takes nothing.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, ticks as f64)
    }

    /// The second field is the program's name in brackets, and it may hold anything.
    fn parse(text: &str, ticks: f64) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // proc(5) counts from one, and the state, which is the third, comes first here.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(field(4)?).ok()?,
            own_seconds: (field(14)? + field(15)?) as f64 / ticks,
            children_seconds: (field(16)? + field(17)?) as f64 / ticks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 4194304 1 2 3 4 150 50 300 100 20 0 9";
        let expected = Stat { parent: 3, own_seconds: 2.0, children_seconds: 4.0 };
        assert_eq!(Stat::parse(text, 100.0), Some(expected));
        assert_eq!(Stat::parse("7 (a", 100.0), None);
    }
}
