//! An initiator: the channels of one nexus, kept logged in. States: live, reconnecting, over (given up or logged out).

mod data;
mod environment;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use everywire_verbs::rt::{Either, Notify, Rt, select};
use everywire_verbs::{Access, Device, MemoryRegion};

use super::InitiatorOptions;
use super::channel::{Answer, Channel};
pub use data::{Completion, IoData, TagCell};
use environment::Environment;

use super::disk::Disk;
use super::error::{SrpError, SrpErrorKind, Who};
use crate::PortId;
use crate::iu::{Function, ResponseCode};

/// First pause before logging in again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Steps, as errors name them.
const COMMAND: &str = "command";
const MANAGEMENT: &str = "task management";

enum State {
    Live(Vec<Rc<Channel>>),
    Reconnecting,
    Over(SrpErrorKind),
}

struct Inner {
    env: Environment,
    state: RefCell<State>,
    changed: Notify,
    /// A channel died.
    trouble: Notify,
    next: Cell<usize>,
    reconnects: Cell<u64>,
}

/// An initiator that is logged in to a target port. Cheap to clone; dropping the last handle gives the channels up,
/// [`Initiator::log_out`] ends them in order.
#[derive(Clone)]
pub struct Initiator(Rc<Handle>);

struct Handle(Rc<Inner>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.over(&SrpErrorKind::LoggedOutHere);
    }
}

impl Initiator {
    /// Logs in to the target port `target` at `address`.
    ///
    /// # Errors
    /// The first login failed.
    pub async fn connect(
        rt: &Rt,
        device: &Device,
        address: SocketAddr,
        target: PortId,
        options: InitiatorOptions,
    ) -> Result<Self, SrpError> {
        let who = Who { local: options.source, remote: address, target };
        let pd = device.alloc_pd().map_err(|error| who.error("allocating a protection domain", error))?;
        let env = Environment { rt: rt.clone(), device: device.clone(), pd, options, who };
        let trouble = Notify::new();
        let channels = env.login(&trouble).await?;
        let inner = Rc::new(Inner {
            env,
            state: RefCell::new(State::Live(channels)),
            changed: Notify::new(),
            trouble,
            next: Cell::new(0),
            reconnects: Cell::new(0),
        });
        rt.spawn(inner.clone().keep());
        rt.spawn(inner.clone().watch());
        Ok(Self(Rc::new(Handle(inner))))
    }

    /// Registered memory for data.
    ///
    /// # Errors
    /// The device has none.
    pub fn buffer(&self, len: usize) -> Result<MemoryRegion, SrpError> {
        let env = &self.0.0.env;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        env.pd.register(len, access).map_err(|error| env.who.error("registering memory", error))
    }

    /// Any CDB, once; any status is an answer.
    ///
    /// # Errors
    /// No status came, because the command was aborted or the target is gone for good.
    pub async fn execute(&self, lun: u64, cdb: &[u8], data: IoData<'_>) -> Result<Completion, SrpError> {
        self.execute_tagged(lun, cdb, data, &TagCell::default()).await
    }

    /// The same; `tag` says when it is sent, and names it to [`Initiator::abort`].
    ///
    /// # Errors
    /// As [`Initiator::execute`].
    pub async fn execute_tagged(
        &self,
        lun: u64,
        cdb: &[u8],
        data: IoData<'_>,
        tag: &TagCell,
    ) -> Result<Completion, SrpError> {
        let inner = &self.0.0;
        // Given up is looked at first: it must not be sent any more then.
        match select(tag.given_up(), inner.execute(lun, cdb, data, tag)).await {
            Either::First(()) => Err(inner.env.who.error(COMMAND, SrpErrorKind::Aborted)),
            Either::Second(end) => end,
        }
    }

    /// ABORT TASK of a command; one that has not been sent ends here.
    ///
    /// # Errors
    /// It has ended, its channel is lost, or the target does not do it.
    pub async fn abort(&self, lun: u64, tag: &TagCell) -> Result<(), SrpError> {
        const STEP: &str = "ABORT TASK";
        let who = &self.0.0.env.who;
        match tag.sent() {
            Some((tag, channel)) => {
                managed(&channel, STEP, channel.manage(lun, Function::AbortTask, tag).await)
            }
            None if tag.give_up() => Ok(()),
            None => Err(who.error(STEP, SrpErrorKind::Argument("there is no such command".to_owned()))),
        }
    }

