//! A consumer process: its workers, its page for Prometheus, its end.

use crate::clock::{Clock, Polls};
use crate::config::Config;
use crate::health::{self, Condition, Health};
use crate::metrics::Metrics;
use crate::observer::{self, Observed};
use crate::registry;
use crate::retention;
use crate::stop::Stop;
use crate::stream::Stream;
use crate::topic;
use crate::worker::{Shared, Worker};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often the whole ledger is asked what is open.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// Reads the topic into the ledger until `stopping` says so or a person is needed.
/// What is being applied then is finished first.
pub fn consume(config: Config, stopping: &dyn Fn() -> bool) -> Result<(), Stop> {
    let shared = prepare(config)?;
    let service = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let service = service.map_err(|error| Stop::Start(format!("no runtime: {error}")))?;
    service.block_on(check(&shared))?;
    let listener = shared.config.listen.map(|address| service.block_on(health::bind(address)));
    if let Some(listener) = listener.transpose().map_err(|error| Stop::Start(format!("--listen: {error}")))? {
        service.spawn(health::serve(listener, shared.metrics.clone(), shared.health.clone()));
    }
    service.spawn(look(shared.config.database.clone(), shared.metrics.clone()));
    if !shared.config.kafka.unidentified_topic {
        let asking = Arc::clone(&shared);
        service.spawn(async move {
            retention::watch(&asking.config.kafka, asking.config.recovery_window, &asking.metrics).await;
        });
    }
    let asking = Arc::clone(&shared);
    service.spawn_blocking(move || observer::observe(&asking.config.kafka, &asking.observed, &asking.stop));
    let outcome = run_workers(&shared, stopping);
    service.shutdown_background();
    outcome
}

fn prepare(config: Config) -> Result<Arc<Shared>, Stop> {
    config.kafka.check()?;
    // A property that the client refuses would end every life at its beginning.
    Stream::check(&config.kafka).map_err(|error| Stop::Start(format!("-X: {error}")))?;
    let metrics = Metrics::new().map_err(|error| Stop::Start(format!("metrics: {error}")))?;
    let health = Health::new(config.workers);
    Ok(Arc::new(Shared {
        config,
        metrics,
        health,
        observed: Observed::default(),
        polls: Polls::default(),
        stop: AtomicBool::new(false),
    }))
}

/// What would fail later is told at once, to the person who is there.
async fn check(shared: &Shared) -> Result<(), Stop> {
    let kafka = &shared.config.kafka;
    if !kafka.unidentified_topic {
        topic::check_policy(&kafka.client_config(), &kafka.topic).await?;
    }
    let mut connection = shared.config.database.connect().await?;
    shared.config.database.check_migrated(&mut connection).await?;
    registry::register(&mut connection, &shared.config.decoder.rules).await?;
    Ok(())
}

fn run_workers(shared: &Arc<Shared>, stopping: &dyn Fn() -> bool) -> Result<(), Stop> {
    let (done, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for number in 0..shared.config.workers {
            let (done, shared) = (done.clone(), Arc::clone(shared));
            scope.spawn(move || {
                let work = || Worker::new(number, &shared).and_then(Worker::run);
                let outcome = std::panic::catch_unwind(AssertUnwindSafe(work));
                let outcome = outcome.unwrap_or_else(|_| Err(Stop::Start(format!("worker {number} panicked"))));
                shared.health.say(number, Condition::Waiting("ended".to_owned()));
                // The receiver outlives every worker.
                let _ = done.send(outcome);
            });
        }
        drop(done);
        wait(shared, stopping, &results)
    })
}

/// Waits for the workers; the first that needs a person ends the others.
fn wait(shared: &Shared, stopping: &dyn Fn() -> bool, results: &Receiver<Result<(), Stop>>) -> Result<(), Stop> {
    let mut outcome = Ok(());
    let mut clock = Clock::now();
    loop {
        if let Some(back) = clock.set_back() {
            tracing::warn!(?back, "this machine's clock was set back, and the Kafka client waits by it: begin anew");
            shared.polls.interrupt();
        }
        if stopping() || outcome.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        match results.recv_timeout(Duration::from_millis(50)) {
            Ok(Err(stop)) if outcome.is_ok() => outcome = Err(stop),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return outcome,
        }
    }
}

/// What is open in the whole ledger: a gauge of the database, not of this process.
async fn look(database: crate::database::Database, metrics: Metrics) {
    loop {
        if let Ok(mut connection) = database.connect().await {
            // A connection that has fallen silent would keep the gauges as they are for ever.
            while let Ok(Ok((quarantine, incidents))) =
                tokio::time::timeout(LOOK_EVERY, crate::database::open_cases(&mut connection)).await
            {
                metrics.quarantine_open.set(quarantine);
                metrics.incidents_open.set(incidents);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
