//! A connected controller, kept connected. States: live, reconnecting, over (given up or disconnected).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use everywire_verbs::Device;
use everywire_verbs::rt::{Either, Notify, Rt, select};

use super::association::{Association, identify_cns};
use super::error::{NvmeError, NvmeErrorKind, Who};
use super::namespace::{Namespace, NamespaceInfo};
use super::queue::Data;
use super::{Environment, HostIdentity, InitiatorOptions};
use crate::Nqn;
use crate::pdu::identify::{self, IDENTIFY_LEN, IdentifyController, IdentifyNamespace};
use crate::pdu::{AdminOpcode, Cqe, Field, IoOpcode, Sqe, Status, features, log};

/// First pause before connecting again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Times a command is sent again when its status allows it.
const MAX_RETRIES: u32 = 5;
/// Pause before such a retry.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Namespaces at most that are looked at.
const MAX_NAMESPACES: usize = 1024;

enum State {
    Live(Rc<Association>),
    Reconnecting,
    Over(NvmeError),
}

pub(super) struct Inner {
    pub(super) env: Rc<Environment>,
    options: InitiatorOptions,
    who: Who,
    state: RefCell<State>,
    /// State changes.
    changed: Notify,
    /// A queue died, or the user is done.
    trouble: Notify,
    stopping: Cell<bool>,
    namespaces: RefCell<BTreeMap<u32, NamespaceInfo>>,
}

/// A controller. Dropping the last handle gives the association up; [`Controller::disconnect`] ends it in order.
#[derive(Clone)]
pub struct Controller(Rc<Handle>);

struct Handle(Rc<Inner>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stop(NvmeErrorKind::Disconnected);
    }
}

impl Controller {
    /// Connects to a subsystem and looks at its namespaces.
    pub async fn connect(
        rt: &Rt,
        device: &Device,
        address: SocketAddr,
        subsystem: &Nqn,
        identity: &HostIdentity,
        options: InitiatorOptions,
    ) -> Result<Self, NvmeError> {
        let env = Rc::new(Environment::new(rt, device, address, identity)?);
        let trouble = Notify::new();
        let association =
            Association::connect(&env, &options, subsystem, options.io_queues.max(1), &trouble).await?;
        let inner = Rc::new(Inner {
            who: association.admin.who.clone(),
            env,
            options,
            state: RefCell::new(State::Reconnecting),
            changed: Notify::new(),
            trouble,
            stopping: Cell::new(false),
            namespaces: RefCell::default(),
        });
        let controller = Self(Rc::new(Handle(inner.clone())));
        inner.scan(&association).await?;
        inner.enliven(Rc::new(association));
        rt.spawn(inner.supervise());
        Ok(controller)
    }

    /// What the controller says about itself.
    pub fn identify(&self) -> Option<IdentifyController> {
        match &*self.0.0.state.borrow() {
            State::Live(association) => Some(association.id.clone()),
            _ => None,
        }
    }

    /// I/O queues in use.
    pub fn io_queues(&self) -> usize {
        match &*self.0.0.state.borrow() {
            State::Live(association) => association.io.len(),
            _ => 0,
        }
    }

    /// Our address and the controller's.
    pub fn addresses(&self) -> (Option<SocketAddr>, SocketAddr) {
        (self.0.0.who.local, self.0.0.who.remote)
    }

    /// The active namespaces, as last seen.
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.0.0.namespaces.borrow().values().cloned().collect()
    }

    /// A namespace to do I/O on.
    pub fn namespace(&self, nsid: u32) -> Result<Namespace, NvmeError> {
        let info = self.0.0.namespaces.borrow().get(&nsid).cloned();
        let what = || NvmeErrorKind::Argument(format!("there is no namespace {nsid}"));
        let info = info.ok_or_else(|| self.0.0.who.error("opening a namespace", what()))?;
        Ok(Namespace::new(self.clone(), info))
    }

    pub(super) fn inner(&self) -> &Rc<Inner> {
        &self.0.0
    }

    /// A log page, `len` bytes (a multiple of 4, at most 64 KiB) from its start.
    pub async fn log_page(&self, lid: u8, len: usize) -> Result<Vec<u8>, NvmeError> {
        self.0.0.live().await?.log_page("Get Log Page", lid, 0, len).await
    }

    /// Disconnects in order: I/O queues, shutdown, admin queue. Commands still outstanding fail.
    pub async fn disconnect(self) -> Result<(), NvmeError> {
        let inner = &self.0.0;
        match inner.finish(NvmeErrorKind::Disconnected) {
            Some(association) => association.close().await,
            None => Ok(()),
        }
    }
}

impl Inner {
    fn enliven(self: &Rc<Self>, association: Rc<Association>) {
        *self.state.borrow_mut() = State::Live(association.clone());
        self.changed.notify_waiters();
        self.env.rt.spawn(self.clone().keep_alive(association.clone()));
        self.env.rt.spawn(self.clone().listen(association));
    }

