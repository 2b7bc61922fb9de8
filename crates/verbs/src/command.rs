//! What a device asks of its driver besides sending: routes, groups, TCP connections.
//!
//! The contract is in `drive` and `stream`; a driver that has no sockets of a kind never sees the commands for it.

use std::net::{IpAddr, SocketAddr};

use everywire_transport::iwarp::ConnId;

use crate::config::GidType;
use crate::route::RouteToken;
use crate::stream::StreamListenerId;

/// Something for the driver to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Find a route and answer with [`Drive::resolved`](crate::Drive::resolved).
    ResolveRoute {
        /// To be given back.
        token: RouteToken,
        /// Destination.
        dst: IpAddr,
        /// Its interface index if it is link-local, or 0.
        scope_id: u32,
        /// The source to use; the driver chooses one of the device's otherwise.
        src: Option<IpAddr>,
    },
    /// Find the GID of the InfiniBand port that has an IP address, and answer with
    /// [`Drive::neighbour`](crate::Drive::neighbour).
    ResolveNeighbour {
        /// To be given back.
        token: RouteToken,
        /// The address.
        ip: IpAddr,
    },
    /// Tell the InfiniBand port's agent of a packet that a queue pair has dropped for its key (IBTA §10.2.5, §10.9.3).
    ReportWrongKey {
        /// The Q_Key, or else the P_Key.
        is_qkey: bool,
        /// The packet's headers, LRH first.
        head: Vec<u8>,
    },
    /// Receive what is sent to a multicast group.
    JoinGroup {
        /// The group's address; of RoCE v1 and InfiniBand the MGID.
        group: IpAddr,
        /// Whose frames carry it.
        gid_type: GidType,
        /// Interface index, or 0.
        scope_id: u32,
    },
    /// Stop receiving it.
    LeaveGroup {
        /// The group's address.
        group: IpAddr,
        /// Whose frames carry it.
        gid_type: GidType,
        /// Interface index, or 0.
        scope_id: u32,
    },
    /// Listen for TCP connections; each is told of with [`Drive::accepted`](crate::Drive::accepted).
    StreamListen {
        /// The name of the listening socket from now on.
        listener: StreamListenerId,
        /// Address and port, as [`Progress::reserve_stream`](crate::Progress::reserve_stream) gave them.
        addr: SocketAddr,
        /// Requests that a program lets wait; the driver may accept more connections.
        backlog: usize,
    },
    /// Stop listening.
    StreamUnlisten {
        /// Its name.
        listener: StreamListenerId,
    },
    /// Make a TCP connection.
    StreamConnect {
        /// Its name from now on.
        conn: ConnId,
        /// From where; port 0 takes a free one.
        src: SocketAddr,
        /// To where.
        dst: SocketAddr,
        /// IPv4 TOS or IPv6 traffic class.
        traffic_class: u8,
    },
    /// Say our end once everything is sent.
    StreamClose {
        /// Which.
        conn: ConnId,
    },
    /// End a connection at once.
    StreamReset {
        /// Which.
        conn: ConnId,
    },
    /// Tell whoever runs the device that a listener was not spoken to in MPA; the connection is ended by a command of its own.
    StreamStranger {
        /// Of the listener.
        local: SocketAddr,
        /// Who connected.
        peer: SocketAddr,
        /// What was wrong.
        why: String,
    },
}

impl Command {
    /// Whether doing `earlier` and then this is doing nothing.
    pub(crate) fn undoes(&self, earlier: &Command) -> bool {
        use Command::{JoinGroup, LeaveGroup};
        match (earlier, self) {
            (
                JoinGroup { group, gid_type, scope_id },
                LeaveGroup { group: group2, gid_type: type2, scope_id: scope2 },
            )
            | (
                LeaveGroup { group, gid_type, scope_id },
                JoinGroup { group: group2, gid_type: type2, scope_id: scope2 },
            ) => (group, gid_type, scope_id) == (group2, type2, scope2),
            _ => false,
        }
    }
}
