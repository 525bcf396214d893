//! This process's connections to Postgres: sqlx does not hand its sockets out.
#![allow(unsafe_code, reason = "raw bindings to libc: a socket that nobody hands out")]

use std::mem::{MaybeUninit, size_of};

/// No process has more sockets open than this looks at.
const MOST_DESCRIPTORS: i32 = 4096;

/// Sends at once, on every TCP connection of this process to `port`.
///
/// sqlx 0.9.0 leaves Nagle's algorithm on: the small end of every COPY then waits 40 ms for
/// the server's delayed acknowledgement (seen: four times in each batch). Fixed upstream
/// (<https://github.com/transact-rs/sqlx/issues/4335>); with the next release of sqlx this
/// function goes.
pub fn send_at_once(port: u16) {
    for descriptor in connections(port) {
        let on: libc::c_int = 1;
        // SAFETY: the option's value is an int, and it lives as long as the call. A
        // descriptor that is no TCP socket is refused. Where it fails, it is slow.
        unsafe {
            let value = (&raw const on).cast();
            libc::setsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_NODELAY, value, length_of::<libc::c_int>());
        }
    }
}

/// How many TCP connections to `port` this process has open. Those over a Unix socket are
/// not counted.
pub fn connected_to(port: u16) -> i64 {
    i64::try_from(connections(port).count()).unwrap_or(i64::MAX)
}

fn connections(port: u16) -> impl Iterator<Item = i32> {
    (3..MOST_DESCRIPTORS).filter(move |descriptor| peer_port(*descriptor) == Some(port))
}

/// The port at the other end of a TCP connection, `None` for any other descriptor.
fn peer_port(descriptor: i32) -> Option<u16> {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = length_of::<libc::sockaddr_storage>();
    // SAFETY: the address has room for `length` bytes of any family, zero is a valid
    // value of all of its fields, and each cast follows its own family.
    unsafe {
        if libc::getpeername(descriptor, address.as_mut_ptr().cast(), &raw mut length) != 0 {
            return None;
        }
        let address = address.as_ptr();
        let port = match libc::c_int::from((*address).ss_family) {
            libc::AF_INET => (*address.cast::<libc::sockaddr_in>()).sin_port,
            libc::AF_INET6 => (*address.cast::<libc::sockaddr_in6>()).sin6_port,
            _ => return None,
        };
        Some(u16::from_be(port))
    }
}

fn length_of<T>() -> libc::socklen_t {
    // A few bytes: it fits.
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default()
}
