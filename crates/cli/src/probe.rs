//! Finds out that a silent peer is gone, where the wire does not by itself.
//!
//! An RDMA connection has no keepalive: whoever waits for a SEND and has nothing outstanding never learns that the other program
//! was killed, or its machine switched off. So it asks now and then by an RDMA WRITE of no bytes. That names no memory (IBTA
//! C9-88: without a payload the R_Key is not checked) and the program there notices nothing, but the transport sends it again
//! until it is acknowledged, and in the end gives the connection up. iWARP needs no question: TCP has a keepalive, and a killed
//! process closes its connection.
//!
//! On an unreliable connection (UC) nothing is acknowledged. There the peer's connection manager is asked, for a datagram service
//! that nobody has: it answers, with a refusal (IBTA §12.11.2.3), as long as the device is there. It knows nothing of queue pairs,
//! so that another program which has opened the same device since then answers as well.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_verbs::{CmErrorKind, Pd, Qp, QpType, RKey, Remote, ResolveOptions, SendOp, SendWr, Wire};

use crate::error::CliError;

/// How long a peer may be silent until it is asked.
pub const SILENCE: Duration = Duration::from_secs(2);
/// Token of the question.
pub const TOKEN: u64 = u64::MAX;
/// Local ACK timeout of connections that somebody watches, 4.096 µs · 2^18 = 1.07 s: eight transmissions are given up after
/// 8.6 s, less than a client's patience while it connects. 19, which Linux has, makes 17 s of it.
pub const ACK_TIMEOUT: u8 = 18;

/// How long the answer of a connection manager is waited for, as long as RC waits for an acknowledgement.
const ANSWER: Duration = Duration::from_millis(8600);

/// The question, signaled; `None` where there is none to ask: TCP asks by itself, and without acknowledgements nobody answers.
pub fn question(qp: &Qp) -> Option<SendWr> {
    let asks = qp.ty() == QpType::Rc && qp.pd().device().wire() != Wire::Iwarp;
    asks.then(|| SendWr::new(TOKEN, SendOp::Write { remote: Remote { addr: 0, rkey: RKey(0) } }))
}

/// Asks. A queue that is full has requests outstanding, which find out as well.
pub fn ask(qp: &Qp) {
    if let Some(question) = question(qp) {
        let _ = qp.post_send(question.unsignaled());
    }
}

/// Waits for the answer of the connection manager at `peer`, whatever it says.
///
/// # Errors
/// None came.
pub async fn ask_manager(pd: &Pd, peer: SocketAddr) -> Result<(), CliError> {
    let options = ResolveOptions { timeout: Some(ANSWER), ..ResolveOptions::new(peer) };
    let Err(error) = pd.resolve_udp(options).await else { return Ok(()) };
    match error.kind() {
        // What this device cannot ask says nothing of the peer.
        CmErrorKind::NoService { .. } | CmErrorKind::Refused(_) | CmErrorKind::Verbs(_) => Ok(()),
        why => Err(CliError::peer(format_args!("the peer is lost: its connection manager is asked: {why}"))),
    }
}
