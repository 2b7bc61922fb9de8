//! A raw port on its interface: the groups it is a member of, and what becomes of it when the interface is deleted and made again.
//!
//! Read first: packet(7) on bind and PACKET_ADD_MEMBERSHIP. The kernel takes a packet socket off a deleted interface for good,
//! and gives the next one of that name another index and mostly another MAC address: the socket is bound anew, so that its
//! filter, its buffers and its descriptor stay. Only the driver can tell when to look (`link.rs`).

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use everywire_wire::MacAddr;

use super::RawPort;
use crate::raw::socket::{bound_to, link_address, membership};
use crate::route::{self, Interface};
use crate::udp::{ROCE_V2_PORT, RoceSocket, Role};

impl RawPort {
    /// Goes where its interface is now, `None` if there is none; says so when it is gone, and when it is there again.
    pub fn follow(&mut self, found: Option<&Interface>) {
        let Some(found) = found else { return self.lost() };
        if !self.gone && bound_to(self.socket.as_fd()) == Some(found.index) {
            return;
        }
        // It may have come back before anybody looked.
        self.lost();
        match self.settle(found) {
            Ok(()) => {
                self.gone = false;
                let (interface, local) = (&self.interface.name, self.local);
                tracing::info!("{local}: the interface {interface} is there again, and the device on it");
            }
            // Its address follows, which is news too.
            Err(error) => {
                tracing::debug!(interface = found.name, %error, "the device cannot be on it yet");
            }
        }
    }

    fn lost(&mut self) {
        if std::mem::replace(&mut self.gone, true) {
            return;
        }
        self.waiting.clear();
        let (interface, local) = (&self.interface.name, self.local);
        tracing::warn!(
            "{local}: the interface {interface} is gone; the device hears nothing until there is one of that name again"
        );
    }

    fn settle(&mut self, found: &Interface) -> io::Result<()> {
        let old = self.interface.index;
        // The socket that holds a link-local address is bound to the interface too.
        if matches!(self.local, IpAddr::V6(v6) if route::is_link_local(v6)) && found.index != old {
            let local = route::with_scope(self.local, ROCE_V2_PORT, found.index);
            self.holder = RoceSocket::bind(local, Role::Sender, &self.options)?;
        }
        self.socket.bind(&link_address(found.index))?;
        for (group, roce_v1) in self.groups.clone() {
            // It is gone with the interface, mostly.
            let _ = self.member(old, group, roce_v1, false);
            self.member(found.index, group, roce_v1, true)?;
        }
        self.sender.mac = MacAddr(found.mac.unwrap_or_default());
        self.neighbours.moved_to(found.index);
        self.interface = found.clone();
        Ok(())
    }

    /// Becomes a member of a multicast group. Of RoCE v2's the kernel tells the routers and switches (IGMP, MLD) and programs
    /// the interface; RoCE v1 has no such protocol, so only the interface is told.
    pub fn join(&mut self, group: IpAddr, roce_v1: bool) -> io::Result<()> {
        if !self.groups.contains(&(group, roce_v1)) {
            self.member(self.interface.index, group, roce_v1, true)?;
            self.groups.push((group, roce_v1));
        }
        Ok(())
    }

    /// Leaves a group; a group that was never joined is left already.
    pub fn leave(&mut self, group: IpAddr, roce_v1: bool) {
        let Some(at) = self.groups.iter().position(|known| *known == (group, roce_v1)) else { return };
        self.groups.swap_remove(at);
        if let Err(error) = self.member(self.interface.index, group, roce_v1, false) {
            tracing::debug!(%group, %error, "the membership was gone already");
        }
    }

    fn member(&self, index: u32, group: IpAddr, roce_v1: bool, join: bool) -> io::Result<()> {
        match (roce_v1, join) {
            (true, _) => membership(self.socket.as_fd(), index, MacAddr::for_multicast(group), join),
            (false, true) => self.holder.join(group, self.local, index),
            (false, false) => self.holder.leave(group, self.local, index),
        }
    }
}