    /// LOGICAL UNIT RESET, or another function that concerns a whole logical unit. Commands that it ends fail with
    /// [`SrpErrorKind::Aborted`].
    ///
    /// # Errors
    /// The channel is lost, or the target does not do it.
    pub async fn manage(&self, lun: u64, function: Function) -> Result<(), SrpError> {
        let inner = self.0.0.clone();
        // It goes on without its caller: commands of other channels wait for what it finds out.
        let managing = self.0.0.env.rt.spawn(async move { inner.manage(lun, function).await });
        let cancelled = |_| self.error(MANAGEMENT, SrpErrorKind::LoggedOutHere);
        managing.await.map_err(cancelled)?
    }

    /// A logical unit as a disk.
    ///
    /// # Errors
    /// It does not say what it is.
    pub async fn disk(&self, lun: u16) -> Result<Disk, SrpError> {
        Disk::open(self.clone(), lun).await
    }

    /// How often the target was lost and found again.
    pub fn reconnects(&self) -> u64 {
        self.0.0.reconnects.get()
    }

    /// Credits, and requests without an answer, of each channel.
    pub fn credits(&self) -> Vec<(i32, usize)> {
        self.0.0.channels().iter().map(|channel| channel.credits()).collect()
    }

    /// Most bytes of immediate data; 0 if the target takes none.
    pub fn immediate(&self) -> usize {
        self.0.0.channels().first().map_or(0, |channel| channel.immediate())
    }

    /// Addresses and target port, for errors.
    pub(super) fn error(&self, step: &'static str, kind: SrpErrorKind) -> SrpError {
        self.0.0.env.who.error(step, kind)
    }

    /// Waits.
    pub(super) async fn pause(&self, time: Duration) {
        self.0.0.env.rt.sleep(time).await;
    }

    /// Logs out and disconnects; nothing should be outstanding.
    pub async fn log_out(&self) {
        let inner = &self.0.0;
        let channels = inner.channels();
        *inner.state.borrow_mut() = State::Over(SrpErrorKind::LoggedOutHere);
        inner.changed.notify_waiters();
        inner.trouble.notify_one();
        for channel in channels {
            channel.close().await;
        }
    }
}

fn managed(
    channel: &Channel,
    step: &'static str,
    answer: Result<Answer, SrpErrorKind>,
) -> Result<(), SrpError> {
    match answer {
        Ok(Answer::Managed(ResponseCode::COMPLETE)) => Ok(()),
        Ok(Answer::Managed(code)) => Err(channel.who.error(step, SrpErrorKind::Management(code))),
        Ok(_) => Err(channel.who.error(step, SrpErrorKind::Aborted)),
        Err(kind) => Err(channel.who.error(step, kind)),
    }
}

impl Inner {
    async fn execute(
        &self,
        lun: u64,
        cdb: &[u8],
        data: IoData<'_>,
        tag: &TagCell,
    ) -> Result<Completion, SrpError> {
        loop {
            let _waiting = tag.waits();
            let channel = self.channel().await.map_err(|kind| self.env.who.error(COMMAND, kind))?;
            match self.env.send(&channel, lun, cdb, data, tag).await {
                Ok(Answer::Done(response)) => {
                    return Ok(Completion::of(&response, matches!(data, IoData::Out { .. })));
                }
                Ok(Answer::Aborted) => return Err(channel.who.error(COMMAND, SrpErrorKind::Aborted)),
                Ok(Answer::Managed(code)) => {
                    return Err(channel.who.error(COMMAND, SrpErrorKind::Management(code)));
                }
                // The channel is dead: the command is sent again on the next.
                Err(_) if !channel.is_live() => self.trouble.notify_one(),
                Err(kind) => return Err(channel.who.error(COMMAND, kind)),
            }
        }
    }

