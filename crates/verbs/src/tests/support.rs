//! Devices joined in memory and driven by hand: what the tests of this crate stand on.
//!
//! The [`Net`] is a driver like any other. It moves datagrams between its devices in order, answers route requests, and
//! keeps its own time, which only moves when told to. A filter sees every datagram and may drop, change or hold it.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use everywire_transport::ib::{Path, QpAttr, QpState, QpType};
use everywire_wire::{Mtu, Psn, QKey};

use crate::*;

/// IP MTU of every route.
pub(crate) const IP_MTU: usize = 9000;

/// Longer than acknowledgements are held back, shorter than any retry.
pub(crate) const SOON: Duration = Duration::from_millis(1);

/// One datagram under way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) src: SocketAddr,
    pub(crate) dst: IpAddr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) ip_id: u16,
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    /// The datagram as a driver on a UDP socket hands it over, which does not see the Identification.
    pub(crate) fn datagram(&self) -> Datagram<'_> {
        let Packet { src, dst, tos, ttl, ref bytes, .. } = *self;
        Datagram { src, dst, tos, ttl, ip_id: None, bytes }
    }

    /// The datagram as a raw driver hands it over.
    pub(crate) fn raw_datagram(&self) -> Datagram<'_> {
        Datagram { ip_id: Some(self.ip_id), ..self.datagram() }
    }
}

/// What a filter wants done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Drop,
}

type Filter = Box<dyn FnMut(&mut Packet) -> Verdict>;

/// Devices and what is under way between them.
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) devices: Vec<Device>,
    pub(crate) groups: Vec<HashSet<IpAddr>>,
    pub(crate) wire: VecDeque<Packet>,
    /// Packets handed to devices so far.
    pub(crate) delivered: u64,
    filter: Filter,
    transmit: Transmit,
}

impl Net {
    /// Two devices, 10.0.0.1 and 10.0.0.2.
    pub(crate) fn pair() -> Net {
        Net::of(2)
    }

    /// `n` devices at 10.0.0.1 and on.
    pub(crate) fn of(n: u8) -> Net {
        let mut net = Net::empty();
        for host in 1..=n {
            let config = DeviceConfig { seed: host.into(), ..DeviceConfig::roce_v2([10, 0, 0, host].into()) };
            net.add(config);
        }
        net
    }

    /// No device yet.
    pub(crate) fn empty() -> Net {
        Net {
            now: Instant::now(),
            devices: Vec::new(),
            groups: Vec::new(),
            wire: VecDeque::new(),
            delivered: 0,
            filter: Box::new(|_| Verdict::Pass),
            transmit: Transmit::default(),
        }
    }

    pub(crate) fn add(&mut self, config: DeviceConfig) -> Device {
        let device = Device::new(config);
        self.devices.push(device.clone());
        self.groups.push(HashSet::new());
        device
    }

    /// Shows every datagram to `filter` before it is delivered.
    pub(crate) fn filter(&mut self, filter: impl FnMut(&mut Packet) -> Verdict + 'static) {
        self.filter = Box::new(filter);
    }

    /// Lets every device say what it has to say; true if anything came.
    pub(crate) fn drain(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.devices.len() {
            let device = self.devices[index].clone();
            let mut drive = device.drive();
            while drive.poll_transmit(self.now, &mut self.transmit) {
                any = true;
                push_segments(&self.transmit, &mut self.wire);
            }
            while let Some(command) = drive.poll_command() {
                any = true;
                match command {
                    Command::ResolveRoute { token, dst, scope_id, src } => {
                        let route = self.route(&device, dst, scope_id, src);
                        drive.resolved(self.now, token, route);
                    }
                    Command::JoinGroup { group, .. } => drop(self.groups[index].insert(group)),
                    Command::LeaveGroup { group, .. } => drop(self.groups[index].remove(&group)),
                    _ => {}
                }
            }
        }
        any
    }

    fn route(
        &self,
        device: &Device,
        dst: IpAddr,
        scope_id: u32,
        src: Option<IpAddr>,
    ) -> Result<Route, RouteError> {
        if !self.devices.iter().any(|device| device.gids().iter().any(|gid| gid.ip == dst)) {
            return Err(RouteError::NoRoute);
        }
        let same = |gid: &&GidEntry| gid.ip.is_ipv4() == dst.is_ipv4();
        let src = src.or(device.gids().iter().find(same).map(|gid| gid.ip));
        src.map(|src| Route { src, scope_id, mtu: IP_MTU }).ok_or(RouteError::Family)
    }

    /// Delivers one datagram, if one is under way.
    pub(crate) fn deliver_one(&mut self) -> bool {
        let Some(mut packet) = self.wire.pop_front() else { return false };
        if (self.filter)(&mut packet) == Verdict::Drop {
            return true;
        }
        for (device, groups) in self.devices.iter().zip(&self.groups) {
            if groups.contains(&packet.dst) || device.gids().iter().any(|gid| gid.ip == packet.dst) {
                self.delivered += 1;
                let hidden = self.delivered.is_multiple_of(2);
                let datagram = if hidden { packet.datagram() } else { packet.raw_datagram() };
                device.drive().handle_datagram(self.now, datagram);
            }
        }
        true
    }

    /// Runs until nothing is under way and nobody has anything to send, acknowledgements that wait for company included:
    /// time moves on by at most [`SOON`].
    pub(crate) fn settle(&mut self) {
        let until = self.now + SOON;
        self.run_now();
        while self.next_deadline(until) {}
    }

    /// The same with time standing still.
    pub(crate) fn run_now(&mut self) {
        loop {
            let moved = self.drain();
            let mut delivered = false;
            while self.deliver_one() {
                delivered = true;
            }
            if !moved && !delivered {
                return;
            }
        }
    }

