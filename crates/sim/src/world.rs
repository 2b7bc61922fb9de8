//! A world: hosts (each a verbs device on a port of a simulated network) and the loop that drives them in virtual time.
//!
//! The loop polls runnable tasks, drains every device that has something to say, and hands over what has arrived; when nothing is left to
//! do at this instant it moves time to the earliest of the network's next event, any device's timeout and any task's timer. A
//! host that is killed loses its device, its tasks and all memory at once; restarted, it comes back with a new seed. One seed gives
//! one run, to the last bit of every frame: [`World::digest`] is the proof.

mod config;
mod faults;
mod infiniband;

use std::cell::RefCell;
use std::future::Future;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use everywire_fabric::clock::SimTime;
use everywire_fabric::ethernet::switch::SwitchConfig;
use everywire_fabric::network::{LinkId, Network, Node, SwitchId};
use everywire_fabric::pcapng;
use everywire_verbs::Device;
use everywire_verbs::rt::Rt;

use crate::capture::Capture;
use crate::digest::Digest;
use crate::executor::{Executor, Group};
use crate::host::Host;
use crate::ib::{IbFabric, News};
use crate::nic::NicCounters;

pub use config::{HostConfig, Stalled};

/// How long a frame takes from a host to itself.
pub const LOOPBACK_DELAY: Duration = Duration::from_micros(1);
/// The most rounds of the loop at one instant; beyond it devices answer each other without time passing.
pub const MAX_ROUNDS_AT_ONE_INSTANT: u64 = 1_000_000;

/// A host of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub usize);

struct Inner {
    seed: u64,
    network: Network,
    switch: SwitchId,
    /// Once there is a host with an InfiniBand port.
    ib: Option<Box<IbFabric>>,
    hosts: Vec<Host>,
    /// Frames from a host to itself, in the order of their arrival.
    loopback: std::collections::VecDeque<(SimTime, HostId, Vec<u8>)>,
    digest: Digest,
    capture: Option<Capture>,
    rounds: u64,
}

/// The world; clones are handles on the same one. It ends with the last of them, and so do all its tasks; a task that holds one itself
/// must be ended first.
#[derive(Clone)]
pub struct World {
    inner: Rc<RefCell<Inner>>,
    executor: Executor,
    _shutdown: Rc<Shutdown>,
}

/// Tasks hold handles on the executor that holds them: the last handle on the world unties the knot.
struct Shutdown(Executor);

impl Drop for Shutdown {
    fn drop(&mut self) {
        self.0.cancel_all();
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("executor", &self.executor).finish_non_exhaustive()
    }
}

impl World {
    /// A world with one switch and no hosts.
    pub fn new(seed: u64) -> Self {
        // The base is only an origin: nothing depends on its value.
        let base = Instant::now();
        let mut network = Network::new(base, seed ^ 0x6e65_7477_6f72_6b00);
        let switch = network.add_switch(SwitchConfig::default());
        let inner = Inner {
            seed,
            network,
            switch,
            ib: None,
            hosts: Vec::new(),
            loopback: std::collections::VecDeque::new(),
            digest: Digest::default(),
            capture: None,
            rounds: 0,
        };
        let executor = Executor::new(base, seed);
        let shutdown = Rc::new(Shutdown(executor.clone()));
        World { inner: Rc::new(RefCell::new(inner)), executor, _shutdown: shutdown }
    }

    /// Adds a host on a port of the switch and starts it.
    pub fn add_host(&self, config: HostConfig) -> HostId {
        let inner = &mut *self.inner.borrow_mut();
        let id = HostId(inner.hosts.len());
        let port = inner.network.add_host();
        let link = inner
            .network
            .connect(Node::Host(port), Node::Switch(inner.switch), config.link)
            .expect("the port and the switch were made a moment ago");
        let host = Host::new(id, port, link, config, inner.seed);
        if let Some(capture) = &mut inner.capture {
            capture.add(&host.config.name, host.is_infiniband());
        }
        if host.is_infiniband() {
            let now = self.executor.now();
            inner.infiniband(now).attach(id, &host.config.name);
        }
        inner.hosts.push(host);
        id
    }

    /// The device of a host.
    ///
    /// # Panics
    /// When the host is down.
    pub fn device(&self, host: HostId) -> Device {
        self.inner.borrow().hosts[host.0].device().expect("the host is up").clone()
    }

    /// Whether a host runs.
    pub fn is_up(&self, host: HostId) -> bool {
        self.inner.borrow().hosts[host.0].device().is_some()
    }

    /// The runtime handle of a host's present life: its tasks end when the host is killed.
    pub fn rt(&self, host: HostId) -> Rt {
        let group = self.inner.borrow().hosts[host.0].group();
        self.executor.rt(group)
    }

