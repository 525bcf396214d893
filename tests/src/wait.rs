//! Waiting for something to become true.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Asks every few milliseconds until the answer is `Some`. An error is an
/// answer of "not yet", and is told when the time is up.
pub fn wait_until<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let answer = ask();
        if let Ok(Some(value)) = answer {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            let told = format!("waited {:.1} s for {what}", limit.as_secs_f64());
            return match answer {
                Err(error) => Err(error).context(told),
                Ok(_) => bail!("{told}"),
            };
        }
        thread::sleep(Duration::from_millis(20));
    }
}
