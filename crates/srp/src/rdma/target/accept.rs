//! From a CM request to a channel: the login in its private data, judged by [`crate::target::Gate`]. SRP r16a annex B.
//!
//! Receives for the whole request limit are posted before the accept goes out, so the initiator may send at once. A refusal is a
//! REJ with SRP_LOGIN_REJ, whose reason goes into the log in words.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use everywire_block::{IoBuf, IoMemory};
use everywire_verbs::peer_log::About;
use everywire_verbs::pool::{BufferPool, PoolBuf};
use everywire_verbs::rt::{Either, Notify, select};
use everywire_verbs::{
    Access, ConnParam, ConnectRequest, Device, ListenOptions, Listener, Pd, Qp, QpCaps, QpInit, QpType,
    VerbsError,
};

use super::channel::{Channel, Parts, RESPONSE_LEN};
use super::{Shared, TargetError};
use crate::PortId;
use crate::iu::{InitiatorIu, IuError, LoginRequest, LogoutReason, RejectReason};
use crate::rdma::region::io_memory;
use crate::target::{Accepted, Gate, Refusal};

/// Receive slots start on a cache line.
const SLOT_ALIGN: usize = 64;
/// RNR retries of the initiator's receive queue: for ever, as Linux asks.
const RNR_RETRY: u8 = 7;
/// Receives beyond the request limit: for answers to the target's own requests, and a logout.
const SPARE_RECEIVES: u32 = 4;
/// Information units of its own that a target may have on the way.
const SPARE_SENDS: u32 = 4;

/// A listener and what its channels share.
pub(super) struct Entrance {
    shared: Rc<Shared>,
    listener: Listener,
    context: Rc<Context>,
    /// Logins have the standard's form, without RDMA/CM.
    plain: bool,
}

/// What the channels of one listener share.
pub(super) struct Context {
    pub(super) device: Device,
    pub(super) pd: Pd,
    pub(super) pool: Rc<BufferPool>,
    /// The pool's region, for backends.
    pool_memory: Arc<dyn IoMemory>,
}

impl Entrance {
    pub(super) fn new(
        shared: &Rc<Shared>,
        device: &Device,
        address: SocketAddr,
    ) -> Result<Self, TargetError> {
        let context = Context::new(shared, device)?;
        let listener = device.listen(address, ListenOptions { backlog: shared.options.backlog })?;
        Ok(Self { shared: shared.clone(), listener, context, plain: false })
    }

    /// The same for a service of InfiniBand's connection manager.
    pub(super) fn service(
        shared: &Rc<Shared>,
        device: &Device,
        service_id: u64,
    ) -> Result<Self, TargetError> {
        let context = Context::new(shared, device)?;
        let options = ListenOptions { backlog: shared.options.backlog };
        let listener = device.listen_service_id(service_id, options)?;
        Ok(Self { shared: shared.clone(), listener, context, plain: true })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Takes requests until told to stop.
    pub(super) async fn run(self, stop: Notify) {
        loop {
            let request = match select(self.listener.next_request(), stop.notified()).await {
                Either::First(Ok(request)) => request,
                Either::First(Err(error)) => {
                    tracing::error!("{error}");
                    return;
                }
                Either::Second(()) => return,
            };
            self.handle(request);
        }
    }

    fn handle(&self, request: ConnectRequest) {
        match self.prepare(&request) {
            Ok(prepared) => drop(self.shared.rt.spawn(prepared.accept(request))),
            Err(refusal) => {
                if self.shared.log.may(About::Trouble) {
                    tracing::warn!(
                        "{} -> {}: login refused: {}",
                        request.peer(),
                        request.local(),
                        refusal.why
                    );
                }
                if let Err(error) = request.reject(&refusal.reject.emit()) {
                    tracing::debug!("{error}");
                }
            }
        }
    }

    fn prepare(&self, request: &ConnectRequest) -> Result<Prepared, Refusal> {
        let private = request.private_data();
        let login = if self.plain { plain_login(private) } else { LoginRequest::parse_rdma_cm(private) };
        let login = login.map_err(|error| Gate::malformed(&error))?;
        let no = |reason, why: String| {
            let reject =
                crate::iu::LoginReject { tag: login.tag, reason, formats: crate::iu::BufferFormats::OURS };
            Refusal { reject, why: format!("{reason}: {why}") }
        };
        if request.param().responder_resources == 0 {
            let why = "the initiator lets nobody READ (responder resources 0)".to_owned();
            return Err(no(RejectReason::UNABLE_TO_ESTABLISH, why));
        }
        if self.shared.stopping.get() {
            return Err(no(RejectReason::UNABLE_TO_ESTABLISH, "the target shuts down".to_owned()));
        }
        let accepted = self.shared.gate.borrow_mut().login(&login)?;
        self.end_others(&login, &accepted);
        match make_queue(&self.shared, &self.context, &accepted) {
            Ok((qp, parts)) => Ok(Prepared { shared: self.shared.clone(), login, accepted, qp, parts }),
            Err(error) => {
                self.shared.gate.borrow_mut().remove(accepted.channel);
                Err(no(RejectReason::INSUFFICIENT_RESOURCES, error.to_string()))
            }
        }
    }

    /// MULTI-CHANNEL ACTION: the channels whose place the new one takes.
    fn end_others(&self, login: &LoginRequest, accepted: &Accepted) {
        if accepted.ends.is_empty() {
            return;
        }
        self.shared.nexuses.forget(login.initiator, accepted.port);
        for id in &accepted.ends {
            let channel = self.shared.channels.borrow().get(id).cloned();
            if let Some(channel) = channel {
                channel.log_out(LogoutReason::MULTI_CHANNEL_ACTION, &"a new login takes its place");
            }
        }
    }
}

/// The standard's form of a login.
fn plain_login(private: &[u8]) -> Result<LoginRequest, IuError> {
    match InitiatorIu::parse(private)? {
        InitiatorIu::Login(login) => Ok(login),
        _ => Err(IuError::Type(private.first().copied().unwrap_or_default())),
    }
}

impl Context {
    fn new(shared: &Shared, device: &Device) -> Result<Rc<Self>, VerbsError> {
        let (pd, options) = (device.alloc_pd()?, &shared.options);
        let access = device.read_sink_access();
        let pool = BufferPool::new(&pd, options.data_pool, options.max_transfer as usize, access)?;
        shared.pools.borrow_mut().push(Rc::downgrade(&pool));
        let pool_memory = io_memory(pool.region());
        Ok(Rc::new(Self { device: device.clone(), pd, pool, pool_memory }))
    }

