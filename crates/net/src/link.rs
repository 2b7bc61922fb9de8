//! Whether the device's interface is up and has a carrier: the port state that programs see.
//!
//! Read first: rtnetlink(7) on RTMGRP_LINK and its kin, netdevice(7) on SIOCGIFFLAGS. The kernel announces every change of any interface
//! on a netlink socket, which costs nothing while there is none; what an announcement says is not looked at, but the flags
//! asked for, so that lost ones do no harm. An interface that was deleted and made again is another to the kernel: it is
//! found by its name.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};

use crate::route::{self, Interface};

/// The interface of one device, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Link {
    /// Hears of changes.
    news: Socket,
    /// Asks for flags.
    ask: Socket,
    /// What it was when it was first seen, and is.
    first: u32,
    index: u32,
    name: String,
}

impl Link {
    /// Begins to watch.
    ///
    /// # Errors
    /// The kernel gives no sockets.
    pub(crate) fn watch(index: u32) -> io::Result<Link> {
        let netlink = Some(Protocol::from(libc::NETLINK_ROUTE));
        let news = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW.nonblocking(), netlink)?;
        news.bind(&link_changes())?;
        let ask = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        let mut link = Link { news, ask, first: index, index, name: String::new() };
        link.name = link.name_now().unwrap_or_default();
        Ok(link)
    }

    /// Readable when an interface has changed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Takes the news; whether there were any.
    pub(crate) fn has_changed(&self) -> bool {
        let mut changed = false;
        loop {
            let mut buffer = [0u8; 8];
            match rustix::net::recv(&self.news, &mut buffer[..], RecvFlags::DONTWAIT) {
                // NOBUFS: some were lost.
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }

    /// The interface as it is now: the same, or, if that is gone, the one that has its name; `None` if there is none.
    pub(crate) fn find(&mut self) -> Option<Interface> {
        if let Some(name) = self.name_now() {
            self.name = name;
        }
        let found = route::interface_through(&self.ask, &self.name).ok()?;
        self.index = found.index;
        Some(found)
    }

    /// What the scope `scope_id` that the device was opened with is now.
    pub(crate) fn scope(&self, scope_id: u32) -> u32 {
        if scope_id == self.first { self.index } else { scope_id }
    }

    fn name_now(&self) -> Option<String> {
        let request = self.request(&[libc::SIOCGIFNAME])?;
        let name = request.ifr_name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        String::from_utf8(name).ok()
    }

    /// Whether the interface is there, up, and has a carrier.
    pub(crate) fn is_running(&self) -> bool {
        let wanted = libc::IFF_UP | libc::IFF_RUNNING;
        self.request(&[libc::SIOCGIFNAME, libc::SIOCGIFFLAGS]).is_some_and(|request| {
            // SAFETY: SIOCGIFFLAGS has written the flags.
            i32::from(unsafe { request.ifr_ifru.ifru_flags }) & wanted == wanted
        })
    }

    /// Asks one question after the other about the interface with our index.
    fn request(&self, questions: &[libc::Ioctl]) -> Option<libc::ifreq> {
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index as i32;
        for question in questions {
            // SAFETY: `request` is a live ifreq; SIOCGIFNAME reads the index and writes the name, which may have changed, and
            // SIOCGIFFLAGS reads the name and writes the flags.
            if unsafe { libc::ioctl(self.ask.as_raw_fd(), *question, &raw mut request) } < 0 {
                return None;
            }
        }
        Some(request)
    }
}

/// The netlink address of those who hear of changes of interfaces and their addresses, which follow a new one.
fn link_changes() -> SockAddr {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: all-zero bytes are a valid sockaddr_nl.
    let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
    address.nl_groups = groups as u32;
    // SAFETY: sockaddr_nl is a socket address type, smaller than the storage.
    unsafe {
        *storage.view_as::<libc::sockaddr_nl>() = address;
        SockAddr::new(storage, mem::size_of::<libc::sockaddr_nl>() as libc::socklen_t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_runs_and_an_interface_that_is_not_there_does_not() {
        let index = crate::route::interface("lo").unwrap().index;
        assert!(Link::watch(index).unwrap().is_running());
        let nothing = Link::watch(i32::MAX as u32).unwrap();
        assert!(!nothing.is_running());
        assert!(!nothing.has_changed());
    }
}
