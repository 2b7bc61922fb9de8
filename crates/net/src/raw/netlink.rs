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
        Ok(hop_in(&answer, dst, interface))
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
        Ok(mac_in(&answer))
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
            if let Some(answer) = answer_in(&buffer[..len], self.sequence, reply) {
                return answer.map(<[u8]>::to_vec);
            }
        }
    }
}

/// The body of the message of type `reply` that answers request `sequence`, or the error that does; `None` if neither is
/// among these messages.
fn answer_in(mut rest: &[u8], sequence: u32, reply: u16) -> Option<io::Result<&[u8]>> {
    while let Some(header) = sockopt::read::<libc::nlmsghdr>(rest) {
        let end = header.nlmsg_len as usize;
        let payload = rest.get(mem::size_of::<libc::nlmsghdr>()..end)?;
        if header.nlmsg_seq == sequence {
            if header.nlmsg_type == reply {
                return Some(Ok(payload));
            }
            if header.nlmsg_type == NLMSG_ERROR {
                let errno = sockopt::read::<i32>(payload).unwrap_or(0);
                return Some(Err(io::Error::from_raw_os_error(errno.saturating_neg())));
            }
        }
        rest = rest.get(end.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// The next hop to `dst` that a route names; what it does not name stays as it was asked.
fn hop_in(route: &[u8], dst: IpAddr, interface: u32) -> NextHop {
    let kind = route.get(7).copied().unwrap_or(0);
    let mut hop = NextHop { ip: dst, interface, local: kind == RTN_LOCAL };
    for (name, value) in attributes(route.get(RTMSG..).unwrap_or_default()) {
        match name {
            RTA_GATEWAY => hop.ip = address(value).unwrap_or(hop.ip),
            RTA_OIF => hop.interface = sockopt::read::<u32>(value).unwrap_or(hop.interface),
            _ => {}
        }
    }
    hop
}

/// The MAC address of a neighbour that the kernel knows how to reach.
fn mac_in(neighbour: &[u8]) -> Option<[u8; 6]> {
    let state = neighbour.get(8..10).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]));
    if state & NUD_VALID == 0 {
        return None;
    }
    let mut found = attributes(neighbour.get(NDMSG..).unwrap_or_default());
    found.find(|(name, _)| *name == NDA_LLADDR).and_then(|(_, value)| value.try_into().ok())
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

#[cfg(test)]
mod fuzz {
    use super::*;

    /// A message as the kernel sends it: header, fixed part, attributes.
    fn message(kind: u16, fixed: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = fixed.to_vec();
        for (name, value) in attributes {
            attribute(&mut body, *name, value);
        }
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 2]);
        message.extend(1u32.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        message
    }

    fn answers() -> Vec<Vec<u8>> {
        let route = [libc::AF_INET as u8, 32, 0, 0, 254, 0, 0, RTN_LOCAL, 0, 0, 0, 0];
        let mut neighbour = [0; NDMSG];
        neighbour[8] = 0x02;
        let route =
            message(RTM_NEWROUTE, &route, &[(RTA_OIF, &[2, 0, 0, 0]), (RTA_GATEWAY, &[192, 0, 2, 1])]);
        let neighbour =
            message(RTM_NEWNEIGH, &neighbour, &[(NDA_DST, &[192, 0, 2, 1]), (NDA_LLADDR, &[2; 6])]);
        let error = message(NLMSG_ERROR, &(-libc::ENOENT).to_ne_bytes(), &[]);
        vec![route.clone(), neighbour.clone(), error.clone(), [route, neighbour, error].concat()]
    }

    everywire_fuzz::target!(netlink_answer, answers(), |bytes| {
        for reply in [RTM_NEWROUTE, RTM_NEWNEIGH] {
            let Some(Ok(answer)) = answer_in(bytes, 1, reply) else { continue };
            assert!(answer.len() + HEADER <= bytes.len());
            let _ = mac_in(answer);
            let hop = hop_in(answer, IpAddr::V4(Ipv4Addr::LOCALHOST), 7);
            assert_eq!(hop.local, answer.get(7) == Some(&RTN_LOCAL));
        }
    });

    #[test]
    fn the_seeds_are_answers() {
        let seeds = answers();
        let route = answer_in(&seeds[0], 1, RTM_NEWROUTE).unwrap().unwrap();
        let hop = hop_in(route, IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        assert_eq!(hop, NextHop { ip: "192.0.2.1".parse().unwrap(), interface: 2, local: true });
        let neighbour = answer_in(&seeds[1], 1, RTM_NEWNEIGH).unwrap().unwrap();
        assert_eq!(mac_in(neighbour), Some([2; 6]));
        let error = answer_in(&seeds[2], 1, RTM_NEWNEIGH).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
