//! SIGINT and SIGTERM as a wish to finish: flush, report, end. A second one
//! ends the process at once.
#![allow(unsafe_code, reason = "raw bindings to libc: waiting for input and for signals")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};

use tokio::signal::unix::{SignalKind, signal as listen};

/// The first signal that came, 0 if none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// How long a wait for input goes on before it looks for a signal.
const LOOK_EVERY_MILLIS: i32 = 100;

/// Begins to watch for signals, on a thread of its own.
pub fn watch() -> io::Result<()> {
    on_each(|number| {
        if SIGNAL.swap(number, Ordering::Relaxed) != 0 {
            std::process::exit(128 + number);
        }
        let signal = if number == libc::SIGINT { "SIGINT" } else { "SIGTERM" };
        tracing::info!(signal, "finishing what has begun; a second signal ends it at once");
    })
}

/// For work that is worth nothing half done: the first signal cleans up and ends the
/// process, wherever it waits.
pub fn end_at_once(clean_up: impl Fn() + Send + 'static) -> io::Result<()> {
    on_each(move |number| {
        clean_up();
        std::process::exit(128 + number);
    })
}

fn on_each(act: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Registered before this returns: no signal is missed from here on.
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                act(tokio::select! {
                    _ = interrupt.recv() => libc::SIGINT,
                    _ = terminate.recv() => libc::SIGTERM,
                });
            }
        });
    })?;
    Ok(())
}

/// The signal that came.
pub fn signal() -> Option<i32> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        number => Some(number),
    }
}

/// As a shell has it: 130 after SIGINT, 143 after SIGTERM.
pub fn exit_code(signal: i32) -> ExitCode {
    u8::try_from(128 + signal).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Waits until there is something to read, or the end of it. False: a signal
/// came first. A plain read would sleep through it.
pub fn wait_readable(input: BorrowedFd<'_>) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: input.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        if signal().is_some() {
            return Ok(false);
        }
        // SAFETY: one pollfd, as said, and it lives as long as the call.
        match unsafe { libc::poll(&raw mut poll, 1, LOOK_EVERY_MILLIS) } {
            0 => {}
            1.. => return Ok(true),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
