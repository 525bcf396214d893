//! Between a consumer and its Postgres: a TCP proxy that understands the frontend's
//! messages well enough to fail at a chosen one.

use std::io::{Read, Result as IoResult, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::wait::wait_until;

/// What goes wrong, once, at the first statement whose text contains the given one.
/// (A text comes with `Q` or `P`; sqlx sends a prepared statement's only once for
/// each connection.)
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The connection breaks, and the statement never reaches the server.
    CutBefore(&'static str),
    /// The server has done it, and the connection breaks before the client hears so.
    CutAfter(&'static str),
    /// The client's side breaks; the server's stays open, and the statement is on its
    /// way until [`Proxy::release`].
    Delay(&'static str),
    /// The statement, and all that follows it, waits for [`Proxy::release`].
    Hold(&'static str),
    /// Half of the data of this COPY arrives; the rest waits for [`Proxy::release`].
    HoldInCopy(&'static str),
}

/// A running proxy. Dropping it closes its connections.
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    armed: Option<Fault>,
    fired: bool,
    released: bool,
    refusing: bool,
    closed: bool,
    open: Vec<TcpStream>,
}

impl Proxy {
    /// In front of the server of this `postgres://user:password@127.0.0.1:port/database`.
    pub fn start(url: &str) -> Result<Self> {
        let (login, place) = url.rsplit_once('@').context("no @ in the URL")?;
        let (host, database) = place.split_once('/').context("no database in the URL")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared =
            Arc::new(Shared { server: host.parse()?, state: Mutex::new(State::default()), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let state = accepting.lock();
                if state.closed {
                    return;
                }
                let refusing = state.refusing;
                drop(state);
                // Dropped here, a client hears a reset or an end: no server is there.
                if let (Ok(client), false) = (client, refusing) {
                    let _ = accepting.connect(client);
                }
            }
        });
        Ok(Self { url: format!("{login}@127.0.0.1:{port}/{database}?sslmode=disable"), shared })
    }

    /// For the consumer's `DATABASE_URL`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Arms a fault; it happens once.
    pub fn arm(&self, fault: Fault) {
        let mut state = self.shared.lock();
        (state.armed, state.fired, state.released) = (Some(fault), false, false);
    }

    /// Waits until the armed fault has happened.
    pub fn wait_fired(&self, limit: Duration) -> Result<()> {
        let armed = format!("{:?}", self.shared.lock().armed);
        wait_until(limit, &format!("the fault {armed}"), || Ok(self.shared.lock().fired.then_some(())))
    }

    /// Lets what is held or delayed go on.
    pub fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    /// Cuts every connection and takes no new one.
    pub fn refuse(&self) {
        let mut state = self.shared.lock();
        state.refusing = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Takes connections again.
    pub fn accept(&self) {
        self.shared.lock().refusing = false;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.refuse();
        self.release();
        // Wakes the thread that accepts.
        if let Some(port) = self.url.rsplit_once(':').and_then(|(_, rest)| rest.split('/').next()?.parse::<u16>().ok())
        {
            let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a client with two threads, until either side ends.
    fn connect(self: &Arc<Self>, client: TcpStream) -> IoResult<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.lock().open.extend([client.try_clone()?, server.try_clone()?]);
        let answers = Arc::new(Answers::default());
        let (from, to, told) = (server.try_clone()?, client.try_clone()?, Arc::clone(&answers));
        thread::spawn(move || told.forward(from, to));
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let both = [client.try_clone(), server.try_clone()];
            // An error is the end of either side.
            let _ = shared.statements(client, server, &answers);
            both.into_iter().flatten().for_each(|side| drop(side.shutdown(Shutdown::Both)));
        });
        Ok(())
    }

    /// From client to server, message by message.
    fn statements(&self, mut client: TcpStream, mut server: TcpStream, answers: &Answers) -> IoResult<()> {
        // The first message has no type. (No SSL is asked for: sslmode=disable.)
        let first = read_message(&mut client, &[])?;
        server.write_all(&first)?;
        let mut half_the_next_data = false;
        loop {
            let mut kind = [0];
            client.read_exact(&mut kind)?;
            let message = read_message(&mut client, &kind)?;
            if half_the_next_data && kind == *b"d" {
                half_the_next_data = false;
                let (now, later) = message.split_at(message.len() / 2);
                server.write_all(now)?;
                self.fire_and_wait();
                server.write_all(later)?;
                continue;
            }
            match self.fault_at(&message) {
                None => server.write_all(&message)?,
                Some(Fault::CutBefore(_)) => {
                    self.fire();
                    return Ok(());
                }
                Some(Fault::CutAfter(_)) => {
                    answers.swallow();
                    server.write_all(&message)?;
                    answers.wait_for_one();
                    self.fire();
                    return Ok(());
                }
                Some(Fault::Delay(_)) => {
                    answers.swallow();
                    client.shutdown(Shutdown::Both)?;
                    self.fire_and_wait();
                    server.write_all(&message)?;
                    answers.wait_for_one();
                    return Ok(());
                }
                Some(Fault::Hold(_)) => {
                    self.fire_and_wait();
                    server.write_all(&message)?;
                }
                Some(Fault::HoldInCopy(_)) => {
                    half_the_next_data = true;
                    server.write_all(&message)?;
                }
            }
        }
    }

    /// The armed fault, if this is its statement. It is armed no longer.
    fn fault_at(&self, message: &[u8]) -> Option<Fault> {
        if !matches!(message.first(), Some(b'Q' | b'P')) {
            return None;
        }
        let mut state = self.lock();
        let (Fault::CutBefore(text)
        | Fault::CutAfter(text)
        | Fault::Delay(text)
        | Fault::Hold(text)
        | Fault::HoldInCopy(text)) = state.armed?;
        message.windows(text.len()).any(|part| part == text.as_bytes()).then(|| state.armed.take())?
    }

    fn fire(&self) {
        self.lock().fired = true;
    }

    fn fire_and_wait(&self) {
        let mut state = self.lock();
        state.fired = true;
        while !state.released {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The way from the server to one client.
#[derive(Default)]
struct Answers {
    swallowing: AtomicBool,
    ended: AtomicBool,
}

impl Answers {
    /// As it comes, to the end or to the first answer that is swallowed.
    fn forward(&self, mut server: TcpStream, mut client: TcpStream) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = server.read(&mut buffer) {
            if self.swallowing.load(Ordering::SeqCst) || client.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        self.ended.store(true, Ordering::SeqCst);
        let _ = client.shutdown(Shutdown::Both);
        if !self.swallowing.load(Ordering::SeqCst) {
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    fn swallow(&self) {
        self.swallowing.store(true, Ordering::SeqCst);
    }

    /// Until the server has said something that was swallowed, or its side ended.
    fn wait_for_one(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The rest of a message whose type was read: its length, which counts itself, and
/// its body.
fn read_message(client: &mut TcpStream, kind: &[u8]) -> IoResult<Vec<u8>> {
    let mut length = [0; 4];
    client.read_exact(&mut length)?;
    let body = usize::try_from(u32::from_be_bytes(length)).map_err(std::io::Error::other)?.saturating_sub(4);
    let mut message = [kind, &length].concat();
    let start = message.len();
    message.resize(start + body, 0);
    client.read_exact(&mut message[start..])?;
    Ok(message)
}
