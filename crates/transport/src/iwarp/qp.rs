//! The iWARP queue pair: the two queues, the state they are in, and the driving contract.

use std::time::Instant;

use everywire_wire::Qpn;

use super::burst::StreamBurst;
use super::params::{Close, ConnId, IwarpConfig, StreamEvent, StreamParams};
use crate::ib::attr::{QpAttr, QpConfig, QpState};
use crate::ib::env::QpEnv;
use crate::ib::qp_state::ModifyError;
use crate::ib::wr::{PostError, RecvWr, SendWr};

/// An iWARP queue pair.
#[derive(Debug)]
pub struct Qp {
    config: QpConfig,
    iwarp: IwarpConfig,
    state: QpState,
    stream: Option<StreamParams>,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig, iwarp: IwarpConfig) -> Qp {
        Qp { config, iwarp, state: QpState::Reset, stream: None }
    }
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }
    /// What it was made with.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }
    /// What it does beyond RFC 5040.
    pub fn iwarp_config(&self) -> &IwarpConfig {
        &self.iwarp
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// The connection it runs on, since [`Qp::start`].
    pub fn conn(&self) -> Option<ConnId> {
        self.stream.map(|s| s.conn)
    }
    /// Every attribute that has been set, and the state.
    pub fn query(&self) -> QpAttr {
        QpAttr { state: Some(self.state), cur_state: Some(self.state), ..QpAttr::default() }
    }
    /// Send work requests outstanding.
    pub fn sends_outstanding(&self) -> usize {
        0
    }
    /// Receive work requests outstanding.
    pub fn receives_outstanding(&self) -> usize {
        0
    }
    /// Changes attributes and state, as one step. INIT to RTS is [`Qp::start`]'s alone.
    pub fn modify<E: QpEnv>(&mut self, _env: &mut E, attr: &QpAttr) -> Result<(), ModifyError> {
        self.state = attr.state.unwrap_or(self.state);
        Ok(())
    }
    /// Queues a send.
    pub fn post_send<E: QpEnv>(&mut self, _env: &mut E, _wr: SendWr) -> Result<(), PostError> {
        Err(PostError::WrongState { state: self.state, what: "send" })
    }
    /// Queues a receive.
    pub fn post_recv<E: QpEnv>(&mut self, _env: &mut E, _wr: RecvWr) -> Result<(), PostError> {
        Err(PostError::WrongState { state: self.state, what: "receive" })
    }
    /// MPA start-up is done: INIT to RTS on this stream.
    pub fn start<E: QpEnv>(
        &mut self,
        _env: &mut E,
        _now: Instant,
        params: StreamParams,
    ) -> Result<(), ModifyError> {
        self.stream = Some(params);
        self.state = QpState::Rts;
        Ok(())
    }
    /// Ends the connection once all posted sends are done (rdma_disconnect).
    pub fn disconnect<E: QpEnv>(&mut self, _env: &mut E, _now: Instant) {}
    /// Moves it to ERR for a reason of the device: raises QP_FATAL and flushes.
    pub fn fail<E: QpEnv>(&mut self, _env: &mut E) {}
    /// To be called before it is dropped. Nothing is completed.
    pub fn close<E: QpEnv>(&mut self, _env: &mut E) {}
    /// Bytes of the stream, in order, after the start frames. Takes all.
    pub fn handle_stream<E: QpEnv>(&mut self, _env: &mut E, _now: Instant, _bytes: &[u8]) {}
    /// What became of the stream.
    pub fn stream_event<E: QpEnv>(&mut self, _env: &mut E, _now: Instant, _event: StreamEvent) {}
    /// Fills `burst` (cleared first) with the next FPDUs; false if there are none now.
    pub fn poll_transmit<E: QpEnv>(&mut self, _env: &mut E, _now: Instant, burst: &mut StreamBurst) -> bool {
        burst.begin(ConnId::default());
        false
    }
    /// Says once that the connection is to be ended, and how.
    pub fn poll_close(&mut self) -> Option<Close> {
        None
    }
    /// When to call [`Qp::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    /// Time has passed.
    pub fn handle_timeout<E: QpEnv>(&mut self, _env: &mut E, _now: Instant) {}
}
