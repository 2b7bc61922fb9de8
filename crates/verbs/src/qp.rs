//! Queue pairs as the program holds them.
//!
//! Read IBTA vol. 1 §10.3 (states) and §11.4.1 (posting) first. A handle keeps its domain, completion queues and shared
//! receive queue alive; the last one destroys the queue pair, and nothing of it completes afterwards. All behaviour is
//! the transport's; here are the device's limits and its lock.

use std::fmt;
use std::sync::Arc;

use everywire_transport::ib::{PostError, QpAttr, QpCaps, QpConfig, QpState, QpType, RecvWr, SendWr};
use everywire_transport::memory::Access;
use everywire_wire::{PKey, Qpn};

use crate::any_qp::AnyQp;
use crate::cq::Cq;
use crate::device::Device;
use crate::error::{ErrorKind, PostListError, VerbsError};
use crate::pd::Pd;
use crate::srq::Srq;
use crate::state::State;

/// What a queue pair is made with.
#[derive(Clone, Debug)]
pub struct QpInit<'a> {
    /// Transport service.
    pub ty: QpType,
    /// Completions of sends.
    pub send_cq: &'a Cq,
    /// Completions of receives.
    pub recv_cq: &'a Cq,
    /// Shared receive queue, if it uses one.
    pub srq: Option<&'a Srq>,
    /// Queue depths.
    pub caps: QpCaps,
    /// Every send makes a completion, whatever its work request says.
    pub sq_sig_all: bool,
}

impl<'a> QpInit<'a> {
    /// A queue pair with both queues on one completion queue, and everything else at its default.
    pub fn new(ty: QpType, cq: &'a Cq) -> QpInit<'a> {
        QpInit { ty, send_cq: cq, recv_cq: cq, srq: None, caps: QpCaps::default(), sq_sig_all: false }
    }
}

/// A queue pair. Cheap to clone; destroyed with the last handle.
#[derive(Clone)]
pub struct Qp(Arc<QpInner>);

struct QpInner {
    pd: Pd,
    qpn: Qpn,
    ty: QpType,
    caps: QpCaps,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let mut state = self.pd.device().lock();
        let removed = state.destroy_qp(self.qpn);
        drop(state);
        drop(removed); // its queues, outside the lock
    }
}

