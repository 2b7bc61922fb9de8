//! An association: admin queue, enabled controller, I/O queues. NVMe-oF 1.1 §1.5.4; NVMe Base 2.0 §3.5.
//!
//! Order of connecting: admin Connect, CAP, CC.EN, CSTS.RDY, Identify, Number of Queues, I/O Connects. Of disconnecting:
//! I/O queues, CC.SHN, admin queue, as Linux does.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use everywire_verbs::rt::{Notify, Semaphore};
use everywire_verbs::{Access, MemoryRegion};

use super::error::{NvmeError, NvmeErrorKind, Who};
use super::parts::MAX_ENTRIES;
use super::queue::{Data, HostQueue, Open};
use super::{Environment, InitiatorOptions};
use crate::Nqn;
use crate::pdu::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, InvalidParameter, PropertyGet, PropertySet, connect_at,
};
use crate::pdu::identify::{IDENTIFY_LEN, IdentifyController};
use crate::pdu::log::LogRequest;
use crate::pdu::properties::*;
use crate::pdu::{AdminOpcode, Cqe, Sqe, Status, features};

/// Entries of an admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Largest admin transfer here, in bytes.
pub(super) const ADMIN_BUFFER: usize = 64 << 10;
/// How long an admin command may take, unless the whole of which it is part ends earlier.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a controller may take to shut down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Between looks at CSTS.
const POLL: Duration = Duration::from_millis(10);
/// SGLS bit 2: keyed data blocks.
const SGLS_KEYED: u32 = 1 << 2;

pub(super) struct Association {
    env: Rc<Environment>,
    pub(super) admin: Rc<HostQueue>,
    pub(super) io: Vec<Rc<HostQueue>>,
    next: Cell<usize>,
    pub(super) cntlid: u16,
    pub(super) id: IdentifyController,
    /// Bytes of data that fit into a capsule.
    pub(super) in_capsule: u32,
    buffer: MemoryRegion,
    /// One admin command with data at a time.
    buffer_free: Semaphore,
    /// When connecting, or disconnecting, has to be over, and the time that it was given.
    bound: Cell<Option<(Instant, Duration)>>,
}

impl Association {
    /// Connects, within a time that goes on until [`Association::is_made`], to `subsystem` with up to `io_queues` I/O queues (0 for a discovery controller).
    pub(super) async fn connect(
        env: &Rc<Environment>,
        options: &InitiatorOptions,
        subsystem: &Nqn,
        io_queues: u16,
        trouble: &Notify,
    ) -> Result<Self, NvmeError> {
        let (local, interface) = (options.source, env.interface.clone());
        let who = Who { local, remote: env.address, interface, subsystem: subsystem.clone() };
        let buffer =
            env.pd.register(ADMIN_BUFFER, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
        let buffer = buffer.map_err(|error| who.error("registering memory", error))?;
        let until = env.rt.now() + options.connect_timeout;
        let open = |qid, entries| Open {
            timeout: until.saturating_duration_since(env.rt.now()),
            rt: &env.rt,
            device: &env.device,
            pd: &env.pd,
            who: &who,
            qid,
            entries,
            rd_atomic: options.rd_atomic,
            trouble,
        };
        let admin = HostQueue::open(open(0, ADMIN_ENTRIES)).await?;
        let mut association = Self {
            env: env.clone(),
            admin,
            io: Vec::new(),
            next: Cell::new(0),
            cntlid: CNTLID_DYNAMIC,
            id: IdentifyController::default(),
            in_capsule: 0,
            buffer,
            buffer_free: Semaphore::new(1),
            bound: Cell::new(Some((until, options.connect_timeout))),
        };
        let made = association.establish(options, io_queues, &open).await;
        if let Err(error) = made {
            association.abandon(&error.to_string());
            return Err(error);
        }
        Ok(association)
    }

    async fn establish<'a>(
        &mut self,
        options: &InitiatorOptions,
        io_queues: u16,
        open: &impl Fn(u16, u16) -> Open<'a>,
    ) -> Result<(), NvmeError> {
        let admin = self.admin.clone();
        self.cntlid = self.connect_queue(&admin, ADMIN_ENTRIES, options.kato_ms()).await?;
        let cap = Capabilities(self.property(CAP, true).await?);
        self.enable(cap).await?;
        let sqe = Sqe {
            cdw10: identify_cns(crate::pdu::identify::CNS_CONTROLLER),
            ..Sqe::new(AdminOpcode::IDENTIFY.0, 0)
        };
        let bytes = self.admin_read("Identify Controller", sqe, IDENTIFY_LEN).await?;
        self.id = IdentifyController::parse(&bytes)
            .map_err(|error| admin.who.error("Identify Controller", error))?;
        if io_queues == 0 {
            return Ok(());
        }
        if self.id.sgls & SGLS_KEYED == 0 {
            let what = format!("the controller has no keyed SGLs (SGLS {:#x})", self.id.sgls);
            return Err(admin.who.error("Identify Controller", NvmeErrorKind::Protocol(what)));
        }
        // ICDOFF must be 0 for data right after the entry; Linux knows no other case either.
        if self.id.icdoff == 0 {
            self.in_capsule = self.id.ioccsz.saturating_mul(16).saturating_sub(Sqe::LEN as u32);
        }
        let wanted = u32::from(io_queues - 1);
        let sqe = Sqe {
            cdw10: features::NUMBER_OF_QUEUES.into(),
            cdw11: wanted | wanted << 16,
            ..Sqe::new(AdminOpcode::SET_FEATURES.0, 0)
        };
        let granted = self.command("Set Features (Number of Queues)", sqe, Data::None).await?.dword0();
        let granted = (granted & 0xffff).min(granted >> 16).min(wanted) as u16 + 1;
        let mqes = u32::from(cap.mqes()) + 1;
        let entries = u32::from(options.queue_entries).min(mqes).min(MAX_ENTRIES.into()).max(2) as u16;
        for qid in 1..=granted {
            let queue = HostQueue::open(open(qid, entries)).await?;
            // In the list first, so that a failure closes it too.
            self.io.push(queue.clone());
            self.connect_queue(&queue, entries, 0).await?;
        }
        Ok(())
    }

