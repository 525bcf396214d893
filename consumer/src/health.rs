//! Whether a process lives and whether it can post, told to whoever runs it.

use crate::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
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

/// The condition of each worker of a process.
#[derive(Clone)]
pub struct Health(Arc<Mutex<Vec<(Condition, Instant)>>>);

impl Health {
    pub fn new(workers: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![(Condition::Waiting("starting".to_owned()), Instant::now()); workers])))
    }

    /// Says how a worker is, and that it is still alive.
    pub fn say(&self, worker: usize, condition: Condition) {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers[worker] = (condition, Instant::now());
    }

    /// How many workers are ready.
    pub fn ready(&self) -> i64 {
        let workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = workers.iter().filter(|(condition, _)| *condition == Condition::Ready).count();
        i64::try_from(ready).unwrap_or(i64::MAX)
    }

    /// Why the process is not ready, a line for each worker that is not.
    fn not_ready(&self) -> Vec<String> {
        let workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = |(number, (condition, _)): (usize, &(Condition, Instant))| match condition {
            Condition::Ready => None,
            Condition::Waiting(why) => Some(format!("worker {number}: {why}")),
        };
        workers.iter().enumerate().filter_map(reason).collect()
    }

    fn hung(&self) -> Vec<String> {
        let workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hung = workers.iter().enumerate().filter(|(_, (_, turned))| turned.elapsed() > HUNG_AFTER);
        hung.map(|(number, (_, turned))| format!("worker {number} has not turned for {:?}", turned.elapsed())).collect()
    }
}

/// Serves `/metrics`, `/livez` and `/readyz` until the process ends.
pub async fn serve(listener: TcpListener, metrics: Metrics, health: Health) -> std::io::Result<()> {
    let pages = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/livez", get(|State((_, health)): State<(Metrics, Health)>| async move { answer(health.hung()) }))
        .route("/readyz", get(|State((_, health)): State<(Metrics, Health)>| async move { answer(health.not_ready()) }))
        .with_state((metrics, health));
    axum::serve(listener, pages).await
}

/// Binds the address, so that a port in use is an error at the start.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

async fn metrics_page(State((metrics, health)): State<(Metrics, Health)>) -> impl IntoResponse {
    metrics.workers_ready.set(health.ready());
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