impl Pd {
    /// Creates a queue pair, in RESET. A refused call leaves nothing behind.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp, VerbsError> {
        self.check_qp(init)?;
        let device = self.device();
        let config = |qpn| QpConfig {
            ty: init.ty,
            qpn,
            pd: self.id(),
            send_cq: init.send_cq.id(),
            recv_cq: init.recv_cq.id(),
            srq: init.srq.map(Srq::id),
            caps: init.caps,
            sq_sig_all: init.sq_sig_all,
            pkey: PKey::DEFAULT,
            port_mtu: device.config().active_mtu,
        };
        let mut locked = device.lock();
        let state: &mut State = &mut locked;
        // IBTA §12.9.8.4: not a number that stray packets of its last connection may still reach.
        let make = |qpn| AnyQp::new(device.config(), config(qpn));
        let made = state.qps.insert(make, |qpn| state.cm.holds_qpn(qpn));
        drop(locked);
        let max = device.limits().max_qp;
        let (_, qpn) = made.ok_or_else(|| VerbsError::full(device.name(), "max_qp", max.into()))?;
        Ok(Qp(Arc::new(QpInner {
            pd: self.clone(),
            qpn,
            ty: init.ty,
            caps: init.caps,
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.cloned(),
        })))
    }

    fn check_qp(&self, init: &QpInit<'_>) -> Result<(), VerbsError> {
        let (device, limits, caps) = (self.device(), self.device().limits(), &init.caps);
        let foreign = |what: &str| {
            let what = format!("the {what} belongs to another device");
            Err(VerbsError::new(ErrorKind::InvalidArgument, device.name(), what))
        };
        if !init.send_cq.device().same(device) || !init.recv_cq.device().same(device) {
            return foreign("completion queue");
        }
        if init.srq.is_some_and(|srq| !srq.device().same(device)) {
            return foreign("shared receive queue");
        }
        if init.srq.is_some_and(|srq| !srq.pd().same(self)) {
            let what = "the shared receive queue belongs to another protection domain";
            return Err(VerbsError::new(ErrorKind::InvalidArgument, device.name(), what));
        }
        device.config().needs_service(init.ty)?;
        caps.check().map_err(|error| VerbsError::attr(device.name(), &error))?;
        let rows = [
            ("max_qp_wr", caps.max_send_wr.max(caps.max_recv_wr), limits.max_qp_wr),
            ("max_sge", caps.max_send_sge.max(caps.max_recv_sge), limits.max_sge),
            ("max_inline", caps.max_inline_data, limits.max_inline),
        ];
        for (name, asked, limit) in rows {
            if asked > limit {
                return Err(VerbsError::limit(device.name(), name, asked.into(), limit.into()));
            }
        }
        Ok(())
    }
}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// Its transport service.
    pub fn ty(&self) -> QpType {
        self.0.ty
    }

    /// Its queue depths.
    pub fn caps(&self) -> QpCaps {
        self.0.caps
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        self.0.pd.device()
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Cq {
        &self.0.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &Cq {
        &self.0.recv_cq
    }

    /// Its shared receive queue.
    pub fn srq(&self) -> Option<&Srq> {
        self.0.srq.as_ref()
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.device().lock().qps.get(self.qpn()).map_or(QpState::Reset, |entry| entry.qp.state())
    }

    /// Every attribute that has been set.
    pub fn query(&self) -> QpAttr {
        self.device().lock().qps.get(self.qpn()).map(|entry| entry.qp.query()).unwrap_or_default()
    }

    /// Changes attributes and state, as one step: on an error nothing has changed.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), VerbsError> {
        self.check_modify(attr)?;
        match self.device().lock().modify(self.qpn(), attr) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(VerbsError::modify(self.to_string(), &error)),
        }
    }

    /// What the device, rather than the standard, does not allow.
    fn check_modify(&self, attr: &QpAttr) -> Result<(), VerbsError> {
        let device = self.device();
        let limit = device.limits().max_qp_rd_atom;
        for (name, asked) in
            [("max_rd_atomic", attr.max_rd_atomic), ("max_dest_rd_atomic", attr.max_dest_rd_atomic)]
        {
            if asked.is_some_and(|asked| asked > limit) {
                return Err(VerbsError::limit(
                    &self.to_string(),
                    name,
                    asked.unwrap_or(0).into(),
                    limit.into(),
                ));
            }
        }
        let mtu = device.config().active_mtu;
        if let Some(asked) = attr.path_mtu.filter(|asked| asked.bytes() > mtu.bytes()) {
            let (asked, limit) = (asked.bytes() as u64, mtu.bytes() as u64);
            return Err(VerbsError::limit(&self.to_string(), "path_mtu", asked, limit));
        }
        if let Some(path) = attr.path
            && !path.link.is_infiniband() // its LIDs are the subnet manager's to say
            && !device.gids().iter().any(|gid| gid.ip == path.src)
        {
            let what = format!("source address {} is not one of the device's", path.src);
            return Err(VerbsError::new(ErrorKind::InvalidArgument, self.to_string(), what));
        }
        Ok(())
    }

    /// RESET to INIT on port 1, with these remote accesses allowed; receives may be posted from then on. Datagram queue
    /// pairs need a Q_Key: use [`Qp::modify`].
    pub fn to_init(&self, access: Access) -> Result<(), VerbsError> {
        let attr =
            QpAttr { pkey_index: Some(0), port: Some(1), access: Some(access), ..QpAttr::to(QpState::Init) };
        self.modify(&attr)
    }

    /// To ERR: everything posted is flushed.
    pub fn to_error(&self) -> Result<(), VerbsError> {
        self.modify(&QpAttr::to(QpState::Err))
    }

    /// Posts a send.
    #[inline]
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.device().config().check_post(&wr)?;
        let posted = self.device().lock().with_qp(self.qpn(), true, |qp, core| qp.post_send(core, wr));
        posted.unwrap_or(Err(PostError::WrongState { state: QpState::Reset, what: "send" }))
    }

    /// Posts sends in order, up to the first that is refused, under one lock and with one kick of the driver.
    pub fn post_send_list(&self, list: impl IntoIterator<Item = SendWr>) -> Result<(), PostListError> {
        let config = self.device().config();
        let posted = self.device().lock().with_qp(self.qpn(), true, |qp, core| {
            for (index, wr) in list.into_iter().enumerate() {
                let posted = config.check_post(&wr).and_then(|()| qp.post_send(core, wr));
                posted.map_err(|error| PostListError { index, error })?;
            }
            Ok(())
        });
        posted.unwrap_or(Ok(()))
    }

    /// Posts a receive.
    #[inline]
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        let posted = self.device().lock().with_qp(self.qpn(), false, |qp, core| qp.post_recv(core, wr));
        posted.unwrap_or(Err(PostError::WrongState { state: QpState::Reset, what: "receive" }))
    }

    /// Posts receives in order, up to the first that is refused.
    pub fn post_recv_list(&self, list: impl IntoIterator<Item = RecvWr>) -> Result<(), PostListError> {
        let posted = self.device().lock().with_qp(self.qpn(), false, |qp, core| {
            for (index, wr) in list.into_iter().enumerate() {
                qp.post_recv(core, wr).map_err(|error| PostListError { index, error })?;
            }
            Ok(())
        });
        posted.unwrap_or(Ok(()))
    }
}

impl fmt::Display for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} QP {}", self.device().name(), self.0.ty.name(), self.0.qpn)
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({self})")
    }
}