    async fn connect_queue(&self, queue: &Rc<HostQueue>, entries: u16, kato: u32) -> Result<u16, NvmeError> {
        const STEP: &str = "Connect";
        let cntlid = if queue.qid == 0 { CNTLID_DYNAMIC } else { self.cntlid };
        let identity = &self.env.identity;
        let data = ConnectData {
            hostid: identity.id,
            cntlid,
            subnqn: queue.who.subsystem.to_field(),
            hostnqn: identity.nqn.to_field(),
        };
        let _held = self.buffer_free.acquire(1).await;
        self.buffer.write_at(0, &data.emit()).map_err(|error| queue.who.error(STEP, error))?;
        let sqe = Connect::new(queue.qid, entries - 1, kato).to_sqe();
        let cqe = self.timed(queue, STEP, sqe, self.region(ConnectData::LEN)).await?;
        let status = cqe.status();
        if status.code() == Status::CONNECT_INVALID_PARAMETERS {
            let kind = refused(queue.qid, cntlid, status, InvalidParameter::from_cqe(&cqe));
            return Err(queue.who.error(STEP, kind));
        }
        let cqe = queue.who.check(STEP, cqe)?;
        if cqe.dword0() >> 16 != 0 {
            let what = "the controller demands authentication, which this initiator does not have".to_owned();
            return Err(queue.who.error(STEP, NvmeErrorKind::Protocol(what)));
        }
        Ok(cqe.dword0() as u16)
    }

    async fn enable(&self, cap: Capabilities) -> Result<(), NvmeError> {
        self.set_property("enabling the controller", CC, CC_DEFAULT | CC_EN).await?;
        let patience = Duration::from_millis(500) * u32::from(cap.timeout_500ms()).max(1);
        self.await_csts("enabling the controller", patience, |csts| csts & CSTS_RDY != 0).await
    }

    async fn await_csts(
        &self,
        step: &'static str,
        patience: Duration,
        done: impl Fn(u32) -> bool,
    ) -> Result<(), NvmeError> {
        let deadline = self.env.rt.now() + patience;
        loop {
            let csts = self.property(CSTS, false).await? as u32;
            if done(csts) {
                return Ok(());
            }
            if csts & CSTS_CFS != 0 {
                let what = "the controller reports a fatal status (CSTS.CFS)".to_owned();
                return Err(self.admin.who.error(step, NvmeErrorKind::Protocol(what)));
            }
            if self.env.rt.now() >= deadline {
                return Err(self.admin.who.error(step, NvmeErrorKind::Timeout(patience)));
            }
            self.env.rt.sleep(POLL).await;
        }
    }

    async fn property(&self, offset: u32, wide: bool) -> Result<u64, NvmeError> {
        let cqe = self.command("Property Get", PropertyGet::new(offset, wide).to_sqe(), Data::None).await?;
        Ok(cqe.result)
    }

    async fn set_property(&self, step: &'static str, offset: u32, value: u32) -> Result<(), NvmeError> {
        self.command(step, PropertySet::new(offset, value).to_sqe(), Data::None).await.map(drop)
    }

