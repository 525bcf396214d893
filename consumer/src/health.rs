//! Whether a process lives and whether it can post, told to whoever runs it.

use crate::sockets;
use crate::worker::Shared;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// A worker that has not turned its loop for so long hangs: every wait of its is
/// bounded below this.
const HUNG_AFTER: Duration = Duration::from_secs(120);

/// What a worker is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Connected to Kafka and Postgres.
    Ready,
    /// Not yet, or not any more, and why.
    Waiting(String),
}

/// The condition of a process.
pub struct Health {
    workers: Mutex<Vec<(Condition, Instant)>>,
    /// Why a person is needed, once one is.
    stopped: OnceLock<String>,
}

impl Health {
    pub fn new(workers: usize) -> Self {
        let starting = (Condition::Waiting("starting".to_owned()), Instant::now());
        Self { workers: Mutex::new(vec![starting; workers]), stopped: OnceLock::new() }
    }

    /// Says how a worker is, and that it is still alive.
    pub fn say(&self, worker: usize, condition: Condition) {
        self.workers()[worker] = (condition, Instant::now());
    }

    /// Says that the process waits for a person: it lives, and no restart would help.
    pub fn stopped(&self, why: String) {
        // The first reason stands.
        let _ = self.stopped.set(why);
    }

    /// How many workers are ready.
    fn ready(&self) -> i64 {
        let ready = self.workers().iter().filter(|(condition, _)| *condition == Condition::Ready).count();
        i64::try_from(ready).unwrap_or(i64::MAX)
    }

    /// Why the process is not ready: for what a person is needed, or a line for each worker
    /// that is not.
    fn not_ready(&self) -> Vec<String> {
        if let Some(why) = self.stopped.get() {
            return vec![format!("stopped: {why}")];
        }
        let reason = |(number, (condition, _)): (usize, &(Condition, Instant))| match condition {
            Condition::Ready => None,
            Condition::Waiting(why) => Some(format!("worker {number}: {why}")),
        };
        self.workers().iter().enumerate().filter_map(reason).collect()
    }

    fn hung(&self) -> Vec<String> {
        if self.stopped.get().is_some() {
            return Vec::new();
        }
        let workers = self.workers();
        let hung = workers.iter().enumerate().filter(|(_, (_, turned))| turned.elapsed() > HUNG_AFTER);
        hung.map(|(number, (_, turned))| format!("worker {number} has not turned for {:?}", turned.elapsed())).collect()
    }

    fn workers(&self) -> MutexGuard<'_, Vec<(Condition, Instant)>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves `/metrics`, `/livez` and `/readyz` until the process ends.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>) -> std::io::Result<()> {
    let pages = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/livez", get(|State(shared): State<Arc<Shared>>| async move { answer(shared.health.hung()) }))
        .route("/readyz", get(|State(shared): State<Arc<Shared>>| async move { answer(shared.health.not_ready()) }))
        .with_state(shared);
    axum::serve(listener, pages).await
}

/// Binds the address, so that a port in use is an error at the start.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

async fn metrics_page(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let Shared { metrics, health, unposted, config, .. } = &*shared;
    metrics.workers_ready.set(health.ready());
    metrics.postgres_connections.set(sockets::connected_to(config.database.port()));
    unposted.show(metrics, &config.kafka.topic);
    match metrics.render() {
        Ok(page) => (StatusCode::OK, [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], page),
        Err(error) => {
            let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
            (StatusCode::INTERNAL_SERVER_ERROR, plain, error.to_string())
        }
    }
}

fn answer(problems: Vec<String>) -> (StatusCode, String) {
    if problems.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n")
}
