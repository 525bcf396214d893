//! A bad network: a TCP proxy that knows no protocol, between a consumer and its
//! Postgres or its Kafka. It delays, narrows, cuts and resets connections, and lets
//! some fall silent: their bytes are taken and go nowhere.
#![allow(unsafe_code, reason = "raw bindings to libc or librdkafka, in tests")]

use std::io::{ErrorKind, Read, Result as IoResult, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How often a quiet connection looks at what has become of it.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Nobody who is well takes longer to take a few kilobytes.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A running proxy on 127.0.0.1. Dropping it resets its connections.
pub struct Network {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// What has happened, to be told.
    done: AtomicU64,
}

#[derive(Default)]
struct State {
    server: u16,
    weather: Weather,
    newcomers: Newcomers,
    links: Vec<Arc<Link>>,
    closed: bool,
}

/// What all connections suffer.
#[derive(Clone, Copy, Default)]
struct Weather {
    delay: Duration,
    /// 0 is as many as there are.
    bytes_per_second: u32,
}

/// What becomes of those who connect.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Newcomers {
    #[default]
    Served,
    Refused,
    /// The connection is accepted, and nobody ever speaks.
    Silent,
}

/// What becomes of one connection. Whoever has lost bytes never carries any again.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Fate {
    Carry,
    /// What the client sends goes nowhere; it may still hear.
    LoseRequests,
    /// What the server sends goes nowhere.
    LoseAnswers,
    LoseAll,
    Reset,
}

struct Link(AtomicU8);

