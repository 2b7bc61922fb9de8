//! Finds out that a silent peer is gone, where the wire does not by itself.
//!
//! An RDMA connection has no keepalive: whoever waits for a SEND and has nothing outstanding never learns that the other program
//! was killed, or its machine switched off. So it asks now and then by an RDMA WRITE of no bytes. That names no memory (IBTA
//! C9-88: without a payload the R_Key is not checked) and the program there notices nothing, but the transport sends it again
//! until it is acknowledged, and in the end gives the connection up. iWARP needs no question: TCP has a keepalive, and a killed
//! process closes its connection.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use everywire_verbs::{Qp, QpType, RKey, Remote, SendOp, SendWr, Wire};
use tokio::sync::Notify;

/// How long a peer may be silent until it is asked.
pub const SILENCE: Duration = Duration::from_secs(2);
/// Token of the question.
pub const TOKEN: u64 = u64::MAX;
/// Local ACK timeout of connections that somebody watches, 4.096 µs · 2^18 = 1.07 s: eight transmissions are given up after
/// 8.6 s, less than a client's patience while it connects. 19, which Linux has, makes 17 s of it.
pub const ACK_TIMEOUT: u8 = 18;

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

/// A clock that ticks every [`SILENCE`], on any executor, until it is dropped.
pub struct Clock {
    ticks: Arc<Notify>,
    _done: Sender<()>,
}

impl Clock {
    /// Starts it; without a thread for it, it stands still, and nobody is asked.
    pub fn start() -> Clock {
        let ticks = Arc::new(Notify::new());
        let (done, is_done) = channel::<()>();
        let notify = ticks.clone();
        let run = move || {
            while is_done.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                notify.notify_waiters();
            }
        };
        let _ = std::thread::Builder::new().spawn(run);
        Clock { ticks, _done: done }
    }

    /// Waits for the next tick.
    pub async fn tick(&self) {
        self.ticks.notified().await;
    }
}