    fn region(&self, len: usize) -> Data<'_> {
        Data::Region { region: &self.buffer, at: 0, len: len as u32, inline: false }
    }

    async fn timed(
        &self,
        queue: &Rc<HostQueue>,
        step: &'static str,
        sqe: Sqe,
        data: Data<'_>,
    ) -> Result<Cqe, NvmeError> {
        let (end, given) = match self.bound.get() {
            Some((until, given)) => (until.saturating_duration_since(self.env.rt.now()), given),
            None => (ADMIN_TIMEOUT, ADMIN_TIMEOUT),
        };
        match self.env.rt.timeout(end, queue.submit(sqe, data)).await {
            Ok(Ok(cqe)) => Ok(cqe),
            Ok(Err(kind)) => Err(queue.who.error(step, kind)),
            Err(_) => {
                queue.fail(format!("{step}: no answer within {given:?}"));
                Err(queue.who.error(step, NvmeErrorKind::Timeout(given)))
            }
        }
    }

    /// All of connecting is done: what follows has its own time.
    pub(super) fn is_made(&self) {
        self.bound.set(None);
    }

    /// An admin command; an unsuccessful status is an error.
    pub(super) async fn command(
        &self,
        step: &'static str,
        sqe: Sqe,
        data: Data<'_>,
    ) -> Result<Cqe, NvmeError> {
        let cqe = self.timed(&self.admin, step, sqe, data).await?;
        self.admin.who.check(step, cqe)
    }

    /// An admin command that returns `len` bytes, at most [`ADMIN_BUFFER`].
    pub(super) async fn admin_read(
        &self,
        step: &'static str,
        sqe: Sqe,
        len: usize,
    ) -> Result<Vec<u8>, NvmeError> {
        debug_assert!(len <= ADMIN_BUFFER);
        let _held = self.buffer_free.acquire(1).await;
        self.command(step, sqe, self.region(len)).await?;
        self.buffer.read_vec(0, len).map_err(|error| self.admin.who.error(step, error))
    }

    /// `len` bytes of a log page from `offset`.
    pub(super) async fn log_page(
        &self,
        step: &'static str,
        lid: u8,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, NvmeError> {
        let request = LogRequest { lid, lsp: 0, retain: false, len: len as u64, offset };
        self.admin_read(step, request.to_sqe(crate::pdu::command::NSID_ALL), len).await
    }

    /// The I/O queue whose turn it is.
    pub(super) fn next_io(&self) -> &Rc<HostQueue> {
        let turn = self.next.get();
        self.next.set(turn.wrapping_add(1));
        &self.io[turn % self.io.len()]
    }

    /// Whether every queue works.
    pub(super) fn is_live(&self) -> bool {
        self.admin.is_live() && self.io.iter().all(|queue| queue.is_live())
    }

    /// Why a queue of it died, if one has.
    pub(super) fn why(&self) -> Option<String> {
        self.io.iter().chain([&self.admin]).find_map(|queue| queue.why())
    }

    /// Gives the association up at once.
    pub(super) fn abandon(&self, why: &str) {
        self.io.iter().for_each(|queue| queue.fail(why.to_owned()));
        self.admin.fail(why.to_owned());
    }

    /// Disconnects in order. Confirmations are waited for at the end: one that is lost takes seconds to come, and no Keep
    /// Alive is sent any more.
    pub(super) async fn close(&self) -> Result<(), NvmeError> {
        self.bound.set(Some((self.env.rt.now() + SHUTDOWN_TIMEOUT, SHUTDOWN_TIMEOUT)));
        let ended: Vec<_> = self.io.iter().map(|queue| queue.close()).collect();
        let step = "shutting the controller down";
        let shut = async {
            self.set_property(step, CC, CC_DEFAULT | CC_EN | CC_SHN_NORMAL).await?;
            self.await_csts(step, SHUTDOWN_TIMEOUT, |csts| csts & CSTS_SHST == CSTS_SHST_COMPLETE).await
        };
        let result = shut.await;
        for queue in ended {
            queue.await;
        }
        self.admin.close().await;
        result
    }
}

/// What a refused parameter of Connect means. The controller identifier of an I/O queue is the one that the controller has just
/// given: it knows it no more when the association has ended meanwhile, as over a link that was away for a moment.
fn refused(qid: u16, cntlid: u16, status: Status, parameter: InvalidParameter) -> NvmeErrorKind {
    match parameter == InvalidParameter::data(connect_at::DATA_CNTLID) && qid != 0 {
        true => NvmeErrorKind::ControllerGone(cntlid),
        false => NvmeErrorKind::Parameter { status, parameter },
    }
}

/// Dword 10 of Identify.
pub(super) fn identify_cns(cns: u8) -> u32 {
    cns.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_its_target_knows_no_more_is_gone() {
        let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
        let of = |qid, at| refused(qid, 7, status, InvalidParameter::data(at));
        let who = Who {
            local: None,
            remote: "192.0.2.1:4420".parse().unwrap(),
            interface: None,
            subsystem: Nqn::discovery(),
        };
        let gone = who.error("Connect", of(1, connect_at::DATA_CNTLID));
        assert!(matches!(*gone.kind, NvmeErrorKind::ControllerGone(7)) && !gone.is_permanent());
        assert!(gone.to_string().contains("controller 7 is gone"), "{gone}");
        for (qid, at) in [(0, connect_at::DATA_CNTLID), (1, connect_at::DATA_SUBNQN)] {
            assert!(who.error("Connect", of(qid, at)).is_permanent());
        }
    }
}
