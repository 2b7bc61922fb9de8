//! Unreliable services: UD queue pairs, which find each other by SIDR, and the question how many messages arrived.
//!
//! Read IBTA vol. 1 §12.11. There is no connection on UD, so a server leaves when nothing came for a while. The question is a
//! SIDR request too, on the same port: its answer's private data holds the count.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_verbs::{
    AhAttr, Cq, Pd, QKey, Qp, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, ResolveOptions, UdDest,
    VerbsError,
};

use super::client::Link;
use super::hello::{self, Hello};
use super::{Plan, Service};
use crate::error::{self, CliError};
use crate::patience::PATIENCE;

/// The Q_Key of datagram services found by address and port, as Linux's rdma_cm has it.
pub const QKEY: QKey = QKey(0x0123_4567);
/// Bytes before a UD message: room for the GRH (IBTA §11.4.2.2).
pub const GRH_BYTES: usize = 40;
/// Without a message for so long, a UD server takes its client for gone.
pub const IDLE: Duration = Duration::from_secs(3);

/// Bytes before a message in a receive.
pub fn headroom(service: Service) -> usize {
    if service == Service::Ud { GRH_BYTES } else { 0 }
}

/// A UD queue pair, ready to send and to receive.
pub fn queue_pair(pd: &Pd, cq: &Cq, caps: QpCaps) -> Result<Qp, VerbsError> {
    let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Ud, cq) })?;
    let init = QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
    qp.modify(&init)?;
    qp.modify(&QpAttr::to(QpState::Rtr))?;
    qp.modify(&QpAttr { sq_psn: Some(everywire_verbs::Psn::new(0)), ..QpAttr::to(QpState::Rts) })?;
    Ok(qp)
}

/// The client's side: finds the server's queue pair.
pub async fn connect(link: &mut Link, hello: &Hello, peer: SocketAddr) -> Result<(), CliError> {
    let hello = Hello { qpn: link.qp.qpn(), ..*hello };
    let timeout = Some(PATIENCE);
    let options = ResolveOptions { private_data: hello.emit(), timeout, ..ResolveOptions::new(peer) };
    let service = link.qp.pd().resolve_udp(options).await.map_err(error::cm)?;
    Hello::parse(&service.private_data).map_err(|e| CliError::peer(format_args!("{}: {e}", link.who)))?;
    link.ud = Some(service.dest());
    link.peer_qpn = service.qpn;
    Ok(())
}

/// Bytes of the largest datagram on the way to a peer; where it cannot be found, connecting says why.
pub async fn path_mtu(pd: &Pd, peer: SocketAddr) -> Result<u32, CliError> {
    let scope_id = match peer {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let ah = pd.create_ah(AhAttr { scope_id, ..AhAttr::new(peer.ip()) }).await.map_err(error::verbs)?;
    Ok(ah.mtu().bytes().min(pd.device().port().active_mtu.bytes()) as u32)
}

/// The server's side: the way back to a client.
pub async fn way_back(pd: &Pd, client: SocketAddr, qpn: Qpn) -> Result<UdDest, VerbsError> {
    let scope_id = match client {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let ah = pd.create_ah(AhAttr { scope_id, ..AhAttr::new(client.ip()) }).await?;
    Ok(ah.dest(qpn, QKEY))
}

/// How many messages arrived at the server's queue pair of this link.
pub async fn arrived(link: &Link, peer: SocketAddr) -> Result<u64, CliError> {
    let (private_data, timeout) = (hello::question(link.peer_qpn), Some(PATIENCE));
    let options = ResolveOptions { private_data, timeout, ..ResolveOptions::new(peer) };
    let answer = link.qp.pd().resolve_udp(options).await.map_err(error::cm)?;
    hello::parse_count(&answer.private_data)
        .ok_or_else(|| CliError::peer(format_args!("{}: no count in the answer", link.who)))
}

/// Whether the client learns only from the server what arrived.
pub fn counts_at_the_peer(plan: &Plan) -> bool {
    plan.service != Service::Rc && plan.operation == super::Operation::Send && !plan.latency
}
