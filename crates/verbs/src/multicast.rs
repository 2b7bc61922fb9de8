//! Multicast groups of datagram queue pairs.
//!
//! Read IBTA vol. 1 §10.5 (multicast) and annex A17.9.2 first. The driver is told to join a group with its first member and
//! to leave it with its last. A packet for a group reaches every member, the sender's own queue pair included if it is
//! one and the network loops it back.

use std::net::IpAddr;
use std::time::Instant;

use everywire_transport::ib::{PacketMeta, QpType};
use everywire_wire::{Qpn, RocePacket};

use crate::counters::DeviceCounter;
use crate::error::{ErrorKind, VerbsError};
use crate::events::AsyncEvent;
use crate::qp::Qp;
use crate::route::Command;
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
        let members = self.groups.get(&meta.dst).ok_or(DeviceCounter::DropNoGroupMember)?.clone();
        for qpn in members {
            self.with_qp(qpn, true, |qp, core| {
                if let Some(qp) = qp.ib() {
                    qp.handle_packet(core, now, packet, meta);
                }
            });
        }
        Ok(())
    }

    fn scope_of(&self, group: IpAddr) -> u32 {
        let same_family = |gid: &&crate::GidEntry| gid.ip.is_ipv4() == group.is_ipv4();
        self.config.gids.iter().find(same_family).map_or(0, |gid| gid.scope_id)
    }

    fn join(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), (ErrorKind, String)> {
        let limits = &self.config.limits;
        let (max_groups, max_members) = (limits.max_mcast_grp as usize, limits.max_mcast_qp_attach as usize);
        if !self.groups.contains_key(&group) && self.groups.len() >= max_groups {
            return Err((ErrorKind::OutOfResources, format!("max_mcast_grp: all {max_groups} are in use")));
        }
        let scope_id = self.scope_of(group);
        let members = self.groups.entry(group).or_default();
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
        if first {
            self.command(Command::JoinGroup { group, scope_id });
        }
        Ok(())
    }

    fn leave(&mut self, qpn: Qpn, group: IpAddr) -> bool {
        let scope_id = self.scope_of(group);
        let Some(members) = self.groups.get_mut(&group) else { return false };
        let before = members.len();
        members.retain(|member| *member != qpn);
        let (left, empty) = (members.len() < before, members.is_empty());
        if left && let Some(entry) = self.qps.get(qpn) {
            entry.groups -= 1;
        }
        if empty {
            self.groups.remove(&group);
            self.command(Command::LeaveGroup { group, scope_id });
        }
        left
    }

    /// The driver could not join a group.
    pub(crate) fn join_failed(&mut self, group: IpAddr) {
        let Some(members) = self.groups.remove(&group) else { return };
        for qpn in members {
            if let Some(entry) = self.qps.get(qpn) {
                entry.groups -= 1;
            }
        }
        self.core.raise(AsyncEvent::GroupError(group));
    }

    /// A queue pair is being destroyed.
    pub(crate) fn leave_all_groups(&mut self, qpn: Qpn) {
        let groups = self.groups.iter().filter(|(_, members)| members.contains(&qpn));
        let groups: Vec<IpAddr> = groups.map(|(group, _)| *group).collect();
        for group in groups {
            self.leave(qpn, group);
        }
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
        if self.device().lock().leave(self.qpn(), group) {
            return Ok(());
        }
        let what = format!("not attached to {group}");
        Err(VerbsError::new(ErrorKind::InvalidArgument, self.to_string(), what))
    }
}
