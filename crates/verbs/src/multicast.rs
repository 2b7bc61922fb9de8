//! Multicast groups of datagram queue pairs.
//!
//! Read IBTA vol. 1 §10.5 (multicast) and annex A17.9.2 first. The driver is told to join a group with its first member and
//! to leave it with its last. A packet for a group reaches every member, the sender's own queue pair included if it is
//! one and the network loops it back.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use everywire_transport::ib::{PacketMeta, PathLink, QpType};
use everywire_wire::{Qpn, RocePacket};

use crate::command::Command;
use crate::config::GidType;
use crate::counters::DeviceCounter;
use crate::error::{ErrorKind, VerbsError};
use crate::events::AsyncEvent;
use crate::ib_group::mgid_of;
use crate::qp::Qp;
use crate::state::State;
use crate::wire_kind::WireFeature;

impl State {
    /// Hands a packet to every member of the group it was sent to.
    pub(crate) fn accept_group(
        &mut self,
        now: Instant,
        packet: &RocePacket<'_>,
        meta: &PacketMeta,
    ) -> Result<(), DeviceCounter> {
        let members = self
            .groups
            .get(&(meta.dst, gid_type_of(&meta.link)))
            .ok_or(DeviceCounter::DropNoGroupMember)?
            .clone();
        for qpn in members {
            self.with_qp(qpn, true, |qp, core| {
                if let Some(qp) = qp.ib() {
                    qp.handle_packet(core, now, packet, meta);
                }
            });
        }
        Ok(())
    }

    /// The group as the GID table's first entry of its family names it, and that entry's interface.
    fn group_of(&self, group: IpAddr) -> (Group, u32) {
        if self.ib.is_some() {
            return ((mgid_of(group), GidType::Ib), 0);
        }
        let same_family = |gid: &&crate::GidEntry| gid.ip.is_ipv4() == group.is_ipv4();
        let gid = self.config.gids.iter().find(same_family);
        let (ty, scope_id) = gid.map_or((GidType::RoceV2, 0), |gid| (gid.ty, gid.scope_id));
        ((group_address(group, ty), ty), scope_id)
    }

    fn join(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), (ErrorKind, String)> {
        let limits = &self.config.limits;
        let (max_groups, max_members) = (limits.max_mcast_grp as usize, limits.max_mcast_qp_attach as usize);
        let (key, scope_id) = self.group_of(group);
        if !self.groups.contains_key(&key) && self.groups.len() >= max_groups {
            return Err((ErrorKind::OutOfResources, format!("max_mcast_grp: all {max_groups} are in use")));
        }
        let members = self.groups.entry(key).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= max_members {
            return Err((
                ErrorKind::OutOfResources,
                format!("{group} has {max_members} members, the most it can"),
            ));
        }
        members.push(qpn);
        let first = members.len() == 1;
        if let Some(entry) = self.qps.get(qpn) {
            entry.groups += 1;
        }
        match first {
            true if self.ib.is_some() => self.ib_join(key.0),
            true => self.command(Command::JoinGroup { group: key.0, gid_type: key.1, scope_id }),
            false => {}
        }
        Ok(())
    }

    fn leave(&mut self, qpn: Qpn, key: Group, scope_id: u32) -> bool {
        let Some(members) = self.groups.get_mut(&key) else { return false };
        let before = members.len();
        members.retain(|member| *member != qpn);
        let (left, empty) = (members.len() < before, members.is_empty());
        if left && let Some(entry) = self.qps.get(qpn) {
            entry.groups -= 1;
        }
        if empty {
            self.groups.remove(&key);
            match self.ib.is_some() {
                true => self.ib_leave(key.0),
                false => self.command(Command::LeaveGroup { group: key.0, gid_type: key.1, scope_id }),
            }
        }
        left
    }

    /// The driver could not join a group.
    pub(crate) fn join_failed(&mut self, group: IpAddr) {
        let keys: Vec<Group> = self.groups.keys().filter(|key| key.0 == group).copied().collect();
        for key in keys {
            for qpn in self.groups.remove(&key).unwrap_or_default() {
                if let Some(entry) = self.qps.get(qpn) {
                    entry.groups -= 1;
                }
            }
            self.core.raise(AsyncEvent::GroupError(group));
        }
    }

    /// A queue pair is being destroyed.
    pub(crate) fn leave_all_groups(&mut self, qpn: Qpn) {
        let groups = self.groups.iter().filter(|(_, members)| members.contains(&qpn));
        let groups: Vec<Group> = groups.map(|(group, _)| *group).collect();
        for group in groups {
            let (_, scope_id) = self.group_of(group.0);
            self.leave(qpn, group, scope_id);
        }
    }
}

/// A group as packets name it, and the frames that carry it.
pub(crate) type Group = (IpAddr, GidType);

fn gid_type_of(link: &PathLink) -> GidType {
    match link {
        PathLink::Udp => GidType::RoceV2,
        PathLink::Grh => GidType::RoceV1,
        PathLink::Lrh(_) => GidType::Ib,
    }
}

/// The group's address as the wire has it. RoCE v1 has GRHs only: the MGID of an IPv4 group is ff0e::ffff:a.b.c.d there, as
/// Linux's rdma_cm makes it, and a plain IPv4 address on RoCE v2.
pub(crate) fn group_address(group: IpAddr, ty: GidType) -> IpAddr {
    match (group, ty) {
        (IpAddr::V4(v4), GidType::RoceV1) => {
            let [a, b, c, d] = v4.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0xffff, high, low).into()
        }
        (group, _) => group,
    }
}

impl Qp {
    /// Receives what is sent to a multicast group, from now until [`Qp::detach_multicast`] or its end. Attaching twice is
    /// once. Where the network does not let the device join, [`AsyncEvent::GroupError`] says so, and the queue pair is no
    /// member any more.
    pub fn attach_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        let refuse = |kind, what: String| Err(VerbsError::new(kind, self.to_string(), what));
        self.device().config().needs(WireFeature::Multicast)?;
        if self.ty() != QpType::Ud {
            return refuse(
                ErrorKind::InvalidArgument,
                String::from("only a UD queue pair can join a multicast group"),
            );
        }
        if !group.is_multicast() {
            return refuse(ErrorKind::InvalidArgument, format!("{group} is not a multicast address"));
        }
        let joined = self.device().lock().join(self.qpn(), group);
        joined.or_else(|(kind, what)| refuse(kind, what))
    }

    /// Leaves a group.
    pub fn detach_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        let mut state = self.device().lock();
        let (key, scope_id) = state.group_of(group);
        if state.leave(self.qpn(), key, scope_id) {
            return Ok(());
        }
        drop(state);
        let what = format!("not attached to {group}");
        Err(VerbsError::new(ErrorKind::InvalidArgument, self.to_string(), what))
    }
}
