//! The two questions that raw Ethernet asks the kernel by rtnetlink: the next hop to an address, and a neighbour's MAC.
//!
//! Read first: netlink(7), rtnetlink(7). One request, one answer, on a socket of its own; nothing is changed.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::sockopt;

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTN_LOCAL: u8 = 2;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// Reachable, stale, delay, probe, noarp, permanent: the states with an address to send to.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const HEADER: usize = 16;
const RTMSG: usize = 12;
const NDMSG: usize = 12;

/// How an address is reached on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The neighbour to send to: the address itself or a router.
    pub ip: IpAddr,
    /// Interface index.
    pub interface: u32,
    /// Whether it is an address of this host.
    pub local: bool,
}

/// An rtnetlink socket.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens one.
    pub fn open() -> io::Result<Netlink> {
        let socket = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::RAW,
            Some(Protocol::from(libc::NETLINK_ROUTE)),
        )?;
        Ok(Netlink { fd: socket.into(), sequence: 0 })
    }

    /// The next hop to `dst` from the interface `interface` (0: any).
    pub fn next_hop(&mut self, dst: IpAddr, interface: u32) -> io::Result<NextHop> {
        let (family, bits) = family_of(dst);
        let mut body = vec![0u8; RTMSG];
        body[0] = family;
        body[1] = bits;
        attribute(&mut body, RTA_DST, &octets(dst));
        if interface != 0 {
            attribute(&mut body, RTA_OIF, &interface.to_ne_bytes());
        }
        let answer = self.ask(RTM_GETROUTE, RTM_NEWROUTE, &body)?;
        let kind = answer.get(7).copied().unwrap_or(0);
        let mut hop = NextHop { ip: dst, interface, local: kind == RTN_LOCAL };
        for (name, value) in attributes(answer.get(RTMSG..).unwrap_or_default()) {
            match name {
                RTA_GATEWAY => hop.ip = address(value).unwrap_or(hop.ip),
                RTA_OIF => hop.interface = sockopt::read::<u32>(value).unwrap_or(hop.interface),
                _ => {}
            }
        }
        Ok(hop)
    }

    /// The MAC address of a neighbour; `None` while the kernel does not know it.
    pub fn neighbour(&mut self, ip: IpAddr, interface: u32) -> io::Result<Option<[u8; 6]>> {
        let mut body = vec![0u8; NDMSG];
        body[0] = family_of(ip).0;
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        attribute(&mut body, NDA_DST, &octets(ip));
        let answer = match self.ask(RTM_GETNEIGH, RTM_NEWNEIGH, &body) {
            Ok(answer) => answer,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let state = answer.get(8..10).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]));
        if state & NUD_VALID == 0 {
            return Ok(None);
        }
        let mut found = attributes(answer.get(NDMSG..).unwrap_or_default());
        Ok(found.find(|(name, _)| *name == NDA_LLADDR).and_then(|(_, value)| value.try_into().ok()))
    }

    fn ask(&mut self, request: u16, reply: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(request.to_ne_bytes());
        message.extend(NLM_F_REQUEST.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        rustix::net::send(self.fd.as_fd(), &message, rustix::net::SendFlags::empty())?;
        let mut buffer = vec![0u8; 16_384];
        loop {
            let (len, _) =
                rustix::net::recv(self.fd.as_fd(), &mut buffer[..], rustix::net::RecvFlags::empty())?;
            let mut rest = &buffer[..len];
            while let Some(header) = sockopt::read::<libc::nlmsghdr>(rest) {
                let end = header.nlmsg_len as usize;
                let Some(payload) = rest.get(mem::size_of::<libc::nlmsghdr>()..end) else { break };
                if header.nlmsg_seq == self.sequence {
                    if header.nlmsg_type == reply {
                        return Ok(payload.to_vec());
                    }
                    if header.nlmsg_type == NLMSG_ERROR {
                        let errno = sockopt::read::<i32>(payload).unwrap_or(0);
                        return Err(io::Error::from_raw_os_error(-errno));
                    }
                }
                rest = rest.get(end.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

impl AsRawFd for Netlink {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

fn family_of(ip: IpAddr) -> (u8, u8) {
    match ip {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))),
        16 => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))),
        _ => None,
    }
}

fn attribute(body: &mut Vec<u8>, name: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(name.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = rest.get(..4)?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..len)?;
        let name = u16::from_ne_bytes([head[2], head[3]]);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((name, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_local() {
        let mut netlink = Netlink::open().unwrap();
        let hop = netlink.next_hop(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).unwrap();
        assert!(hop.local);
        let index = crate::route::interface("lo").unwrap().index;
        assert_eq!((hop.ip, hop.interface), (IpAddr::V4(Ipv4Addr::LOCALHOST), index));
    }

    #[test]
    fn an_unknown_neighbour_is_none() {
        let mut netlink = Netlink::open().unwrap();
        let index = crate::route::interface("lo").unwrap().index;
        let answer = netlink.neighbour("127.88.77.66".parse().unwrap(), index);
        assert!(matches!(answer, Ok(None)), "{answer:?}");
    }
}