    /// The earliest deadline of any device.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.devices.iter().filter_map(|device| device.drive().poll_timeout()).min()
    }

    /// Moves time on to the next deadline and lets it take effect; false if there is none up to `until`.
    pub(crate) fn next_deadline(&mut self, until: Instant) -> bool {
        let Some(deadline) = self.deadline().filter(|deadline| *deadline <= until) else { return false };
        self.now = self.now.max(deadline);
        for device in &self.devices {
            device.drive().handle_timeout(self.now);
        }
        self.run_now();
        true
    }

    /// Lets `duration` pass, with everything that happens in it.
    pub(crate) fn run_for(&mut self, duration: Duration) {
        let until = self.now + duration;
        self.run_now();
        while self.next_deadline(until) {}
        self.now = until;
    }

    /// Runs the net until `future` is ready; time moves on when nothing else does. Panics if it never is.
    pub(crate) fn block_on<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let waker = FlagWaker::new();
        let until = self.now + Duration::from_secs(3600);
        loop {
            if waker.take()
                && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker.waker()))
            {
                return value;
            }
            self.run_now();
            if !waker.is_set() && !self.next_deadline(until) && !waker.is_set() {
                panic!("the future waits for something that never comes");
            }
        }
    }
}

fn push_segments(transmit: &Transmit, wire: &mut VecDeque<Packet>) {
    for (index, segment) in transmit.segments().enumerate() {
        wire.push_back(Packet {
            src: SocketAddr::new(transmit.src, transmit.src_port),
            dst: transmit.dst.ip(),
            tos: transmit.traffic_class,
            ttl: transmit.hop_limit,
            ip_id: index as u16,
            bytes: segment.to_vec(),
        });
    }
}

/// A waker that notes it was called. Set at first, so that the first poll happens.
pub(crate) struct FlagWaker(AtomicBool);

impl Wake for FlagWaker {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl FlagWaker {
    pub(crate) fn new() -> Arc<FlagWaker> {
        Arc::new(FlagWaker(AtomicBool::new(true)))
    }
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Counts kicks; `drive_inline` runs what it was given.
#[derive(Default)]
pub(crate) struct Kicks(pub(crate) AtomicU64);

impl Progress for Kicks {
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn drive_inline(&self) -> bool {
        false
    }
}

/// Everything peers may do.
pub(crate) fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::MW_BIND
}

/// What one side of a test usually has.
pub(crate) struct Side {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: MemoryRegion,
}

impl Side {
    pub(crate) fn new(device: &Device, ty: QpType) -> Side {
        Side::with(device, |_| {}, ty)
    }

    pub(crate) fn with(device: &Device, change: impl FnOnce(&mut QpInit<'_>), ty: QpType) -> Side {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let mut init = QpInit::new(ty, &cq);
        init.sq_sig_all = true;
        change(&mut init);
        let qp = pd.create_qp(&init).unwrap();
        let mr = pd.register(1 << 20, all_access()).unwrap();
        Side { pd, cq, qp, mr }
    }

    /// Everything that has completed.
    pub(crate) fn completions(&self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.cq.poll(&mut out, usize::MAX).unwrap();
        out
    }

    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.mr.write_at(offset, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.mr.read_vec(offset, len).unwrap()
    }
}

pub(crate) const QKEY: QKey = QKey(0x1111_1111);

/// Attributes that take a connected queue pair from RESET to RTS, step by step.
pub(crate) fn rc_steps(src: IpAddr, dst: IpAddr, dest_qp: Qpn, connected: QpType) -> [QpAttr; 3] {
    let rc = connected == QpType::Rc;
    let path = Path::new(src, dst, DEFAULT_SOURCE_PORT);
    [
        QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(all_access()),
            ..QpAttr::to(QpState::Init)
        },
        QpAttr {
            path: Some(path),
            path_mtu: Some(Mtu::M1024),
            dest_qp: Some(dest_qp),
            rq_psn: Some(Psn::new(0xff_fffe)),
            max_dest_rd_atomic: rc.then_some(16),
            min_rnr_timer: rc.then_some(1),
            ..QpAttr::to(QpState::Rtr)
        },
        QpAttr {
            sq_psn: Some(Psn::new(0xff_fffe)),
            timeout: rc.then_some(14),
            retry_cnt: rc.then_some(7),
            rnr_retry: rc.then_some(7),
            max_rd_atomic: rc.then_some(16),
            ..QpAttr::to(QpState::Rts)
        },
    ]
}

fn first_ip(device: &Device) -> IpAddr {
    device.gids()[0].ip
}

/// Connects two queue pairs without a connection manager.
pub(crate) fn connect(a: &Qp, b: &Qp) {
    let itself = a.qpn() == b.qpn() && a.device().same(b.device());
    for (one, other) in [(a, b), (b, a)].into_iter().take(if itself { 1 } else { 2 }) {
        let steps = rc_steps(first_ip(one.device()), first_ip(other.device()), other.qpn(), one.ty());
        for attr in &steps[usize::from(one.state() == QpState::Init)..] {
            one.modify(attr).unwrap();
        }
    }
}

/// Takes a datagram queue pair to RTS.
pub(crate) fn open_ud(qp: &Qp) {
    let init = QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
    let rts = QpAttr { sq_psn: Some(Psn::new(5)), ..QpAttr::to(QpState::Rts) };
    for attr in [init, QpAttr::to(QpState::Rtr), rts] {
        qp.modify(&attr).unwrap();
    }
}

/// Two connected sides on two devices.
pub(crate) fn connected(ty: QpType) -> (Net, Side, Side) {
    let net = Net::pair();
    let a = Side::new(&net.devices[0], ty);
    let b = Side::new(&net.devices[1], ty);
    connect(&a.qp, &b.qp);
    (net, a, b)
}