    async fn manage(&self, lun: u64, function: Function) -> Result<(), SrpError> {
        let channel = self.channel().await.map_err(|kind| self.env.who.error(MANAGEMENT, kind))?;
        let others: Vec<_> =
            self.channels().into_iter().filter(|other| !Rc::ptr_eq(other, &channel)).collect();
        let before: Vec<_> = others.iter().map(|other| other.on_lun(lun)).collect();
        managed(&channel, MANAGEMENT, channel.manage(lun, function, 0).await)?;
        if !matches!(function, Function::AbortTaskSet | Function::ClearTaskSet | Function::LunReset) {
            return Ok(());
        }
        // Nothing orders one channel against another: a command of another one was ended, or came behind the function, or its response
        // is on the way. ABORT TASK on its own channel, behind all of that, settles it.
        for (other, tags) in others.iter().zip(before) {
            for tag in tags {
                if other.on_lun(lun).contains(&tag) && other.is_live() {
                    let _ = other.manage(lun, Function::AbortTask, tag).await;
                }
            }
        }
        Ok(())
    }

    fn channels(&self) -> Vec<Rc<Channel>> {
        match &*self.state.borrow() {
            State::Live(channels) => channels.clone(),
            _ => Vec::new(),
        }
    }

    /// The channel whose turn it is; waits while there is none.
    async fn channel(&self) -> Result<Rc<Channel>, SrpErrorKind> {
        loop {
            match &*self.state.borrow() {
                State::Live(channels) => {
                    let turn = self.next.get();
                    self.next.set(turn.wrapping_add(1));
                    let channel = &channels[turn % channels.len()];
                    if channel.is_live() {
                        return Ok(channel.clone());
                    }
                }
                State::Reconnecting => {}
                State::Over(why) => return Err(why.clone()),
            }
            self.changed.notified().await;
        }
    }

    fn over(&self, why: &SrpErrorKind) {
        let before = std::mem::replace(&mut *self.state.borrow_mut(), State::Over(why.clone()));
        if let State::Live(channels) = before {
            channels.iter().for_each(|channel| channel.fail(why.clone()));
        }
        self.changed.notify_waiters();
        self.trouble.notify_one();
    }

    /// Logs in again whenever a channel dies.
    async fn keep(self: Rc<Self>) {
        loop {
            self.trouble.notified().await;
            let (channels, why) = match &*self.state.borrow() {
                State::Over(_) => return,
                State::Reconnecting => continue,
                State::Live(channels) => {
                    let Some(why) = channels.iter().find_map(|channel| channel.why()) else { continue };
                    (channels.clone(), why)
                }
            };
            *self.state.borrow_mut() = State::Reconnecting;
            let others = SrpErrorKind::Lost(format!("another channel died: {why}"));
            channels.iter().for_each(|channel| channel.fail(others.clone()));
            self.clone().again(why).await;
        }
    }

    async fn again(self: Rc<Self>, why: SrpErrorKind) {
        let (rt, limit) = (self.env.rt.clone(), self.env.options.loss_timeout);
        let (began, mut pause, mut last) = (rt.now(), FIRST_PAUSE, why.to_string());
        loop {
            if matches!(&*self.state.borrow(), State::Over(_)) {
                return;
            }
            if limit.is_some_and(|limit| rt.now() - began >= limit) {
                let after = limit.unwrap_or_default();
                return self.over(&SrpErrorKind::GivenUp { after, last });
            }
            match self.env.login(&self.trouble).await {
                Ok(channels) => {
                    // It may have been given up meanwhile.
                    if matches!(&*self.state.borrow(), State::Over(_)) {
                        channels.iter().for_each(|channel| channel.fail(SrpErrorKind::LoggedOutHere));
                        return;
                    }
                    tracing::info!("{}: logged in again to {}", self.env.who.remote, self.env.who.target);
                    *self.state.borrow_mut() = State::Live(channels);
                    self.reconnects.set(self.reconnects.get() + 1);
                    return self.changed.notify_waiters();
                }
                Err(error) if error.may_retry() => last = error.to_string(),
                Err(error) => return self.over(&error.kind),
            }
            tracing::debug!("{last}");
            rt.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Notices requests without an answer.
    async fn watch(self: Rc<Self>) {
        let (rt, timeout) = (self.env.rt.clone(), self.env.options.io_timeout);
        let tick = timeout / 4;
        loop {
            if let Either::Second(()) = select(rt.sleep(tick), self.changed.notified()).await
                && matches!(&*self.state.borrow(), State::Over(_))
            {
                return;
            }
            if matches!(&*self.state.borrow(), State::Over(_)) {
                return;
            }
            for channel in self.channels() {
                channel.abort_overdue();
                if tick * channel.tick().saturating_sub(1) > timeout {
                    channel.fail(SrpErrorKind::Timeout(timeout));
                }
            }
        }
    }
}
