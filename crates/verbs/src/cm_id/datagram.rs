//! Asking for the datagram queue pair behind an address and port (SIDR). `service` has the side that answers.
//!
//! Read IBTA vol. 1 §12.11 and annex A11. The answer gives a queue pair and a Q_Key; together with an address handle they are
//! where datagrams go. Nothing is kept on either side afterwards.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use everywire_transport::cm::ib::{CommId, SidrAnswer, SidrParams};
use everywire_transport::ib::{QpType, UdDest};
use everywire_transport::mad::MadPath;
use everywire_wire::cm::SidrStatus;
use everywire_wire::ip_cm::{PortSpace, service_id};
use everywire_wire::{QKey, Qpn};

use super::active::{check_private, unspecified, with_header};
use super::error::{CmError, CmErrorKind, CmStep};
use super::record::{End, Key, Record, scope_of, socket_addr};
use super::{Call, RESOLVE_PRIVATE_DATA};
use crate::ah::{Ah, AhAttr};
use crate::device::Device;
use crate::pd::Pd;
use crate::route::Way;
use crate::state::State;
use crate::waker::WakerKey;
use crate::wire_kind::WireFeature;

/// A datagram service that was found.
#[derive(Clone, Debug)]
pub struct DatagramService {
    /// The way there.
    pub ah: Ah,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: QKey,
    /// The service's private data: 136 bytes, zeros at the end.
    pub private_data: Vec<u8>,
}

impl DatagramService {
    /// As the destination of work requests.
    pub fn dest(&self) -> UdDest {
        self.ah.dest(self.qpn, self.qkey)
    }
}

/// Which datagram service to find.
#[derive(Clone, Debug)]
pub struct ResolveOptions {
    /// Its address and port.
    pub dst: SocketAddr,
    /// The address and port to ask from; port 0 takes a free one.
    pub src: Option<SocketAddr>,
    /// For the service's program, at most 180 bytes.
    pub private_data: Vec<u8>,
    /// As in [`AhAttr::path_bits`].
    pub path_bits: Option<u8>,
    /// Gives up after this time; `None` leaves it to the retries.
    pub timeout: Option<Duration>,
}

impl ResolveOptions {
    /// `dst` with everything else at its default.
    pub fn new(dst: SocketAddr) -> ResolveOptions {
        ResolveOptions { dst, src: None, private_data: Vec::new(), path_bits: None, timeout: None }
    }
}

impl Pd {
    /// Finds a datagram service: route, SIDR, address handle. Dropped before it is done, it leaves nothing behind.
    pub async fn resolve_udp(&self, options: ResolveOptions) -> Result<DatagramService, CmError> {
        let device = self.device();
        let ResolveOptions { dst, src, private_data, path_bits, timeout } = options;
        let fail = |step, kind| CmError::new(device.config(), step, src, Some(dst), kind);
        device.config().needs(WireFeature::Ud).map_err(|error| fail(CmStep::ResolveService, error.into()))?;
        check_private("service request", RESOLVE_PRIVATE_DATA, &private_data)
            .map_err(|kind| fail(CmStep::ResolveService, kind))?;
        let src_ip = src.map(|src| src.ip()).filter(|ip| !ip.is_unspecified());
        let before = device.lock().now;
        let way = device.resolve(dst.ip(), scope_of(dst), src_ip, None, path_bits, timeout).await;
        // What the route has taken is not there for the service any more.
        let taken = before.zip(device.lock().now).map(|(before, now)| now - before);
        let timeout = timeout.map(|timeout| timeout.saturating_sub(taken.unwrap_or_default()));
        let way = way.map_err(|error| fail(CmStep::ResolveRoute, CmErrorKind::Route(error)))?;
        let asked = device.lock().cm_ask_start(
            dst,
            SocketAddr::new(src_ip.unwrap_or(unspecified(dst.ip())), src.map_or(0, |src| src.port())),
            &way,
            &private_data,
            timeout,
        );
        let key = asked.map_err(|kind| fail(CmStep::ResolveService, kind))?;
        let answer = Resolved { device: device.clone(), key, waker: None }.await?;
        let attr = AhAttr { scope_id: way.scope_id, src: Some(way.src), ..AhAttr::new(dst.ip()) };
        let ah = self.ah_through(&attr, &way);
        let ah = ah.map_err(|error| fail(CmStep::ResolveService, CmErrorKind::Verbs(error)))?;
        Ok(DatagramService { ah, qpn: answer.qpn, qkey: answer.qkey, private_data: answer.private_data })
    }
}

