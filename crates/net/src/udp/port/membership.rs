//! The multicast groups of a UDP port, and what becomes of them when the interface is deleted and made again.
//!
//! Read first: ip(7) on IP_ADD_MEMBERSHIP and IP_MULTICAST_IF, ipv6(7) on theirs. What a socket is bound to is the device's
//! address, which comes back; memberships and the way of what is sent to groups belong to an interface's number, which is another
//! one then. A link-local address is bound to that number too: such a device does not come back.

use std::io;
use std::net::IpAddr;

use super::{MAX_GROUPS, UdpPort};
use crate::route::{self, Interface};
use crate::udp::socket::{ROCE_V2_PORT, RoceSocket, Role};

impl UdpPort {
    /// Goes where its interface is now, `None` if there is none. The sockets of groups are others then.
    pub fn follow(&mut self, found: Option<&Interface>) {
        let Some(found) = found else {
            self.settled = false;
            return;
        };
        if self.settled && found.index == self.interface {
            return;
        }
        self.interface = found.index;
        match self.settle() {
            Ok(()) => self.settled = true,
            // Its address follows, which is news too.
            Err(error) => {
                self.settled = false;
                tracing::debug!(interface = found.name, %error, "the device cannot join its groups yet");
            }
        }
    }

    fn settle(&mut self) -> io::Result<()> {
        for socket in std::iter::once(&self.main).chain(&self.senders) {
            socket.multicast_through(self.local.ip(), self.interface)?;
        }
        let joined = self.groups.iter().map(|(group, _)| Ok((*group, self.member(*group)?)));
        self.groups = joined.collect::<io::Result<Vec<_>>>()?;
        Ok(())
    }

    /// Becomes a member of a multicast group: binds a socket to (group, 4791).
    pub fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if self.groups.iter().any(|(known, _)| *known == group) {
            return Ok(());
        }
        if self.groups.len() >= MAX_GROUPS {
            return Err(io::Error::other(format!("more than {MAX_GROUPS} multicast groups on one device")));
        }
        let socket = self.member(group)?;
        self.groups.push((group, socket));
        Ok(())
    }

    fn member(&self, group: IpAddr) -> io::Result<RoceSocket> {
        let scope = if group.is_ipv6() { self.interface } else { 0 };
        let addr = route::with_scope(group, ROCE_V2_PORT, scope);
        let socket = RoceSocket::bind(addr, Role::Group, &self.options.socket)?;
        socket.join(group, self.local.ip(), self.interface)?;
        Ok(socket)
    }

    /// Leaves a group; a group that was never joined is left already.
    pub fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|(known, _)| *known != group);
    }
}
