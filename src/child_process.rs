//! Child processes that never outlive this process, not even when it is
//! killed with SIGKILL: the demo and the tests start servers and consumers,
//! and a leftover would hold its port, its memory and its files.
//!
//! On Linux the kernel does it (`PR_SET_PDEATHSIG`). Elsewhere nobody does:
//! there an orderly end stops the children, and a SIGKILL leaves them.
#![allow(unsafe_code, reason = "raw bindings to libc: signals, and a child that dies with us")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command` in a process group of its own (Ctrl-C in a terminal is
/// for us to handle, not for the child) and has the kernel send it
/// `death_signal` when this process ends.
pub fn spawn_bound(mut command: Command, death_signal: i32) -> io::Result<Child> {
    command.process_group(0);
    bind_to_this_process(&mut command, death_signal)?;
    let (answer, answered) = mpsc::channel();
    keeper()?.send((command, answer)).map_err(|_| keeper_gone())?;
    answered.recv().map_err(|_| keeper_gone())?
}

/// The kernel sends the death signal when the *thread* that forked the child
/// ends, so every child is forked by one thread that lives as long as the
/// process.
fn keeper() -> io::Result<mpsc::Sender<Request>> {
    static KEEPER: OnceLock<Mutex<Option<mpsc::Sender<Request>>>> = OnceLock::new();
    let mut slot = KEEPER.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sender) = slot.as_ref() {
        return Ok(sender.clone());
    }
    let (sender, requests) = mpsc::channel::<Request>();
    thread::Builder::new().name("child-keeper".to_owned()).spawn(move || {
        for (mut command, answer) in requests {
            // The asker waits for this answer; if it is gone, so is the need for the child.
            if let Err(mpsc::SendError(Ok(mut orphan))) = answer.send(command.spawn()) {
                let _ = orphan.kill();
                let _ = orphan.wait();
            }
        }
    })?;
    *slot = Some(sender.clone());
    Ok(sender)
}

fn keeper_gone() -> io::Error {
    io::Error::other("the thread that starts child processes has ended")
}

#[cfg(target_os = "linux")]
fn bind_to_this_process(command: &mut Command, death_signal: i32) -> io::Result<()> {
    let parent = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let signal = libc::c_ulong::try_from(death_signal).map_err(io::Error::other)?;
    // SAFETY: prctl and getppid are async-signal-safe and nothing is allocated
    // between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // Runs after the change of user, which would clear the setting.
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn bind_to_this_process(_: &mut Command, _: i32) -> io::Result<()> {
    Ok(())
}

/// Sends a signal to a child. A child that has ended and was waited for is
/// left alone: its number may belong to somebody else by now.
pub fn signal(child: &mut Child, signal: i32) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: kill takes two integers; the child is ours and not yet waited for.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until the child has ended; `None` when it still runs after `limit`.
pub fn wait_at_most(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}
