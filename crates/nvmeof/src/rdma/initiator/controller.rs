//! A connected controller, kept connected. States: live, reconnecting, over (given up or disconnected).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use everywire_verbs::Device;
use everywire_verbs::rt::{Either, Notify, Rt, select};

use super::association::Association;
use super::error::{NvmeError, NvmeErrorKind, Who};
use super::namespace::{Namespace, NamespaceInfo};
use super::queue::Data;
use super::{Environment, HostIdentity, InitiatorOptions};
use crate::pdu::identify::IdentifyController;
use crate::pdu::{Cqe, IoOpcode, Sqe, Status};
use crate::{Nqn, Scoped};

/// First pause before connecting again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Times a command is sent again when its status allows it.
const MAX_RETRIES: u32 = 5;
/// Pause before such a retry.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

enum State {
    Live(Rc<Association>),
    Reconnecting,
    Over(NvmeError),
}

pub(super) struct Inner {
    pub(super) env: Rc<Environment>,
    pub(super) options: InitiatorOptions,
    pub(super) who: Who,
    state: RefCell<State>,
    /// State changes.
    pub(super) changed: Notify,
    /// A queue died, or the user is done.
    trouble: Notify,
    pub(super) stopping: Cell<bool>,
    reconnects: Cell<u64>,
    pub(super) namespaces: RefCell<BTreeMap<u32, NamespaceInfo>>,
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
            reconnects: Cell::new(0),
            namespaces: RefCell::default(),
        });
        let controller = Self(Rc::new(Handle(inner.clone())));
        if let Err(error) = inner.scan(&association).await {
            association.abandon("namespaces could not be read");
            return Err(error);
        }
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

    /// How often the controller was lost and came back.
    pub fn reconnects(&self) -> u64 {
        self.0.0.reconnects.get()
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
        association.is_made();
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
            let (address, limit) = (self.address(), self.options.loss_timeout);
            let (subsystem, why) = (&self.who.subsystem, association.why().unwrap_or_default());
            tracing::warn!(
                "{address}: {subsystem}: connection lost: {why}; reconnecting for at most {limit:?}"
            );
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
        let end = lost_at + limit;
        let mut last = "none was made".to_owned();
        let mut port = self.env.device.port_comes_up();
        loop {
            if rt.now() >= end {
                self.stop(NvmeErrorKind::GivenUp { after: limit, last });
                return;
            }
            // Some disorder, so that many hosts do not come back in step.
            let jitter = Duration::from_millis(rt.entropy() % (pause.as_millis() as u64 / 4 + 1));
            // What an attempt has missed while the port was down is there now: no more waiting for it.
            let came_up = select(&mut port, rt.sleep_until((rt.now() + pause + jitter).min(end))).await;
            if self.stopping.get() {
                return;
            }
            pause = match came_up {
                Either::First(()) => FIRST_PAUSE,
                Either::Second(()) => (pause * 2).min(LONGEST_PAUSE),
            };
            // A task of its own, which takes apart what it has made if the time is over before it is.
            let attempt = rt.spawn(self.clone().connect_again());
            let outcome = match select(attempt, rt.sleep_until(end)).await {
                Either::First(Ok(outcome)) => outcome,
                Either::First(Err(_)) => return,
                Either::Second(()) => continue,
            };
            match outcome {
                Ok(()) => {
                    self.came_back(rt.now() - lost_at);
                    return;
                }
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

    fn came_back(&self, after: Duration) {
        if !self.stopping.get() {
            self.reconnects.set(self.reconnects.get() + 1);
            tracing::warn!("{}: {} reconnected after {after:.1?}", self.address(), self.who.subsystem);
        }
    }

    fn address(&self) -> Scoped<'_> {
        Scoped(self.who.remote, self.who.interface.as_deref())
    }

    async fn connect_again(self: Rc<Self>) -> Result<(), NvmeError> {
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
        self.enliven(Rc::new(association));
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
