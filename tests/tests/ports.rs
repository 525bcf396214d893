//! What a consumer listens on: where it was told to, and nowhere else.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce::private_postgres::free_port;
use postonce_tests::{Flow, Ledger, PostonceProcess, Trial, get, kafka, payments, trials, wait_until};

pub fn tests() -> Vec<Trial> {
    trials![nothing_listens_but_the_metrics]
}

const LIMIT: Duration = Duration::from_secs(60);

fn nothing_listens_but_the_metrics() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("ports")?, "ports", 2)?;
    let port = free_port()?;
    // A port alone is for this machine alone.
    for (listen, expected) in [(None, vec![]), (Some(port.to_string()), vec![format!("127.0.0.1:{port}")])] {
        let env = [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", &flow.ledger.url)];
        let mut args = vec!["consume", "--topic", &flow.topic, "--group", &flow.group];
        if let Some(listen) = &listen {
            args.extend(["--listen", listen]);
        }
        let mut consumer = PostonceProcess::start(&args, &env)?;
        flow.send(payments(&format!("ports{}", expected.len()), 5))?;
        flow.wait_done(LIMIT).with_context(|| consumer.stderr())?;
        if listen.is_some() {
            wait_until(LIMIT, "/livez", || Ok((get(port, "/livez")?.0 == 200).then_some(())))?;
        }
        assert_eq!(listening(consumer.pid())?, expected.into_iter().collect());
        consumer.terminate()?;
        consumer.wait(LIMIT)?;
    }
    Ok(())
}

/// The addresses of a process's sockets that wait for somebody, TCP and UDP.
fn listening(pid: u32) -> Result<BTreeSet<String>> {
    let mut own = BTreeSet::new();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // One that is closed meanwhile is not there any more.
        let Ok(target) = fs::read_link(descriptor?.path()) else { continue };
        let inode = target.to_string_lossy().strip_prefix("socket:[").map(|rest| rest.trim_end_matches(']').to_owned());
        own.extend(inode);
    }
    ensure!(!own.is_empty(), "a consumer has sockets");
    let mut found = BTreeSet::new();
    // 0A: LISTEN. A UDP socket that takes from anybody stands as 07.
    for (table, waiting) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/net/{table}")) else { continue };
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields[3] == waiting && own.contains(fields[9]) {
                found.insert(address(fields[1])?);
            }
        }
    }
    Ok(found)
}

/// `0100007F:24F8` is 127.0.0.1:9464; a longer one is left as it is.
fn address(text: &str) -> Result<String> {
    let (host, port) = text.split_once(':').context("no port")?;
    let port = u16::from_str_radix(port, 16)?;
    Ok(match u32::from_str_radix(host, 16) {
        Ok(bits) => format!("{}:{port}", std::net::Ipv4Addr::from(bits.swap_bytes())),
        Err(_) => format!("{host}:{port}"),
    })
}
