//! Which MAC address a frame to an IP address needs: the kernel's own neighbour table, asked and, if need be, poked.
//!
//! The kernel does ARP and neighbour discovery; a datagram to the neighbour's discard port makes it begin. Answers are kept
//! for a while; frames to a neighbour that is being asked for wait in `port.rs`.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use everywire_wire::MacAddr;

use super::netlink::Netlink;
use crate::route;

/// How long an answer is believed before the kernel is asked again.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// How long one poke is waited for before the next.
const POKE_EVERY: Duration = Duration::from_millis(200);
/// After so long without an answer the neighbour counts as unreachable.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);
/// Most addresses remembered.
const MAX_KNOWN: usize = 4096;
/// The discard port (RFC 863).
const DISCARD: u16 = 9;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// To this MAC address.
    Mac(MacAddr),
    /// To this very host.
    Local,
    /// The kernel is being asked.
    Wait,
    /// Nobody answers.
    Unreachable,
}

#[derive(Debug)]
enum Known {
    Answer { link: Link, at: Instant },
    Asking { next_hop: IpAddr, since: Instant, poked: Instant },
}

/// The neighbours of one interface.
#[derive(Debug)]
pub struct Neighbours {
    netlink: Netlink,
    interface: u32,
    source: IpAddr,
    /// By address, and whether it has to be on the link itself.
    known: HashMap<(IpAddr, bool), Known>,
}

/// The router that the way to `dst` leads through, if there is one. What the kernel does not tell is found out when frames go.
pub fn router_to(dst: IpAddr) -> Option<IpAddr> {
    let hop = Netlink::open().ok()?.next_hop(dst, 0).ok()?;
    (!hop.local && hop.ip != dst).then_some(hop.ip)
}

impl Neighbours {
    /// Neighbours on the interface with index `interface`, asked for in the name of `source`.
    pub fn new(interface: u32, source: IpAddr) -> io::Result<Neighbours> {
        Ok(Neighbours { netlink: Netlink::open()?, interface, source, known: HashMap::new() })
    }

    /// The interface is another now: nothing that was known holds.
    pub fn moved_to(&mut self, interface: u32) {
        self.interface = interface;
        self.known.clear();
    }

    /// Where frames to `dst` go, as far as is known now; `on_link`: what is behind a router cannot be reached.
    pub fn find(&mut self, dst: IpAddr, on_link: bool, now: Instant) -> Link {
        if dst.is_multicast() {
            return Link::Mac(MacAddr::for_multicast(dst));
        }
        if dst == self.source {
            return Link::Local;
        }
        let key = (dst, on_link);
        let next_hop = match self.known.get(&key) {
            Some(Known::Answer { link, at }) if now.saturating_duration_since(*at) < FRESH_FOR => {
                return *link;
            }
            Some(Known::Asking { next_hop, .. }) => *next_hop,
            _ => match self.netlink.next_hop(dst, self.interface) {
                Ok(hop) if hop.local => return self.keep(key, Link::Local, now),
                Ok(hop) if hop.interface == self.interface && (!on_link || hop.ip == dst) => hop.ip,
                // The route leads elsewhere, or nowhere: not through this device.
                Ok(_) | Err(_) => return self.keep(key, Link::Unreachable, now),
            },
        };
        if let Ok(Some(mac)) = self.netlink.neighbour(next_hop, self.interface) {
            return self.keep(key, Link::Mac(MacAddr(mac)), now);
        }
        self.ask(key, next_hop, now)
    }

    fn ask(&mut self, key: (IpAddr, bool), next_hop: IpAddr, now: Instant) -> Link {
        let (since, poked) = match self.known.get(&key) {
            Some(Known::Asking { since, poked, .. }) => (*since, Some(*poked)),
            _ => (now, None),
        };
        if now.saturating_duration_since(since) > GIVE_UP_AFTER {
            return self.keep(key, Link::Unreachable, now);
        }
        let mut at = poked.unwrap_or(now);
        if poked.is_none_or(|poked| now.saturating_duration_since(poked) >= POKE_EVERY) {
            self.poke(next_hop);
            at = now;
        }
        self.remember(key, Known::Asking { next_hop, since, poked: at });
        Link::Wait
    }

    fn poke(&self, next_hop: IpAddr) {
        let from = route::with_scope(self.source, 0, self.interface);
        if let Ok(socket) = UdpSocket::bind(from) {
            // Whatever becomes of it: the kernel has begun to ask for the neighbour.
            let _ = socket.send_to(&[], route::with_scope(next_hop, DISCARD, self.interface));
        }
    }

    fn keep(&mut self, key: (IpAddr, bool), link: Link, now: Instant) -> Link {
        self.remember(key, Known::Answer { link, at: now });
        link
    }

    fn remember(&mut self, key: (IpAddr, bool), known: Known) {
        if self.known.len() >= MAX_KNOWN {
            // Everything can be asked again.
            self.known.clear();
        }
        self.known.insert(key, known);
    }
}
