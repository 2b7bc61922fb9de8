//! A plain TCP service on a port that iWARP has too: NFS on 20049, say, or SMB Direct's 5445.
//!
//! Read RFC 5044 §7.1: an MPA request begins with a 16-byte key. The driver looks at a new connection's first bytes without
//! taking them; as soon as they differ from the key the connection is the service's, from its first byte on. A client that
//! waits for the server to speak first cannot be told apart and is dropped after a while.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::listen::Listening;

/// How an MPA request begins (RFC 5044 §7.1).
const KEY: &[u8; 16] = b"MPA ID Req Frame";

/// Connections that may wait for the service to take them; more are reset.
const MAX_WAITING: usize = 1024;

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstBytes {
    /// An MPA request.
    Mpa,
    /// Something else.
    Plain,
    /// Too few to tell.
    Unknown,
}

/// Looks at the first bytes of a connection.
pub(super) fn judge(first: &[u8]) -> FirstBytes {
    let common = first.len().min(KEY.len());
    if first[..common] != KEY[..common] {
        FirstBytes::Plain
    } else if common == KEY.len() {
        FirstBytes::Mpa
    } else {
        FirstBytes::Unknown
    }
}

/// As many bytes as [`judge`] needs.
pub(super) const KEY_LEN: usize = KEY.len();

/// Connections for the service.
#[derive(Debug, Default)]
pub(super) struct PlainQueue {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<(OwnedFd, SocketAddr)>,
    waker: Option<Waker>,
    closed: bool,
}

impl PlainQueue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a connection over; false if too many wait.
    pub(super) fn push(&self, fd: OwnedFd, peer: SocketAddr) -> bool {
        let mut inner = self.lock();
        if inner.waiting.len() >= MAX_WAITING {
            return false;
        }
        inner.waiting.push_back((fd, peer));
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// The device is gone: nothing comes any more.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Connections of a shared port that do not speak MPA. One task at a time accepts. Dropped, it leaves the port to the device.
#[derive(Debug)]
pub struct PlainListener {
    queue: Arc<PlainQueue>,
    listening: Arc<Listening>,
    local: SocketAddr,
}

impl PlainListener {
    pub(crate) fn new(listening: &Arc<Listening>, addr: SocketAddr) -> io::Result<PlainListener> {
        let queue = Arc::new(PlainQueue::default());
        let local = listening.share(addr, &queue).map_err(|error| {
            io::Error::other(format!("no plain TCP service on {addr} of the device: {error}"))
        })?;
        Ok(PlainListener { queue, listening: listening.clone(), local })
    }

    /// The address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for the next connection; within a tokio runtime, which watches the stream.
    ///
    /// # Errors
    /// `NotConnected` once the device's host is closed; or the runtime cannot watch the stream.
    pub async fn accept(&self) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
        let (fd, peer) = poll_fn(|cx| {
            let mut inner = self.queue.lock();
            if let Some(next) = inner.waiting.pop_front() {
                return Poll::Ready(Ok(next));
            }
            if inner.closed {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::NotConnected)));
            }
            let replaced = inner.waker.replace(cx.waker().clone());
            drop(inner);
            drop(replaced);
            Poll::Pending
        })
        .await?;
        Ok((tokio::net::TcpStream::from_std(TcpStream::from(fd))?, peer))
    }
}

impl Drop for PlainListener {
    fn drop(&mut self) {
        self.listening.unshare(self.local);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5044 §7.1.1: the key's bytes, here from its hexadecimal table.
    #[test]
    fn the_first_bytes_decide() {
        let key =
            [0x4d, 0x50, 0x41, 0x20, 0x49, 0x44, 0x20, 0x52, 0x65, 0x71, 0x20, 0x46, 0x72, 0x61, 0x6d, 0x65];
        assert_eq!(judge(&key), FirstBytes::Mpa);
        assert_eq!(judge(&[]), FirstBytes::Unknown);
        for len in 1..16 {
            assert_eq!(judge(&key[..len]), FirstBytes::Unknown);
            let mut other = key;
            other[len - 1] ^= 0x20;
            assert_eq!(judge(&other[..len]), FirstBytes::Plain);
        }
        assert_eq!(judge(b"\0\0\0\x2c\xffSMB"), FirstBytes::Plain);
    }
}