    /// Ends it all; gives the association if there was one.
    fn finish(&self, kind: NvmeErrorKind) -> Option<Rc<Association>> {
        self.stopping.set(true);
        if let State::Over(_) = &*self.state.borrow() {
            return None;
        }
        let over = State::Over(self.who.error("I/O", kind));
        let was = std::mem::replace(&mut *self.state.borrow_mut(), over);
        self.changed.notify_waiters();
        self.trouble.notify_one();
        match was {
            State::Live(association) => Some(association),
            _ => None,
        }
    }

    fn stop(&self, kind: NvmeErrorKind) {
        if let Some(association) = self.finish(kind) {
            association.abandon("given up");
        }
    }

    /// The association, when there is one.
    pub(super) async fn live(&self) -> Result<Rc<Association>, NvmeError> {
        loop {
            match &*self.state.borrow() {
                State::Live(association) => return Ok(association.clone()),
                State::Over(error) => return Err(error.clone()),
                State::Reconnecting => {}
            }
            self.changed.notified().await;
        }
    }

    /// Carries out an I/O command, again after a reconnect or a status that allows it. Reads and writes may be repeated:
    /// they give the same result.
    pub(super) async fn io(
        &self,
        step: &'static str,
        sqe: Sqe,
        buffer: Option<IoData<'_>>,
    ) -> Result<Cqe, NvmeError> {
        let mut retries = 0;
        loop {
            let association = self.live().await?;
            let queue = association.next_io();
            let data = match &buffer {
                None => Data::None,
                Some(io) => {
                    let inline = io.outgoing && io.len <= association.in_capsule;
                    Data::Region { region: io.region, at: io.at, len: io.len, inline }
                }
            };
            match queue.submit(sqe, data).await {
                Ok(cqe) if cqe.status().is_success() => return Ok(cqe),
                Ok(cqe) if cqe.status().is_dnr() || retries == MAX_RETRIES => {
                    return queue.who.check(step, cqe);
                }
                Ok(cqe) => {
                    retries += 1;
                    let status: Status = cqe.status();
                    tracing::debug!("{step}: {status}: retry {retries}");
                    self.env.rt.sleep(RETRY_PAUSE).await;
                }
                Err(_) => self.lost(&association),
            }
        }
    }

    /// An association died: commands wait from here on.
    fn lost(&self, association: &Rc<Association>) {
        let mut state = self.state.borrow_mut();
        if matches!(&*state, State::Live(live) if Rc::ptr_eq(live, association)) {
            *state = State::Reconnecting;
            drop(state);
            association.abandon("another queue of the association was lost");
            self.trouble.notify_one();
        }
    }

    async fn supervise(self: Rc<Self>) {
        loop {
            self.trouble.notified().await;
            if self.stopping.get() {
                return;
            }
            let live = match &*self.state.borrow() {
                State::Live(association) => Some(association.clone()),
                _ => None,
            };
            match live {
                Some(association) if association.is_live() => continue,
                Some(association) => self.lost(&association),
                None => {}
            }
            self.reconnect().await;
        }
    }

    async fn reconnect(self: &Rc<Self>) {
        let (rt, limit) = (&self.env.rt, self.options.loss_timeout);
        let (lost_at, mut pause) = (rt.now(), FIRST_PAUSE);
        let mut last = "none was made".to_owned();
        loop {
            if rt.now() - lost_at >= limit {
                self.stop(NvmeErrorKind::GivenUp { after: limit, last });
                return;
            }
            // Some disorder, so that many hosts do not come back in step.
            let jitter = Duration::from_millis(rt.entropy() % (pause.as_millis() as u64 / 4 + 1));
            rt.sleep(pause + jitter).await;
            if self.stopping.get() {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.connect_again().await {
                Ok(()) => return,
                Err(error) if error.is_permanent() => {
                    self.stop(*error.kind);
                    return;
                }
                Err(error) => {
                    tracing::warn!("reconnecting: {error}");
                    last = error.to_string();
                }
            }
        }
    }

    async fn connect_again(self: &Rc<Self>) -> Result<(), NvmeError> {
        let (options, subsystem) = (&self.options, &self.who.subsystem);
        let queues = options.io_queues.max(1);
        let association = Association::connect(&self.env, options, subsystem, queues, &self.trouble).await?;
        if let Err(error) = self.scan(&association).await {
            association.abandon("namespaces could not be read");
            return Err(error);
        }
        if self.stopping.get() {
            association.abandon("given up");
            return Ok(());
        }
        tracing::info!("{}: {} reconnected", self.who.remote, subsystem);
        self.enliven(Rc::new(association));
        Ok(())
    }

    /// Sends Keep Alive at half the timeout, and notices commands without an answer.
    async fn keep_alive(self: Rc<Self>, association: Rc<Association>) {
        let rt = &self.env.rt;
        let timeout = self.options.keep_alive;
        let tick = timeout.unwrap_or(self.options.io_timeout) / 2;
        while association.is_live() && !self.stopping.get() {
            if let Either::Second(()) = select(rt.sleep(tick), self.changed.notified()).await {
                continue;
            }
            // All of them, so that each counts on. The last tick may have been almost over when the command was sent.
            let oldest = association.io.iter().map(|queue| queue.tick()).max().unwrap_or(0);
            if tick * oldest.saturating_sub(1) > self.options.io_timeout {
                let why = format!("a command has no answer within {:?}", self.options.io_timeout);
                association.abandon(&why);
                return;
            }
            if let Some(timeout) = timeout {
                let alive = association.admin.submit(Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), Data::None);
                match rt.timeout(timeout, alive).await {
                    Ok(Ok(cqe)) if cqe.status().is_success() => {}
                    Ok(Ok(cqe)) => association.abandon(&format!("Keep Alive: {}", cqe.status())),
                    Ok(Err(_)) => return,
                    Err(_) => association.abandon(&format!("Keep Alive: no answer within {timeout:?}")),
                }
            }
        }
    }