impl Network {
    /// Leads nowhere yet.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.lock().closed {
                    return;
                }
                if let Ok(client) = client {
                    accepting.take(client);
                }
            }
        });
        Ok(Self { port, shared })
    }

    /// To a server on this port of 127.0.0.1.
    pub fn to(server: u16) -> Result<Self> {
        let network = Self::start()?;
        network.lead_to(server);
        Ok(network)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, for clients of Kafka.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A URL `postgres://user:password@host:port/database`, by way of this network.
    pub fn url(&self, direct: &str) -> Result<String> {
        let (login, place) = direct.rsplit_once('@').context("no @ in the URL")?;
        let (_, database) = place.split_once('/').context("no database in the URL")?;
        Ok(format!("{login}@127.0.0.1:{}/{database}", self.port))
    }

    /// Whoever connects from now on is brought to this port.
    pub fn lead_to(&self, server: u16) {
        self.shared.lock().server = server;
    }

    /// Resets every connection and takes no new one.
    pub fn cut(&self) {
        self.shared.lock().newcomers = Newcomers::Refused;
        self.doom(Fate::Reset);
    }

    /// Every connection, and every new one, is open and says nothing.
    pub fn fall_silent(&self) {
        self.shared.lock().newcomers = Newcomers::Silent;
        self.doom(Fate::LoseAll);
    }

    /// New connections are served; those that have fallen silent stay so.
    pub fn serve_again(&self) {
        self.shared.lock().newcomers = Newcomers::Served;
    }

    /// Fair weather. What has fallen silent is reset: somebody has noticed at last.
    pub fn calm(&self) {
        let mut state = self.shared.lock();
        (state.weather, state.newcomers) = (Weather::default(), Newcomers::Served);
        state.links.iter().filter(|link| link.fate() != Fate::Carry).for_each(|link| link.meet(Fate::Reset));
    }

    /// Does what a seed says for so long, and is calm then. Returns how many things it did.
    pub fn storm(&self, seed: u64, lasts: Duration) -> u64 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (until, before) = (Instant::now() + lasts, self.shared.done.load(Ordering::Relaxed));
        while Instant::now() < until {
            self.do_something(&mut random);
            thread::sleep(Duration::from_millis(random.random_range(50..600)));
        }
        self.calm();
        self.shared.done.load(Ordering::Relaxed) - before
    }

    fn do_something(&self, random: &mut ChaCha8Rng) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
        match random.random_range(0..10) {
            0 | 1 => self.doom_one(random, Fate::Reset),
            2 => self.doom_one(random, Fate::LoseRequests),
            3 => self.doom_one(random, Fate::LoseAnswers),
            4 => self.doom_one(random, Fate::LoseAll),
            5 => self.doom(Fate::Reset),
            6 => self.shared.lock().weather.delay = Duration::from_millis(random.random_range(5..150)),
            7 => self.shared.lock().weather.bytes_per_second = random.random_range(20_000..500_000),
            8 => {
                let way = if random.random() { Newcomers::Refused } else { Newcomers::Silent };
                self.shared.lock().newcomers = way;
                thread::sleep(Duration::from_millis(random.random_range(200..2_000)));
                self.shared.lock().newcomers = Newcomers::Served;
            }
            // Also ends what has been silent for a while.
            _ => self.calm(),
        }
    }

    fn doom(&self, fate: Fate) {
        self.shared.lock().links.iter().for_each(|link| link.meet(fate));
    }

    fn doom_one(&self, random: &mut ChaCha8Rng, fate: Fate) {
        let state = self.shared.lock();
        if !state.links.is_empty() {
            state.links[random.random_range(0..state.links.len())].meet(fate);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.doom(Fate::Reset);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a client with a thread of its own, until either side ends.
    fn take(self: &Arc<Self>, client: TcpStream) {
        let mut state = self.lock();
        let (server, newcomers) = (state.server, state.newcomers);
        if newcomers == Newcomers::Refused || server == 0 {
            return drop(reset(client));
        }
        let link = Arc::new(Link(AtomicU8::new(Fate::Carry as u8)));
        if newcomers == Newcomers::Silent {
            link.meet(Fate::LoseAll);
        }
        state.links.push(Arc::clone(&link));
        drop(state);
        let shared = Arc::clone(self);
        thread::spawn(move || {
            // An error is the end of either side.
            let _ = shared.carry(client, server, &link);
            shared.lock().links.retain(|other| !Arc::ptr_eq(other, &link));
        });
    }

    fn carry(&self, mut client: TcpStream, server: u16, link: &Link) -> IoResult<()> {
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
        for side in [&client, &server] {
            side.set_nodelay(true)?;
            side.set_write_timeout(Some(WRITE_LIMIT))?;
        }
        // A side that has ended while its bytes were lost: the other never hears of it.
        let (mut client_is_there, mut server_is_there) = (true, true);
        while client_is_there || server_is_there {
            let (from_client, from_server) =
                readable(client_is_there.then_some(&client), server_is_there.then_some(&server))?;
            let fate = link.fate();
            if fate == Fate::Reset {
                let _ = reset(server);
                let _ = reset(client);
                return Ok(());
            }
            if from_client {
                let arrives = !matches!(fate, Fate::LoseRequests | Fate::LoseAll);
                client_is_there = self.pass(&mut client, &mut server, arrives)?;
            }
            if from_server {
                let arrives = !matches!(fate, Fate::LoseAnswers | Fate::LoseAll);
                server_is_there = self.pass(&mut server, &mut client, arrives)?;
            }
        }
        Ok(())
    }

    /// Passes a piece of what is there on, or loses it. Whether there may be more.
    fn pass(&self, from: &mut TcpStream, to: &mut TcpStream, arrives: bool) -> IoResult<bool> {
        let mut buffer = [0; 1 << 14];
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return if arrives { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(false) };
        }
        let weather = self.lock().weather;
        let bytes = u64::try_from(count).unwrap_or(u64::MAX);
        let narrow = match u64::from(weather.bytes_per_second) {
            0 => Duration::ZERO,
            most => Duration::from_micros(bytes * 1_000_000 / most),
        };
        thread::sleep(weather.delay + narrow);
        if arrives {
            to.write_all(&buffer[..count])?;
        }
        Ok(true)
    }
}

impl Link {
    fn fate(&self) -> Fate {
        let fates = [Fate::Carry, Fate::LoseRequests, Fate::LoseAnswers, Fate::LoseAll, Fate::Reset];
        fates[usize::from(self.0.load(Ordering::SeqCst))]
    }

    /// It only ever gets worse: bytes that are lost stay lost.
    fn meet(&self, fate: Fate) {
        self.0.fetch_max(fate as u8, Ordering::SeqCst);
    }
}

/// Which of the two has something to say, or has ended; waits a moment for it.
fn readable(client: Option<&TcpStream>, server: Option<&TcpStream>) -> IoResult<(bool, bool)> {
    // A negative descriptor is left out.
    let watch = |side: Option<&TcpStream>| libc::pollfd {
        fd: side.map_or(-1, AsRawFd::as_raw_fd),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut both = [watch(client), watch(server)];
    let patience = i32::try_from(LOOK_EVERY.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: both descriptors are open as long as the call, and the list holds two of them.
    if unsafe { libc::poll(both.as_mut_ptr(), 2, patience) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok((both[0].revents != 0, both[1].revents != 0))
}

/// Closes a connection by a reset, as a machine does that does not know it.
fn reset(stream: TcpStream) -> IoResult<()> {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap_or_default();
    // SAFETY: the option's value is a linger, and it lives as long as the call.
    let status = unsafe {
        let value = (&raw const at_once).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, length)
    };
    if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
