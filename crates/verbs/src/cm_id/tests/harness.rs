//! Two devices, a wire that can lose what a test wants lost, virtual time, and an executor that polls a future only when
//! its waker was called, so that a lost wake-up is a test that hangs and is caught.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use everywire_wire::cm::{CmMad, CmMessage};
use everywire_wire::{Mtu, Qpn, RocePacket};

use crate::{
    Command, Cq, Datagram, Device, DeviceConfig, GidEntry, Pd, Qp, QpInit, QpType, Route, RouteError,
    Transmit,
};

pub const A: &str = "192.0.2.1";
pub const B: &str = "192.0.2.2";

pub fn addr(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A datagram on the wire.
struct InFlight {
    src: SocketAddr,
    dst: IpAddr,
    ip_id: u16,
    bytes: Vec<u8>,
}

/// Decides, by a packet's number and its bytes, whether it is lost.
type Loss = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// Everything of a test.
pub struct World {
    pub a: Device,
    pub b: Device,
    pub now: Instant,
    /// The MTU that routes have; `Err` for no route.
    pub route: Result<usize, RouteError>,
    pub lose: Loss,
    /// Whether commands are answered.
    pub answers: bool,
    /// Names of the MADs sent, in order; lost ones in brackets.
    pub log: Vec<String>,
    /// The interface index by which each device sees link-local addresses.
    pub scopes: Vec<(Device, u32)>,
    sent: usize,
    wire: VecDeque<InFlight>,
    transmit: Transmit,
}

/// What one side of a test makes its queue pairs with.
pub struct Kit {
    pub pd: Pd,
    pub cq: Cq,
}

impl Kit {
    pub fn new(device: &Device) -> Kit {
        Kit { pd: device.alloc_pd().unwrap(), cq: device.create_cq(256).unwrap() }
    }

    pub fn qp(&self) -> Qp {
        self.pd.create_qp(&QpInit::new(QpType::Rc, &self.cq)).unwrap()
    }
}

pub fn config(ip: &str, seed: u64) -> DeviceConfig {
    DeviceConfig { seed, ..DeviceConfig::roce_v2(ip.parse().unwrap()) }
}

impl World {
    pub fn new() -> World {
        World::with(config(A, 1), config(B, 2))
    }

    pub fn with(a: DeviceConfig, b: DeviceConfig) -> World {
        World {
            a: Device::new(a),
            b: Device::new(b),
            now: Instant::now(),
            route: Ok(1500),
            lose: Box::new(|_, _| false),
            answers: true,
            log: Vec::new(),
            scopes: Vec::new(),
            sent: 0,
            wire: VecDeque::new(),
            transmit: Transmit::default(),
        }
    }

    /// Drives both devices and carries packets until nothing happens any more at this time.
    pub fn drain(&mut self) {
        loop {
            let mut busy = false;
            for device in [self.a.clone(), self.b.clone()] {
                busy |= self.drain_device(&device);
            }
            while let Some(packet) = self.wire.pop_front() {
                busy = true;
                self.now += Duration::from_micros(5);
                let to = [&self.a, &self.b].into_iter().find(|d| d.gids().iter().any(|g| g.ip == packet.dst));
                let Some(to) = to else { continue };
                let scope = self.scopes.iter().find(|(device, _)| device.same(to)).map(|&(_, scope)| scope);
                let src = match (packet.src, scope) {
                    (SocketAddr::V6(v6), Some(scope)) => {
                        SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
                    }
                    (src, _) => src,
                };
                let datagram = Datagram {
                    src,
                    dst: packet.dst,
                    tos: 0,
                    ttl: 64,
                    ip_id: Some(packet.ip_id),
                    bytes: &packet.bytes,
                };
                to.drive().handle_datagram(self.now, datagram);
            }
            if !busy {
                break;
            }
        }
    }

    fn drain_device(&mut self, device: &Device) -> bool {
        let mut busy = false;
        let mut drive = device.drive();
        while drive.poll_transmit(self.now, &mut self.transmit) {
            busy = true;
            let t = &self.transmit;
            for (index, bytes) in t.segments().enumerate() {
                let lost = (self.lose)(self.sent, bytes);
                self.sent += 1;
                if let Some(name) = mad_name(bytes) {
                    self.log.push(if lost { format!("[{name}]") } else { name });
                }
                if !lost {
                    self.wire.push_back(InFlight {
                        src: SocketAddr::new(t.src, t.src_port),
                        dst: t.dst.ip(),
                        ip_id: index as u16,
                        bytes: bytes.to_vec(),
                    });
                }
            }
        }
        while let Some(command) = drive.poll_command() {
            busy = true;
            if let Command::ResolveRoute { token, dst, scope_id, src } = command
                && self.answers
            {
                let ours = device.gids().iter().find(|gid| gid.ip.is_ipv4() == dst.is_ipv4());
                let src = src.unwrap_or(ours.unwrap().ip);
                let answer = self.route.clone().map(|mtu| Route { src, scope_id, mtu });
                drive.resolved(self.now, token, answer);
            }
        }
        busy
    }

    /// Lets the earliest timer run; false when none is armed.
    pub fn tick(&mut self) -> bool {
        self.drain();
        let next = [&self.a, &self.b].into_iter().filter_map(|device| device.drive().poll_timeout()).min();
        let Some(at) = next else { return false };
        self.now = self.now.max(at);
        for device in [&self.a, &self.b] {
            device.drive().handle_timeout(self.now);
        }
        self.drain();
        true
    }

    /// Runs until no timer is armed.
    pub fn run_out(&mut self) {
        self.drain();
        while self.tick() {}
    }

    /// Runs a future to its end, with time passing as it must.
    pub fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        let slot = Rc::new(RefCell::new(None));
        let out = slot.clone();
        self.run_all(vec![Box::pin(async move { *out.borrow_mut() = Some(future.await) })]);
        slot.take().unwrap()
    }

    /// Runs two futures to their ends.
    pub fn join<T: 'static, U: 'static>(
        &mut self,
        one: impl Future<Output = T> + 'static,
        two: impl Future<Output = U> + 'static,
    ) -> (T, U) {
        let (first, second) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
        let (out1, out2) = (first.clone(), second.clone());
        self.run_all(vec![
            Box::pin(async move { *out1.borrow_mut() = Some(one.await) }),
            Box::pin(async move { *out2.borrow_mut() = Some(two.await) }),
        ]);
        (first.take().unwrap(), second.take().unwrap())
    }

    fn run_all(&mut self, futures: Vec<Pin<Box<dyn Future<Output = ()>>>>) {
        let mut tasks: Vec<_> =
            futures.into_iter().map(|f| (Some(f), Arc::new(Flag(AtomicBool::new(true))))).collect();
        let deadline = self.now + Duration::from_secs(3600);
        loop {
            let mut polled = false;
            for (future, flag) in &mut tasks {
                if !flag.0.swap(false, Ordering::SeqCst) {
                    continue;
                }
                polled = true;
                let waker = Waker::from(flag.clone());
                if let Some(running) = future
                    && running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
                {
                    *future = None;
                }
            }
            if tasks.iter().all(|(future, _)| future.is_none()) {
                return self.drain();
            }
            self.drain();
            if !polled && !tasks.iter().any(|(_, flag)| flag.0.load(Ordering::SeqCst)) {
                assert!(
                    self.tick() && self.now < deadline,
                    "nothing will ever wake the test: {:?}",
                    self.log
                );
            }
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Polls once with a waker that does nothing.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The MAD in a packet to QP1.
pub fn mad(bytes: &[u8]) -> Option<CmMad> {
    let packet = RocePacket::parse(bytes).ok()?;
    if packet.bth.dest_qp != Qpn::GSI {
        return None;
    }
    CmMad::parse(packet.payload.try_into().ok()?).ok()
}

fn mad_name(bytes: &[u8]) -> Option<String> {
    Some(match mad(bytes)?.message {
        CmMessage::Rej(rej) => format!("REJ {}", rej.reason.code()),
        message => message.name().to_owned(),
    })
}

/// A device with a link-local address on an interface that has a name.
pub fn link_local(ip: &str, scope_id: u32, interface: &str, seed: u64) -> DeviceConfig {
    let ip: IpAddr = ip.parse().unwrap();
    let gid = GidEntry { ip, scope_id, interface: Some(interface.to_owned()), ty: Default::default() };
    DeviceConfig { seed, gids: vec![gid], active_mtu: Mtu::M4096, ..DeviceConfig::default() }
}
