//! A consumer process: its workers, its page for Prometheus, its end.

use crate::clock::{Clock, Polls};
use crate::config::Config;
use crate::health::{self, Condition, Health};
use crate::kafka_statistics::Reports;
use crate::ledger_gauges;
use crate::metrics::Metrics;
use crate::observer::{self, Observed};
use crate::registry;
use crate::retention;
use crate::stop::Stop;
use crate::stream::Stream;
use crate::topic;
use crate::unposted::Unposted;
use crate::worker::{Shared, Worker};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Reads the topic into the ledger until `stopping` says so or a person is needed.
/// What is being applied then is finished first.
pub fn consume(config: Config, stopping: &dyn Fn() -> bool) -> Result<(), Stop> {
    let shared = prepare(config)?;
    let service = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let service = service.map_err(|error| Stop::Start(format!("no runtime: {error}")))?;
    serve(&service, &shared)?;
    let outcome = service.block_on(check(&shared)).and_then(|()| {
        watch(&service, &shared);
        run_workers(&shared, stopping)
    });
    if let Err(stop) = &outcome {
        linger(&shared, stop, stopping);
    }
    service.shutdown_background();
    outcome
}

fn serve(service: &Runtime, shared: &Arc<Shared>) -> Result<(), Stop> {
    let Some(address) = shared.config.listen else { return Ok(()) };
    let listener = service.block_on(health::bind(address));
    let listener = listener.map_err(|error| Stop::Start(format!("--listen: {error}")))?;
    service.spawn(health::serve(listener, Arc::clone(shared)));
    Ok(())
}

/// What is asked regularly, for the whole process.
fn watch(service: &Runtime, shared: &Arc<Shared>) {
    let asking = Arc::clone(shared);
    service.spawn(async move { ledger_gauges::watch(&asking.config.database, &asking.metrics).await });
    if !shared.config.kafka.unidentified_topic {
        let asking = Arc::clone(shared);
        service.spawn(async move {
            let Shared { config, metrics, unposted, .. } = &*asking;
            retention::watch(&config.kafka, config.recovery_window, metrics, unposted).await;
        });
    }
    let asking = Arc::clone(shared);
    service.spawn_blocking(move || {
        observer::observe(&asking.config.kafka, &asking.observed, &asking.unposted, &asking.stop);
    });
}

/// A supervisor starts an ended process again at once, and Prometheus would see nothing but
/// one that is always starting: so it stays for a while to say what it waits for.
fn linger(shared: &Shared, stop: &Stop, stopping: &dyn Fn() -> bool) {
    let Some(reason) = stop.reason() else { return };
    shared.metrics.stopped.with_label_values(&[reason.name()]).set(1);
    shared.health.stopped(stop.to_string());
    let (until, linger) = (Instant::now() + shared.config.stop_linger, shared.config.stop_linger);
    if !linger.is_zero() && !stopping() {
        tracing::error!(
            reason = reason.name(),
            ?linger,
            "stopped; a person is needed. The pages are served on: {stop}"
        );
    }
    while Instant::now() < until && !stopping() {
        std::thread::sleep(Duration::from_millis(50));
    }
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
        unposted: Unposted::default(),
        reports: Reports::default(),
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
