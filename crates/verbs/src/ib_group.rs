//! Multicast groups on InfiniBand: membership by the subnet administrator, and the groups' names.
//!
//! Read first: IBTA vol. 1 §10.5 and §15.2.5.17; RFC 4391 §4 for how IP multicast addresses become MGIDs, with the signature that
//! Linux's rdma_cm puts there. A group is joined in full for the first queue pair that is attached to it, and for sending only
//! when somebody wants to send there and nobody here is a member.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use everywire_transport::ib::{LocalRoute, PathLink};
use everywire_transport::mad::sa_client::{Answer, Ask, SaError};
use everywire_wire::sa::{McMemberRecord, join_state, status};
use everywire_wire::{Gid, Lid, Mtu, QKey};

use crate::config::GidType;
use crate::ib::{AskedFor, FIRST_MULTICAST_LID};
use crate::ib_ways::route_error;
use crate::route::{RouteError, RouteToken, Way};
use crate::state::State;

/// The Q_Key of groups that rdma_cm makes: Linux's `RDMA_UDP_QKEY`.
pub(crate) const RDMA_UDP_QKEY: QKey = QKey(0x0123_4567);

/// Packets to members on this port that may wait; more are dropped, as a full buffer would.
const MAX_LOOPED: usize = 4096;

/// A group, as this port is in it.
#[derive(Debug, Default)]
pub(crate) struct IbGroup {
    /// How it was joined, or is being joined.
    join: u8,
    /// What the administrator said.
    member: Option<McMemberRecord>,
    /// Who wants to send there.
    waiting: Vec<RouteToken>,
}

/// The MGID of a group: an MGID as it is, an IP multicast address by RFC 4391 §4 with rdma_cm's signature, link-local scope and
/// the default partition.
pub(crate) fn mgid_of(group: IpAddr) -> IpAddr {
    const PKEY: u16 = 0xffff;
    match group {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            let (high, low) = (u16::from_be_bytes([a & 0x0f, b]), u16::from_be_bytes([c, d]));
            Ipv6Addr::new(0xff12, 0x4001, PKEY, 0, 0, 0, high, low).into()
        }
        // Signatures of IPv4 and IPv6 over InfiniBand, of rdma_cm, and of MGIDs that an administrator has chosen.
        IpAddr::V6(v6) if matches!(v6.segments()[1], 0x401b | 0x601b | 0x4001 | 0x6001 | 0xa01b) => group,
        IpAddr::V6(v6) => {
            let s = v6.segments();
            Ipv6Addr::new(0xff12, 0x6001, PKEY, s[3], s[4], s[5], s[6], s[7]).into()
        }
    }
}

impl State {
    /// The first queue pair of this port is a member of a group.
    pub(crate) fn ib_join(&mut self, mgid: IpAddr) {
        self.ib_ask_to_join(mgid, join_state::FULL);
    }

    /// The last member is none any more.
    pub(crate) fn ib_leave(&mut self, mgid: IpAddr) {
        let (port_gid, now) = (self.ib_gid(), self.now);
        let Some(ib) = &mut self.ib else { return };
        let Some(group) = ib.groups.remove(&mgid) else { return };
        let ask = Ask::Leave { mgid: Gid::from(mgid), port_gid, join: group.join };
        ib.ask(now, AskedFor::Leave, ask);
        self.work = true;
        // Whoever waits to send there has to join for that.
        for token in group.waiting {
            self.ib_find_group(token, mgid);
        }
    }

    fn ib_ask_to_join(&mut self, mgid: IpAddr, join: u8) {
        let (port_gid, now) = (self.ib_gid(), self.now);
        let pkey = self.pkey_at(0).unwrap_or_default();
        let Some(ib) = &mut self.ib else { return };
        let group = ib.groups.entry(mgid).or_default();
        group.join |= join;
        let ask = Ask::Join { mgid: Gid::from(mgid), port_gid, pkey, qkey: RDMA_UDP_QKEY, join };
        ib.ask(now, AskedFor::Join(mgid), ask);
        self.work = true;
    }

    /// The subnet manager has forgotten who is in which group.
    pub(crate) fn ib_join_again(&mut self) {
        let Some(ib) = &mut self.ib else { return };
        let groups: Vec<(IpAddr, u8)> = ib.groups.iter().map(|(mgid, group)| (*mgid, group.join)).collect();
        for (mgid, join) in groups {
            let join = if join & join_state::FULL != 0 { join_state::FULL } else { join };
            self.ib_ask_to_join(mgid, join);
        }
    }

