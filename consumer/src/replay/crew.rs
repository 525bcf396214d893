//! Threads that share a work of many partitions, and who watches them.

use super::ReplayError;
use crate::reread::Ranges;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often whoever watches is asked.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// What the threads of one work have in common.
#[derive(Default)]
pub struct Job {
    /// Offsets that are through.
    done: AtomicU64,
    stop: AtomicBool,
}

impl Job {
    pub fn add(&self, offsets: u64) {
        self.done.fetch_add(offsets, Ordering::Relaxed);
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// To be asked between two stretches.
    pub fn go_on(&self) -> Result<(), ReplayError> {
        if self.stop.load(Ordering::Relaxed) { Err(ReplayError::Interrupted) } else { Ok(()) }
    }
}

/// Gives each share a thread of its own. `watch` hears how many offsets are through and
/// says whether to go on. The first error ends all of them.
pub fn share_out<T: Send>(
    shares: Vec<Ranges>,
    job: &Job,
    watch: &dyn Fn(u64) -> bool,
    work: impl Fn(Ranges) -> Result<T, ReplayError> + Sync,
) -> Result<Vec<T>, ReplayError> {
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for share in shares {
            let (sender, work) = (sender.clone(), &work);
            scope.spawn(move || {
                let result = std::panic::catch_unwind(AssertUnwindSafe(|| work(share)));
                let result = result.unwrap_or_else(|_| Err(ReplayError::Start("a worker panicked".to_owned())));
                // The receiver outlives every thread.
                let _ = sender.send(result);
            });
        }
        drop(sender);
        let (mut done, mut first_error) = (Vec::new(), None);
        loop {
            if !watch(job.done()) || first_error.is_some() {
                job.stop.store(true, Ordering::Relaxed);
            }
            match results.recv_timeout(WATCH_EVERY) {
                Ok(Ok(result)) => done.push(result),
                Ok(Err(error)) => {
                    first_error.get_or_insert(error);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        first_error.map_or(Ok(done), Err)
    })
}
