//! Where iSER connections are taken: a listener on a device, and what its connections share.
//!
//! Read RFC 7145 §5.1 and annex A (InfiniBand). Private data both ways are Linux's: one byte of what an end lacks. Receives for
//! everything that an initiator may send are posted before the accept goes out. Resources are the listener's from its start;
//! a connection that finds none is refused.

use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use everywire_verbs::peer_log::About;
use everywire_verbs::rt::{Either, Notify, select};
use everywire_verbs::{
    Access, CmError, ConnParam, ConnectRequest, Device, ListenOptions, Listener, Pd, QpType, RejReason,
    VerbsError,
};

use super::PrivateData;
use super::link::{Ends, Link};
use super::mover::Memory;
use super::target::{Connection, UNASKED, UNEXPECTED};
use crate::target::Target;

/// RNR retries of the initiator's receive queue: for ever, as Linux asks.
const RNR_RETRY: u8 = 7;
/// Entries of the send queue for each command: its READ, its WRITE, its response.
const SENDS: u32 = 3;

/// How a target uses a device.
#[derive(Debug, Clone)]
pub struct RdmaOptions {
    /// Bytes of memory for commands, shared by all connections of a listener.
    pub memory: usize,
    /// READs that a connection may have outstanding.
    pub rd_atomic: u8,
    /// Requests that may wait for an answer.
    pub backlog: usize,
    /// InitialR2T=No may be agreed on (RFC 7143 §13.10): data within FirstBurstLength then comes in SENDs, of at most 16 KiB a
    /// command, and each connection has receives for it (about 2 MiB at the usual queue depth). RDMA READ needs neither, and
    /// copies less.
    pub unsolicited: bool,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { memory: 64 << 20, rd_atomic: 16, backlog: 128, unsolicited: false }
    }
}

/// Why a target could not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The connection manager refused.
    #[error("cannot listen: {0}")]
    Cm(#[from] CmError),
    /// The device refused.
    #[error("cannot listen: {0}")]
    Verbs(#[from] VerbsError),
}

/// A listener; it stops when this is dropped. Connections stay.
pub struct RdmaPortal {
    local: SocketAddr,
    memory: Weak<Memory>,
    stop: Notify,
}

impl RdmaPortal {
    /// The address with its port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Bytes of memory that commands hold now.
    pub fn memory_in_use(&self) -> usize {
        self.memory.upgrade().map_or(0, |memory| memory.in_use())
    }
}

impl Drop for RdmaPortal {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

struct Entrance {
    target: Target,
    listener: Listener,
    pd: Pd,
    memory: Rc<Memory>,
    options: RdmaOptions,
}

impl Target {
    /// Takes iSER connections on an address of `device`. The portal is not added to what SendTargets shows.
    ///
    /// # Errors
    /// The address is taken, or the device has no memory for it.
    pub fn listen_rdma(
        &self,
        device: &Device,
        address: SocketAddr,
        options: RdmaOptions,
    ) -> Result<RdmaPortal, ListenError> {
        let pd = device.alloc_pd()?;
        let memory = Memory::new(&pd, options.memory)?;
        let listener = device.listen(address, ListenOptions { backlog: options.backlog })?;
        let portal =
            RdmaPortal { local: listener.local_addr(), memory: Rc::downgrade(&memory), stop: Notify::new() };
        let entrance = Entrance { target: self.clone(), listener, pd, memory, options };
        self.rt().spawn(entrance.run(portal.stop.clone()));
        Ok(portal)
    }
}

impl Entrance {
    async fn run(self, stop: Notify) {
        loop {
            match select(self.listener.next_request(), stop.notified()).await {
                Either::First(Ok(request)) => self.handle(request),
                Either::First(Err(error)) => {
                    tracing::error!("{error}");
                    return;
                }
                Either::Second(()) => return,
            }
        }
    }

    fn handle(&self, request: ConnectRequest) {
        let peer = request.peer();
        let refused = match self.prepare(&request) {
            Ok(ends) => return self.accept(request, ends),
            Err(why) => why,
        };
        if self.target.may_log(About::Trouble) {
            tracing::warn!("{peer}: iSER connection refused: {refused}");
        }
        if let Err(error) = request.reject_with(RejReason::NoResources, &[]) {
            tracing::debug!("{error}");
        }
    }

    fn prepare(&self, request: &ConnectRequest) -> Result<Ends, String> {
        if request.ty() != QpType::Rc {
            return Err("it asks for an unreliable connection".to_owned());
        }
        if request.param().responder_resources == 0 {
            return Err("it allows no RDMA READ, by which its data would be fetched".to_owned());
        }
        if !self.target.enter() {
            return Err("too many connections".to_owned());
        }
        let depth = self.target.options().session.queue_depth;
        let commands = depth + UNEXPECTED;
        let receives = if self.options.unsolicited { commands + UNASKED * depth } else { commands };
        // The initiator never reaches into this side's memory.
        Ends::new(&self.pd, receives, SENDS * commands, Access::empty()).map_err(|error| {
            self.target.leave();
            error.to_string()
        })
    }

    fn accept(&self, request: ConnectRequest, ends: Ends) {
        let (target, memory) = (self.target.clone(), self.memory.clone());
        let theirs = PrivateData::parse(request.private_data());
        let ours = PrivateData { no_zero_based: true, no_send_invalidate: false };
        let unsolicited = self.options.unsolicited;
        let ord = request.param().responder_resources.min(self.options.rd_atomic.max(1));
        let param = ConnParam {
            initiator_depth: ord,
            responder_resources: 0,
            rnr_retry_count: RNR_RETRY,
            ..ConnParam::with_private_data(ours.emit())
        };
        let (peer, portal) = (request.peer(), request.local());
        self.target.rt().spawn(async move {
            let rt = target.rt().clone();
            let until = rt.now() + target.options().login_timeout;
            let accepted = rt.timeout(target.options().login_timeout, request.accept(&ends.qp, param)).await;
            let why = match accepted {
                Ok(Ok(cm)) => {
                    let (target, link) = (target.clone(), Link::new(rt, ends, cm));
                    let invalidate = !theirs.no_send_invalidate;
                    let connection = Connection {
                        target,
                        link,
                        memory,
                        invalidate,
                        unsolicited,
                        ord,
                        peer,
                        portal,
                        logged_out: false,
                    };
                    connection.serve(until).await
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the initiator does not complete the connection".to_owned(),
            };
            target.leave();
            tracing::debug!("{peer}: connection ended: {why}");
        });
    }
}