    /// The administrator's verdict on a request to join.
    pub(crate) fn ib_joined(&mut self, now: Instant, mgid: IpAddr, answer: Result<Answer, SaError>) {
        let Some(group) = self.ib.as_mut().and_then(|ib| ib.groups.get_mut(&mgid)) else { return };
        let waiting = std::mem::take(&mut group.waiting);
        match answer {
            Ok(Answer::Member(member)) if member.mlid.0 >= FIRST_MULTICAST_LID => {
                group.member = Some(member);
                for token in waiting {
                    let way = self.ib_group_way(token, mgid, &member);
                    self.way_found(now, token, way);
                }
            }
            other => {
                let send_only = group.join & join_state::FULL == 0;
                let error = match other {
                    Err(SaError::Status(status::REQ_INSUFFICIENT_COMPONENTS)) if send_only => {
                        RouteError::NoMember
                    }
                    other => other.err().map_or(RouteError::NoRoute, route_error),
                };
                if let Some(ib) = &mut self.ib {
                    ib.groups.remove(&mgid);
                }
                self.join_failed(mgid);
                waiting.into_iter().for_each(|token| self.way_found(now, token, Err(error.clone())));
            }
        }
    }

    /// Begins to look for the way to a group: it has to be joined to be sent to.
    pub(crate) fn ib_find_group(&mut self, token: RouteToken, mgid: IpAddr) {
        let known = self.ib.as_ref().and_then(|ib| ib.groups.get(&mgid)).map(|group| group.member);
        match (known, self.now) {
            (Some(Some(member)), Some(now)) => {
                let way = self.ib_group_way(token, mgid, &member);
                self.way_found(now, token, way);
            }
            (Some(_), _) => self.ib_wait_for_group(token, mgid),
            (None, _) => {
                self.ib_ask_to_join(mgid, join_state::SEND_ONLY_NON);
                self.ib_wait_for_group(token, mgid);
            }
        }
    }

    fn ib_wait_for_group(&mut self, token: RouteToken, mgid: IpAddr) {
        if let Some(group) = self.ib.as_mut().and_then(|ib| ib.groups.get_mut(&mgid)) {
            group.waiting.push(token);
        }
    }

    fn ib_group_way(
        &self,
        token: RouteToken,
        mgid: IpAddr,
        member: &McMemberRecord,
    ) -> Result<Way, RouteError> {
        let ib = self.ib.as_ref().ok_or(RouteError::NoRoute)?;
        let mtu = Mtu::from_code(member.mtu).ok_or(RouteError::NoRoute)?;
        let link = PathLink::Lrh(LocalRoute {
            slid: Lid(ib.port.lid.0 | u16::from(self.path_bits_of(token))),
            dlid: member.mlid,
            sl: member.sl,
            grh: true, // IBTA §8.3: multicast packets have one
            static_rate: member.rate,
        });
        Ok(Way {
            src: self.ib_gid().to_ip(),
            dst: mgid,
            scope_id: 0,
            mtu,
            link,
            life_time: Some(member.life_time),
        })
    }

    /// The Q_Key of a group, as the administrator keeps it.
    pub(crate) fn group_qkey(&self, mgid: IpAddr) -> QKey {
        let group = self.ib.as_ref().and_then(|ib| ib.groups.get(&mgid));
        group.and_then(|group| group.member).map_or(RDMA_UDP_QKEY, |member| member.qkey)
    }

    /// Keeps packets that were sent to a group for its members on this port: the port does not hear itself.
    pub(crate) fn ib_keep_looped<'a>(
        &mut self,
        link: &PathLink,
        mgid: IpAddr,
        packets: impl Iterator<Item = &'a [u8]>,
    ) {
        let PathLink::Lrh(route) = link else { return };
        if route.dlid.0 < FIRST_MULTICAST_LID || !self.groups.contains_key(&(mgid, GidType::Ib)) {
            return;
        }
        let Some(ib) = &mut self.ib else { return };
        for packet in packets {
            if ib.looped.len() < MAX_LOOPED {
                ib.looped.push_back(packet.to_vec());
            }
        }
        self.work = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_rdma_cm_names_them() {
        // RFC 4391 §4: scope, signature, P_Key, then the group's low 28 bits (IPv4) or 80 bits (IPv6).
        for (group, mgid) in [
            ("239.1.2.3", "ff12:4001:ffff::f01:203"),
            ("224.0.0.1", "ff12:4001:ffff::1"),
            ("ff02::1:ff12:3456", "ff12:6001:ffff::1:ff12:3456"),
            ("ff12:401b:ffff::1", "ff12:401b:ffff::1"),
            ("ff15:a01b:fe80::5", "ff15:a01b:fe80::5"),
        ] {
            assert_eq!(mgid_of(group.parse().unwrap()).to_string(), mgid, "{group}");
        }
    }
}