    /// A runtime handle that belongs to no host.
    pub fn rt_outside(&self) -> Rt {
        self.executor.rt(Group(0))
    }

    /// Ends a host as a power cut does: its device, tasks and memory are gone, and it says nothing to anybody.
    pub fn kill(&self, host: HostId) {
        let (group, device) = {
            let inner = &mut *self.inner.borrow_mut();
            inner.digest.number(0x6b69_6c6c ^ (host.0 as u64) << 32);
            inner.loopback.retain(|(_, to, _)| *to != host);
            if let Some(ib) = &mut inner.ib {
                ib.forget(host);
            }
            let host = &mut inner.hosts[host.0];
            (host.group(), host.power_off())
        };
        // Destructors may call back into the executor and the world.
        drop(device);
        self.executor.cancel(group);
    }

    /// Starts a killed host again, with a new seed.
    pub fn restart(&self, host: HostId) {
        let inner = &mut *self.inner.borrow_mut();
        inner.digest.number(0x7265_7374 ^ (host.0 as u64) << 32);
        let id = host;
        let host = &mut inner.hosts[id.0];
        host.power_on(inner.seed);
        if let Some(values) = inner.ib.as_mut().and_then(|ib| ib.values(id)) {
            host.hear(self.executor.now(), News::Port(id, values));
        }
    }

    /// The link of a host.
    pub fn link(&self, host: HostId) -> LinkId {
        self.inner.borrow().hosts[host.0].link
    }

    /// What a host's interface counted in all its lives.
    pub fn nic_counters(&self, host: HostId) -> NicCounters {
        self.inner.borrow().hosts[host.0].nic.counters
    }

    /// Looks at the network.
    pub fn with_network<T>(&self, look: impl FnOnce(&mut Network) -> T) -> T {
        look(&mut self.inner.borrow_mut().network)
    }

    /// Writes every frame from now on to `out` as pcapng, one interface a host.
    pub fn capture(&self, out: Box<dyn Write>) -> std::io::Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let mut capture = Capture::new(out)?;
        for host in &inner.hosts {
            capture.add(&host.config.name, host.is_infiniband());
        }
        inner.capture = Some(capture);
        Ok(())
    }

    /// Ends the capture; the first error that writing it met, if any.
    pub fn end_capture(&self) -> std::io::Result<()> {
        match self.inner.borrow_mut().capture.take() {
            Some(capture) => capture.finish(),
            None => Ok(()),
        }
    }

    /// The digest of the run so far.
    pub fn digest(&self) -> u64 {
        self.inner.borrow().digest.value()
    }

    /// Adds something of the caller's own to the digest.
    pub fn note(&self, n: u64) {
        self.inner.borrow_mut().digest.number(n);
    }

    /// The present instant.
    pub fn now(&self) -> Instant {
        self.executor.now()
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.executor.elapsed().as_nanos())
    }

    /// Runs for `time`, whether or not anything happens.
    pub fn run_for(&self, time: Duration) {
        let until = self.executor.elapsed().after(time);
        while self.step(until) {}
    }

    /// Runs until nothing is left to happen, or `limit` is over; whether nothing is left.
    pub fn run_until_idle(&self, limit: Duration) -> bool {
        let until = self.executor.elapsed().after(limit);
        while self.step_busy(until) {}
        self.next_event().is_none()
    }

    /// Runs until `done` says so, asked after each step, or `limit` is over; what `done` said last.
    pub fn run_until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let until = self.executor.elapsed().after(limit);
        loop {
            if done() {
                return true;
            }
            if !self.step_busy(until) {
                return done();
            }
        }
    }

    /// Runs a future to its end, outside any host.
    pub fn block_on<T: 'static>(
        &self,
        limit: Duration,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Stalled> {
        let slot: Rc<RefCell<Option<T>>> = Rc::default();
        let result = slot.clone();
        let handle = self.rt_outside().spawn(async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        });
        self.run_until(limit, || handle.is_finished());
        if let Some(value) = slot.borrow_mut().take() {
            return Ok(value);
        }
        let idle = self.next_event().is_none();
        handle.abort();
        self.executor.run_ready();
        Err(if idle { Stalled::Idle { after: self.elapsed() } } else { Stalled::TimedOut { limit } })
    }

    /// One step towards `until`; false once that is reached with nothing left to do there.
    fn step(&self, until: SimTime) -> bool {
        if self.work_at_this_instant() {
            return true;
        }
        if self.executor.elapsed() >= until {
            return false;
        }
        self.advance(self.next_event().map_or(until, |next| next.min(until)));
        true
    }

    /// The same, but false as well when nothing is left to happen at all: time then stands still.
    fn step_busy(&self, until: SimTime) -> bool {
        if self.work_at_this_instant() {
            return true;
        }
        match self.next_event() {
            Some(next) if next <= until => {
                self.advance(next);
                true
            }
            Some(_) => {
                self.advance(until);
                false
            }
            None => false,
        }
    }

    fn advance(&self, to: SimTime) {
        self.inner.borrow_mut().rounds = 0;
        self.executor.advance_to(to);
    }

    fn next_event(&self) -> Option<SimTime> {
        let inner = self.inner.borrow();
        let sim_time = |at: Instant| self.executor.sim_time(at);
        let timeouts = inner.hosts.iter().filter_map(|host| host.timeout).map(sim_time);
        inner
            .network
            .poll_timeout()
            .map(sim_time)
            .into_iter()
            .chain(inner.ib.as_ref().and_then(|ib| ib.poll_timeout()).map(sim_time))
            .chain(inner.loopback.front().map(|&(at, ..)| at))
            .chain(self.executor.next_timer())
            .chain(timeouts)
            .min()
    }

    /// Does what can be done without time passing; false when there was nothing.
    ///
    /// # Panics
    /// When that goes on for [`MAX_ROUNDS_AT_ONE_INSTANT`] rounds.
    fn work_at_this_instant(&self) -> bool {
        let ran = self.executor.run_ready();
        let now = self.executor.now();
        let inner = &mut *self.inner.borrow_mut();
        inner.rounds += 1;
        assert!(
            inner.rounds < MAX_ROUNDS_AT_ONE_INSTANT,
            "devices spin at {:?}: time cannot advance",
            self.executor.elapsed()
        );
        let moved = inner.fire_timeouts(now) | inner.deliver(now, self.executor.elapsed());
        let drained = inner.drain(now, self.executor.elapsed());
        ran | moved | drained | self.executor.has_ready()
    }
}

