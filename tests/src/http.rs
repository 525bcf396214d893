//! Just enough HTTP to read `/metrics` and `/readyz`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// Status and body of `http://127.0.0.1:{port}{path}`.
pub fn get(port: u16, path: &str) -> Result<(u16, String)> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    // Version 1.0: the server closes at the end, and never sends in chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of headers in the answer")?;
    let status = head.split(' ').nth(1).context("no status in the answer")?;
    Ok((status.parse()?, body.to_owned()))
}

/// The sum of a metric over its series that carry all these labels; `None`
/// when there is no such series.
pub fn metric(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let wanted: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    page.lines()
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, inside) = series.split_once('{').unwrap_or((series, ""));
            let pairs: Vec<&str> = inside.trim_end_matches('}').split(',').collect();
            let fits = found == name && wanted.iter().all(|pair| pairs.contains(&pair.as_str()));
            if fits { value.parse::<f64>().ok() } else { None }
        })
        .reduce(|sum, value| sum + value)
}