/// Waits for the answer.
struct Resolved {
    device: Device,
    key: Key,
    waker: Option<WakerKey>,
}

impl Future for Resolved {
    type Output = Result<SidrAnswer, CmError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.device.lock();
        let Some(record) = state.cm.records.get_mut(this.key) else { return Poll::Pending };
        if let Some(answer) = record.answer.take() {
            return Poll::Ready(Ok(*answer));
        }
        if let Some(End::Failed(kind)) = &record.end {
            let (kind, local, remote) = (kind.clone(), record.local, record.remote);
            let step = CmStep::ResolveService;
            return Poll::Ready(Err(CmError::new(&state.config, step, Some(local), Some(remote), kind)));
        }
        let replaced = record.wakers.register(&mut this.waker, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for Resolved {
    fn drop(&mut self) {
        self.device.lock().cm_release(self.key);
    }
}

impl State {
    fn cm_ask_start(
        &mut self,
        dst: SocketAddr,
        src: SocketAddr,
        way: &Way,
        private_data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Key, CmErrorKind> {
        let src_ip = Some(src.ip()).filter(|ip| !ip.is_unspecified());
        let bound = self.cm.udp.bind(src_ip, src.port(), &mut self.rng).ok_or(CmErrorKind::AddressInUse)?;
        let path = MadPath::on(way.link, way.src, way.dst, way.scope_id);
        let name =
            if way.link.is_infiniband() { src_ip.unwrap_or(self.ib_name_for(dst.ip())) } else { way.src };
        let local = socket_addr(name, bound.port, way.scope_id);
        let mut record = Record::new(CmStep::ResolveService, QpType::Ud, local, dst);
        record.bound = Some(bound);
        record.millis = timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        let key = self.cm.records.insert(record);
        let params = SidrParams {
            path,
            service_id: service_id(PortSpace::UDP, dst.port()),
            pkey: self.pkey_at(0).unwrap_or_default(),
            private_data: with_header(local, dst.ip(), private_data),
        };
        self.cm_call(Call::Start(key));
        self.cm_call(Call::Ask(key, params));
        Ok(key)
    }

    /// Sends SIDR_REQ.
    pub(super) fn cm_ask(&mut self, now: Instant, key: Key, params: &SidrParams) {
        if self.cm.records.get(key).is_none() {
            return; // dropped before the driver came
        }
        match self.cm.engine.sidr_request(now, params) {
            Ok(id) => self.cm.records.set_comm(key, id),
            Err(error) => self.cm_end(key, End::Failed(CmErrorKind::Refused(error))),
        }
    }

    /// SIDR_REP has come.
    pub(super) fn cm_answered(&mut self, id: CommId, answer: SidrAnswer) {
        let Some(key) = self.cm.records.of_comm(id) else { return };
        self.cm.records.take_comm(key);
        self.cm.records.disarm(key);
        if answer.status == SidrStatus::Valid {
            if let Some(record) = self.cm.records.get_mut(key) {
                record.answer = Some(Box::new(answer));
            }
            self.cm_wake(key);
        } else {
            let kind = CmErrorKind::NoService { status: answer.status, private_data: answer.private_data };
            self.cm_end(key, End::Failed(kind));
        }
    }
}
