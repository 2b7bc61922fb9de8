//! Listening sockets: bound at the call, so that a port that is taken is refused there, and watched by the driver later.
//!
//! A port may have two takers: the device, for peers that begin with MPA's key (RFC 5044 §7.1), and a plain TCP service, for
//! all others. The socket closes with the last of them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use everywire_verbs::{StreamError, StreamListenerId};
use socket2::{Domain, Protocol, Socket, Type};

use super::plain::PlainQueue;

/// Connections that the kernel keeps until they are accepted; it may allow fewer (net.core.somaxconn).
const KERNEL_BACKLOG: i32 = 4096;

/// One listening socket.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) fd: Arc<OwnedFd>,
    /// The device has it, or is about to.
    reserved: bool,
    /// The device's listener.
    pub(super) rdma: Option<StreamListenerId>,
    pub(super) plain: Option<Arc<PlainQueue>>,
}

/// The listening sockets of a device, by address.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    entries: Mutex<HashMap<SocketAddr, Entry>>,
    /// Something has changed that the driver has not seen.
    changed: AtomicBool,
}

impl Listening {
    pub(super) fn entries(&self) -> MutexGuard<'_, HashMap<SocketAddr, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the driver must look.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire) && self.changed.swap(false, Ordering::AcqRel)
    }

    /// Binds and listens for the device. Port 0 takes a free one.
    ///
    /// # Errors
    /// Somebody has it.
    pub(crate) fn reserve(&self, addr: SocketAddr) -> Result<SocketAddr, StreamError> {
        let (addr, taken) = self.with(addr, |entry| std::mem::replace(&mut entry.reserved, true))?;
        if taken { Err(StreamError::AddressInUse) } else { Ok(addr) }
    }

    /// The device does not want it after all, or any more.
    pub(crate) fn release(&self, addr: SocketAddr) {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&addr) {
            (entry.reserved, entry.rdma) = (false, None);
            if entry.plain.is_none() {
                entries.remove(&addr); // closed, and so watched no more
            }
        }
        self.changed.store(true, Ordering::Release);
    }

    /// The device listens: its connections have this name.
    pub(crate) fn begin(&self, addr: SocketAddr, listener: StreamListenerId) -> Result<(), StreamError> {
        self.with(addr, |entry| (entry.reserved, entry.rdma) = (true, Some(listener)))?;
        Ok(())
    }

    /// The listener of this name ends.
    pub(crate) fn end(&self, listener: StreamListenerId) {
        let of = self.entries().iter().find(|(_, entry)| entry.rdma == Some(listener)).map(|(&addr, _)| addr);
        if let Some(addr) = of {
            self.release(addr);
        }
    }

    /// Hands what is no MPA on this port to `queue`.
    pub(super) fn share(&self, addr: SocketAddr, queue: &Arc<PlainQueue>) -> Result<SocketAddr, StreamError> {
        let (addr, taken) = self.with(addr, |entry| {
            let taken = entry.plain.is_some();
            entry.plain.get_or_insert_with(|| queue.clone());
            taken
        })?;
        if taken { Err(StreamError::AddressInUse) } else { Ok(addr) }
    }

    /// The plain service ends.
    pub(super) fn unshare(&self, addr: SocketAddr) {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&addr) {
            entry.plain = None;
            if !entry.reserved {
                entries.remove(&addr);
            }
        }
        self.changed.store(true, Ordering::Release);
    }

    /// Changes the entry of an address, which is bound if there is none.
    fn with<T>(
        &self,
        addr: SocketAddr,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Result<(SocketAddr, T), StreamError> {
        let mut entries = self.entries();
        let addr = if entries.contains_key(&addr) {
            addr
        } else {
            let (fd, bound) = bind(addr).map_err(|error| stream_error(&error))?;
            entries.insert(bound, Entry { fd: Arc::new(fd), reserved: false, rdma: None, plain: None });
            bound
        };
        let result = entries.get_mut(&addr).map(change).ok_or(StreamError::AddressInUse)?;
        self.changed.store(true, Ordering::Release);
        Ok((addr, result))
    }
}

fn bind(addr: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(addr), kind, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(KERNEL_BACKLOG)?;
    let mut bound = addr;
    bound.set_port(socket.local_addr()?.as_socket().map_or(addr.port(), |local| local.port()));
    Ok((socket.into(), bound))
}

/// What the system said, in the device's words.
pub(super) fn stream_error(error: &io::Error) -> StreamError {
    StreamError::from_errno(error.raw_os_error().unwrap_or(0))
}
