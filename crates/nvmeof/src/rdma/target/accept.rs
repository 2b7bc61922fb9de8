//! From a CM request to a running connection. NVMe RDMA Transport 1.0 §2.2: queue sizes travel in the private data.
//!
//! Receives for the whole submission queue are posted before the accept goes out, so the host may send at once. The target
//! knows a queue from when its connection is complete; until then it is an attempt ([`super::half_open`]), whose memory
//! nobody has touched, and which is given up when the time for Connect is over, whatever times the host put into its request.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use everywire_verbs::rt::{Either, Notify, select};
use everywire_verbs::{
    Access, ConnParam, ConnectRequest, Device, ListenOptions, Listener, Pd, Qp, QpCaps, QpInit, QpType,
    VerbsError,
};

use super::connection::{Connection, Parts};
use super::half_open::Attempt;
use super::{ListenError, Shared};
use crate::pdu::cm::{CmAccept, CmRequest, CmStatus};
use crate::pdu::{Cqe, Sqe};
use crate::rdma::pool::DataPool;
use crate::rdma::region::io_memory;
use crate::scoped::{Scoped, interface_of};
use crate::target::{Limits, QueueOrigin};
use everywire_verbs::peer_log::{About, PeerLog};

/// Receive slots start on a cache line.
const SLOT_ALIGN: usize = 64;
/// RNR retries of the host's receive queue: for ever, as Linux asks.
const RNR_RETRY: u8 = 7;

/// A listener and what its connections share.
pub(super) struct Entrance {
    shared: Rc<Shared>,
    listener: Listener,
    port_id: u16,
    context: Rc<Context>,
}

/// What the connections of one listener share.
pub(super) struct Context {
    pub(super) device: Device,
    pub(super) pd: Pd,
    pub(super) pool: Rc<DataPool>,
    /// The interface that the listener's scope is, if it has one.
    pub(super) interface: Option<Arc<str>>,
    /// What peers may write into the log.
    pub(super) log: Rc<PeerLog>,
}

impl Entrance {
    pub(super) fn new(
        shared: &Rc<Shared>,
        device: &Device,
        address: SocketAddr,
    ) -> Result<Self, ListenError> {
        let pd = device.alloc_pd()?;
        let max = shared.target.borrow().limits().max_transfer() as usize;
        let pool = DataPool::new(&pd, shared.options.data_pool, max)?;
        let listener = device.listen(address, ListenOptions { backlog: shared.options.backlog })?;
        let port_id = shared.next_port.get();
        shared.next_port.set(port_id.wrapping_add(1));
        shared.pools.borrow_mut().push(Rc::downgrade(&pool));
        let interface = interface_of(device, address);
        let log = shared.target.borrow_mut().peer_log(port_id);
        shared.keep_log(&log, Scoped(listener.local_addr(), interface.as_deref()).to_string());
        let context = Rc::new(Context { device: device.clone(), pd, pool, interface, log });
        Ok(Self { shared: shared.clone(), listener, port_id, context })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    pub(super) fn port_id(&self) -> u16 {
        self.port_id
    }

    pub(super) fn interface(&self) -> Option<Arc<str>> {
        self.context.interface.clone()
    }

    /// Takes requests until told to stop.
    pub(super) async fn run(self, stop: Notify) {
        loop {
            let request = match select(self.listener.next_request(), stop.notified()).await {
                Either::First(Ok(request)) => request,
                Either::First(Err(error)) => {
                    tracing::error!("{error}");
                    break;
                }
                Either::Second(()) => break,
            };
            self.handle(request);
        }
        self.shared.target.borrow_mut().remove_listener(self.port_id);
        self.shared.dispatch();
    }

    fn handle(&self, request: ConnectRequest) {
        let interface = self.context.interface.as_deref();
        let (peer, local) = (Scoped(request.peer(), interface), Scoped(request.local(), interface));
        match self.prepare(&request) {
            Ok(prepared) => {
                let shared = self.shared.clone();
                self.shared.rt.spawn(prepared.accept(shared, request));
            }
            Err(status) => {
                if self.context.log.may(About::Trouble) {
                    tracing::warn!("{peer} -> {local}: connection refused: {status}");
                }
                if let Err(error) = request.reject(&status.to_reject()) {
                    tracing::debug!("{error}");
                }
            }
        }
    }

    fn prepare(&self, request: &ConnectRequest) -> Result<Prepared, CmStatus> {
        let wanted = CmRequest::check(request.private_data())?;
        // We could not READ a single block: the first command with keyed data would break the connection.
        if request.param().responder_resources == 0 {
            return Err(CmStatus::INVALID_IRD);
        }
        let target = self.shared.target.borrow();
        target.admits(&wanted)?;
        let attempt = self.shared.half_open.begin(request.peer().ip()).ok_or(CmStatus::NO_RESOURCES)?;
        let (peer, local) = (request.peer(), request.local());
        let interface = self.context.interface.clone();
        let origin = QueueOrigin { port_id: self.port_id, peer, local, interface };
        // A larger wish is refused by Connect, which can say which parameter it was.
        let entries = u32::from(wanted.hsqsize) + 1;
        let entries = entries.min(target.limits().max_queue_entries.into());
        let (qp, parts) = make_queue(&self.context, entries, target.limits()).map_err(|error| {
            if self.context.log.may(About::Trouble) {
                tracing::error!("{}: {error}", request.peer());
            }
            CmStatus::NO_RESOURCES
        })?;
        let rd_atomic = self.shared.options.rd_atomic;
        Ok(Prepared { attempt, wanted, origin, qp, parts, entries, rd_atomic })
    }
}

/// A queue pair with its receives posted, and the memory around it.
fn make_queue(context: &Rc<Context>, entries: u32, bounds: &Limits) -> Result<(Qp, Parts), VerbsError> {
    let (limits, in_capsule) = (context.device.limits(), bounds.in_capsule_data as usize);
    // A command keeps its slot until the host has acknowledged its response; meanwhile the host may send the next.
    let slots = 2 * entries as usize;
    // A READ takes an entry for each block, all at once, and one for its response: two such at least must fit, so that none
    // waits for room that never comes. A device with less than one of them refuses the queue.
    let longest = u32::from(bounds.sgl_descriptors()) + 1;
    let send_wr = (3 * entries + 32 + 2 * longest).min(limits.max_qp_wr).max(longest + 1);
    let cq = context.device.create_cq((entries + send_wr).min(limits.max_cqe))?;
    let caps = QpCaps {
        max_send_wr: send_wr,
        max_recv_wr: entries,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp = context.pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) })?;
    let stride = (Sqe::LEN + in_capsule).next_multiple_of(SLOT_ALIGN);
    let capsules = context.pd.register(stride * entries as usize, Access::LOCAL_WRITE)?;
    let responses = context.pd.register(Cqe::LEN * slots, Access::empty())?;
    // The host never reaches into our memory.
    qp.to_init(Access::empty())?;
    let parts = Parts {
        context: context.clone(),
        cq,
        capsule_memory: io_memory(&capsules),
        capsules,
        responses,
        stride,
        capsule_len: Sqe::LEN + in_capsule,
        slots,
        send_wr,
    };
    for index in 0..entries {
        let posted = qp.post_recv(parts.receive(index));
        posted.expect("an empty receive queue of this depth takes as many receives");
    }
    Ok((qp, parts))
}

