//! Joining multicast groups as with rdma_cm: [`Qp::join_multicast`], and what a member needs to send there.
//!
//! Read IBTA vol. 1 §10.5 and annex A17.9.2, and rdma_join_multicast(3). On InfiniBand the subnet administrator decides about
//! the group, its LID and its Q_Key; RoCE v2 tells routers and switches by IGMP or MLD, which the driver does, and RoCE v1
//! tells nobody. iWARP has no groups and says so. The membership is a handle: dropped, it leaves.

use std::fmt;
use std::net::IpAddr;

use everywire_transport::ib::{QpType, UdDest};
use everywire_wire::{Gid, Lid, Mtu, QKey, Qpn};

use crate::ah::{Ah, AhAttr};
use crate::config::WireFeature;
use crate::error::{ErrorKind, VerbsError};
use crate::ib_group::RDMA_UDP_QKEY;
use crate::pd::Pd;
use crate::qp::Qp;

/// Which group to join, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastOptions {
    /// The group: an IP multicast address or, on InfiniBand, an MGID.
    pub group: IpAddr,
    /// Sends to the group without receiving what others send.
    pub send_only: bool,
    /// IPv4 TOS or IPv6 traffic class of what is sent.
    pub traffic_class: u8,
    /// How many routers a packet may cross; 0 for the default.
    pub hop_limit: u8,
}

impl MulticastOptions {
    /// Sends and receives.
    pub fn new(group: IpAddr) -> MulticastOptions {
        MulticastOptions { group, send_only: false, traffic_class: 0, hop_limit: 0 }
    }

    /// Sends only.
    pub fn send_only(group: IpAddr) -> MulticastOptions {
        MulticastOptions { send_only: true, ..MulticastOptions::new(group) }
    }
}

/// Membership of a queue pair in a group. Dropped, it leaves.
pub struct Multicast {
    qp: Qp,
    options: MulticastOptions,
    ah: Ah,
    qkey: QKey,
}

impl Qp {
    /// Joins a group with a datagram queue pair, which receives from now on what others send there unless it wants to send
    /// only, and hears what it sends itself. `pd` is for the address handle. Dropped before it is ready, the future leaves
    /// nothing behind. Where the network withdraws the membership later, [`AsyncEvent::GroupError`] says so.
    ///
    /// # Errors
    /// What the wire cannot do; no datagram queue pair; no multicast address; limits; a refusal of the subnet administrator.
    ///
    /// [`AsyncEvent::GroupError`]: crate::AsyncEvent::GroupError
    pub async fn join_multicast(&self, pd: &Pd, options: MulticastOptions) -> Result<Multicast, VerbsError> {
        let device = self.device();
        device.config().needs(WireFeature::Multicast)?;
        let refuse =
            |what: &str| Err(VerbsError::new(ErrorKind::InvalidArgument, self.to_string(), what.to_owned()));
        if self.ty() != QpType::Ud {
            return refuse("only a UD queue pair can join a multicast group");
        }
        if !pd.device().same(device) {
            return refuse("the protection domain belongs to another device");
        }
        let attached = (!options.send_only).then(|| Attached::new(self, options.group)).transpose()?;
        let attr = AhAttr {
            traffic_class: options.traffic_class,
            hop_limit: options.hop_limit,
            ..AhAttr::new(options.group)
        };
        let ah = pd.create_ah(attr).await?;
        if let Some(attached) = attached {
            attached.keep();
        }
        let qkey = device.lock().group_qkey(ah.path().dst);
        Ok(Multicast { qp: self.clone(), options, ah, qkey })
    }
}

/// A queue pair attached to a group, until it is known whether it stays.
struct Attached<'a>(&'a Qp, Option<IpAddr>);

impl<'a> Attached<'a> {
    fn new(qp: &'a Qp, group: IpAddr) -> Result<Attached<'a>, VerbsError> {
        qp.attach_multicast(group)?;
        Ok(Attached(qp, Some(group)))
    }

    fn keep(mut self) {
        self.1 = None;
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if let Some(group) = self.1 {
            // Whatever has become of the membership meanwhile: it is over.
            let _ = self.0.detach_multicast(group);
        }
    }
}

impl Multicast {
    /// The group, as it was asked for.
    pub fn group(&self) -> IpAddr {
        self.options.group
    }

    /// The group's GID, as packets have it. On RoCE v2 an IPv4 group is `::ffff:a.b.c.d`; on RoCE v1 `ff0e::ffff:a.b.c.d`, as
    /// Linux's rdma_cm has both.
    pub fn mgid(&self) -> Gid {
        Gid::from(self.ah.path().dst)
    }

    /// The group's LID; 0 on Ethernet.
    pub fn mlid(&self) -> Lid {
        self.ah.path().local_route().map_or(Lid(0), |route| route.dlid)
    }

    /// The group's Q_Key, which a member's queue pair must have to receive.
    pub fn qkey(&self) -> QKey {
        self.qkey
    }

    /// The largest packet that every member can take, as far as the network knows.
    pub fn mtu(&self) -> Mtu {
        self.ah.mtu()
    }

    /// The way to the group.
    pub fn ah(&self) -> &Ah {
        &self.ah
    }

    /// The group as the destination of work requests.
    pub fn dest(&self) -> UdDest {
        self.ah.dest(Qpn::MULTICAST, self.qkey)
    }
}

impl Drop for Multicast {
    fn drop(&mut self) {
        if !self.options.send_only {
            // The network may have withdrawn it before, or the program detached the queue pair itself.
            let _ = self.qp.detach_multicast(self.options.group);
        }
    }
}

impl fmt::Debug for Multicast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.options.send_only { ", sends only" } else { "" };
        write!(f, "Multicast({} in {}{how})", self.qp, self.options.group)
    }
}

/// The Q_Key of a datagram queue pair that is to be a member of groups: what rdma_cm gives its own (`RDMA_UDP_QKEY`).
pub const MULTICAST_QKEY: QKey = RDMA_UDP_QKEY;