    /// The first `len` bytes of a buffer of the pool, for a backend.
    pub(super) fn io(&self, buffer: &PoolBuf, len: usize) -> IoBuf {
        IoBuf::new(self.pool_memory.clone(), buffer.at(), len)
    }
}

/// A queue pair with its receives posted, and the memory around it.
fn make_queue(
    shared: &Shared,
    context: &Rc<Context>,
    accepted: &Accepted,
) -> Result<(Qp, Parts), VerbsError> {
    let (limits, requests) = (context.device.limits(), accepted.response.request_limit_delta as u32);
    let receives = requests + SPARE_RECEIVES;
    // A request keeps its slot until the initiator has acknowledged its response; meanwhile it may send the next.
    let slots = 2 * requests + SPARE_SENDS;
    let send_wr = shared.options.send_queue.min(limits.max_qp_wr).max(8);
    let cq = context.device.create_cq((receives + send_wr).min(limits.max_cqe))?;
    let caps = QpCaps {
        max_send_wr: send_wr,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp = context.pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) })?;
    let iu_len = accepted.response.max_it_iu_len as usize;
    let stride = iu_len.next_multiple_of(SLOT_ALIGN);
    let ius = context.pd.register(stride * receives as usize, Access::LOCAL_WRITE)?;
    let responses = context.pd.register(RESPONSE_LEN * (slots as usize + 1), Access::empty())?;
    // The initiator never reaches into our memory.
    qp.to_init(Access::empty())?;
    let parts = Parts {
        context: context.clone(),
        cq,
        iu_memory: io_memory(&ius),
        ius,
        responses,
        stride,
        iu_len,
        slots: slots as usize,
        send_wr,
    };
    for index in 0..receives {
        qp.post_recv(parts.receive(index))
            .expect("an empty receive queue of this depth takes as many receives");
    }
    Ok((qp, parts))
}

/// Ready to accept.
struct Prepared {
    shared: Rc<Shared>,
    login: LoginRequest,
    accepted: Accepted,
    qp: Qp,
    parts: Parts,
}

/// Who logged in where.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) initiator: PortId,
    pub(super) target: PortId,
    pub(super) name: String,
}

impl Prepared {
    async fn accept(self, request: ConnectRequest) {
        let Self { shared, login, accepted, qp, parts } = self;
        let (peer, local) = (request.peer(), request.local());
        let param = ConnParam {
            initiator_depth: request.param().responder_resources.min(shared.options.rd_atomic.max(1)),
            // The initiator must not READ from us.
            responder_resources: 0,
            rnr_retry_count: RNR_RETRY,
            ..ConnParam::with_private_data(accepted.response.emit())
        };
        let patience = shared.options.login_timeout;
        let outcome = shared.rt.timeout(patience, request.accept(&qp, param)).await;
        let port = &shared.gate.borrow().ports()[accepted.port].clone();
        let who = Who { initiator: login.initiator, target: login.target, name: port.name.clone() };
        let why = match outcome {
            Ok(Ok(connection)) => {
                let nexus = shared.nexuses.get(&shared, login.initiator, accepted.port);
                let luns = shared.maps.borrow()[accepted.port].to(login.initiator).units().len();
                Channel::start(&shared, &accepted, who, nexus, (qp, connection), parts, luns);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the initiator does not complete the connection within {patience:?}"),
        };
        if shared.log.may(About::Trouble) {
            tracing::warn!("{peer} -> {local}: {why}");
        }
        shared.gate.borrow_mut().remove(accepted.channel);
    }
}