impl Inner {
    fn fire_timeouts(&mut self, now: Instant) -> bool {
        let mut any = false;
        for host in &mut self.hosts {
            if host.timeout.is_some_and(|at| at <= now) {
                host.fire_timeout(now);
                any = true;
            }
        }
        any
    }

    /// Hands every frame that has arrived to its host.
    fn deliver(&mut self, now: Instant, elapsed: SimTime) -> bool {
        let mut any = false;
        while self.loopback.front().is_some_and(|&(at, ..)| at <= elapsed) {
            let Some((_, to, frame)) = self.loopback.pop_front() else { break };
            self.arrived(now, elapsed, to, &frame);
            any = true;
        }
        while let Some(delivery) = self.network.poll(now) {
            // Ports are made together with hosts, so their numbers agree.
            self.arrived(now, elapsed, HostId(delivery.port.0), &delivery.frame);
            any = true;
        }
        while let Some(news) = self.ib.as_mut().and_then(|ib| ib.poll(now)) {
            self.heard(now, elapsed, news);
            any = true;
        }
        any
    }

    fn arrived(&mut self, now: Instant, elapsed: SimTime, to: HostId, frame: &[u8]) {
        self.digest.number(elapsed.as_nanos());
        self.digest.number(to.0 as u64);
        self.digest.bytes(frame);
        if let Some(capture) = &mut self.capture {
            capture.frame(to.0, elapsed, pcapng::Direction::Inbound, frame);
        }
        self.hosts[to.0].receive(now, frame);
    }

    /// Drains every device that was touched since the last time.
    fn drain(&mut self, now: Instant, elapsed: SimTime) -> bool {
        let mut any = false;
        let neighbours: Vec<_> = self.hosts.iter().map(Host::neighbour_entry).collect();
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if !host.take_dirty() {
                continue;
            }
            any = true;
            if host.is_infiniband() {
                self.drain_infiniband(index, now, elapsed);
                continue;
            }
            let sent = host.drain(now, &neighbours);
            let port = host.port;
            for outgoing in sent {
                let frame = match outgoing {
                    crate::nic::Outgoing::Loopback(frame) => {
                        self.record_sent(index, elapsed, &frame);
                        self.loopback.push_back((elapsed.after(LOOPBACK_DELAY), HostId(index), frame));
                        continue;
                    }
                    crate::nic::Outgoing::Wire(frame) => frame,
                };
                self.record_sent(index, elapsed, &frame);
                self.network.send_frame(now, port, frame);
            }
        }
        any
    }

    fn record_sent(&mut self, host: usize, elapsed: SimTime, frame: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.frame(host, elapsed, pcapng::Direction::Outbound, frame);
        }
    }
}

#[cfg(test)]
mod tests;