    /// Holds an asynchronous event request, and looks at the namespaces again when they change.
    async fn listen(self: Rc<Self>, association: Rc<Association>) {
        let wanted = association.id.oaes & features::AEC_NAMESPACE_ATTRIBUTE;
        let set = Sqe::new(AdminOpcode::SET_FEATURES.0, 0);
        let config = Sqe { cdw10: features::ASYNC_EVENT_CONFIG.into(), cdw11: wanted, ..set };
        // After the shutdown was asked for, nvmet logs an error for every command but those of Fabrics. It may be asked for
        // before this runs at all.
        if wanted == 0 || self.stopping.get() {
            return;
        }
        if association.command("Set Features (events)", config, Data::None).await.is_err() {
            return;
        }
        while !self.stopping.get() {
            let event = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
            let Ok(cqe) = association.admin.submit(event, Data::None).await else { return };
            if !cqe.status().is_success() {
                tracing::debug!("asynchronous event request: {}", cqe.status());
                return;
            }
            // Reading the log page that the event names lets the next event through.
            let lid = (cqe.dword0() >> 16) as u8;
            let len = if lid == log::CHANGED_NAMESPACES { IDENTIFY_LEN } else { 512 };
            if association.log_page("reading an event's log page", lid, 0, len).await.is_err() {
                return;
            }
            if let Err(error) = self.scan(&association).await {
                tracing::warn!("{error}");
            }
        }
    }

    /// Reads the active namespaces.
    async fn scan(&self, association: &Association) -> Result<(), NvmeError> {
        let identify =
            |cns, nsid| Sqe { cdw10: identify_cns(cns), ..Sqe::new(AdminOpcode::IDENTIFY.0, nsid) };
        let mut found = BTreeMap::new();
        let list = identify(identify::CNS_ACTIVE_NAMESPACES, 0);
        let list = association.admin_read("Identify (namespace list)", list, IDENTIFY_LEN).await?;
        let ids = list.chunks_exact(4).map(u32::get).take_while(|&nsid| nsid != 0);
        for nsid in ids.take(MAX_NAMESPACES) {
            const STEP: &str = "Identify Namespace";
            let bytes =
                association.admin_read(STEP, identify(identify::CNS_NAMESPACE, nsid), IDENTIFY_LEN).await?;
            let id = IdentifyNamespace::parse(&bytes).map_err(|error| self.who.error(STEP, error))?;
            let descriptors = identify(identify::CNS_NAMESPACE_DESCRIPTORS, nsid);
            let descriptors = association.admin_read(STEP, descriptors, IDENTIFY_LEN).await?;
            match NamespaceInfo::new(nsid, &id, &descriptors, &association.id) {
                Some(info) => drop(found.insert(nsid, info)),
                None => {
                    tracing::warn!("{}: namespace {nsid} has a format that is not supported", self.who.remote)
                }
            }
        }
        *self.namespaces.borrow_mut() = found;
        Ok(())
    }

    pub(super) fn error(&self, step: &'static str, kind: NvmeErrorKind) -> NvmeError {
        self.who.error(step, kind)
    }
}

/// The data of an I/O command.
pub(super) struct IoData<'a> {
    pub(super) region: &'a everywire_verbs::MemoryRegion,
    pub(super) at: usize,
    pub(super) len: u32,
    /// From the host.
    pub(super) outgoing: bool,
}

/// Names of the I/O commands in errors.
pub(super) fn step(opcode: IoOpcode) -> &'static str {
    opcode.name()
}