/// Ready to accept.
struct Prepared {
    attempt: Attempt,
    wanted: CmRequest,
    origin: QueueOrigin,
    qp: Qp,
    parts: Parts,
    entries: u32,
    rd_atomic: u8,
}

impl Prepared {
    async fn accept(self, shared: Rc<Shared>, request: ConnectRequest) {
        let accept = CmAccept { crqsize: self.entries as u16, ..Default::default() };
        let param = ConnParam {
            initiator_depth: request.param().responder_resources.min(self.rd_atomic.max(1)),
            // The host must not READ from us.
            responder_resources: 0,
            rnr_retry_count: RNR_RETRY,
            ..ConnParam::with_private_data(accept.emit())
        };
        let patience = shared.target.borrow().limits().connect_timeout;
        let accepted = shared.rt.timeout(patience, request.accept(&self.qp, param));
        let outcome = select(accepted, self.attempt.displaced.notified()).await;
        let error = match outcome {
            Either::First(Ok(Ok(connection))) => return self.completed(shared, connection),
            Either::First(Ok(Err(error))) => error.to_string(),
            Either::First(Err(_)) => {
                shared.half_open.count(|counters| counters.expired += 1);
                format!("the host does not complete the connection within {patience:?}")
            }
            Either::Second(()) => "given up for a newer one: too many connections are half open".to_owned(),
        };
        if self.parts.context.log.may(About::Trouble) {
            tracing::warn!("{}: {error}", self.name());
        }
    }

    /// The host has confirmed.
    fn completed(self, shared: Rc<Shared>, connection: everywire_verbs::Connection) {
        let opened =
            shared.target.borrow_mut().open_queue(shared.rt.now(), self.origin.clone(), &self.wanted);
        // Another may have to go for it.
        shared.dispatch();
        match opened {
            Ok(id) => Connection::start(shared, id, self.qp, connection, self.parts),
            // Others came in between. The last handle disconnects.
            Err(status) if self.parts.context.log.may(About::Trouble) => {
                tracing::warn!("{}: closed: {status}", self.name());
            }
            Err(_) => {}
        }
    }

    fn name(&self) -> String {
        let interface = self.origin.interface.as_deref();
        let (peer, local) = (Scoped(self.origin.peer, interface), Scoped(self.origin.local, interface));
        format!("{peer} -> {local} queue {}", self.wanted.qid)
    }
}
