//! What a connection costs: memory when idle, allocations when busy, time per packet in the device.
//!
//! The limits are the project's own: under 64 KiB a connection beyond its buffers, no allocation a packet. One test, since
//! the counts are the process's.

use std::alloc::System;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use everywire_verbs::*;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Most bytes of an idle connection: a queue pair and a completion queue.
const IDLE_LIMIT: usize = 64 * 1024;

fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

struct Host {
    device: Device,
    ip: IpAddr,
    pd: Pd,
}

fn host(n: u8) -> Host {
    let ip: IpAddr = [10, 0, 0, n].into();
    let device = Device::new(DeviceConfig { seed: n.into(), ..DeviceConfig::roce_v2(ip) });
    let pd = device.alloc_pd().unwrap();
    Host { device, ip, pd }
}

fn qp(host: &Host) -> (Qp, Cq) {
    let cq = host.device.create_cq(256).unwrap();
    let caps = QpCaps { max_send_wr: 128, max_recv_wr: 128, ..QpCaps::default() };
    (host.pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }).unwrap(), cq)
}

fn connect(qp: &Qp, from: IpAddr, to: IpAddr, dest_qp: Qpn) {
    qp.to_init(all_access()).unwrap();
    let rtr = QpAttr {
        path: Some(Path::new(from, to, DEFAULT_SOURCE_PORT)),
        path_mtu: Some(Mtu::M4096),
        dest_qp: Some(dest_qp),
        rq_psn: Some(Psn::new(1)),
        max_dest_rd_atomic: Some(16),
        min_rnr_timer: Some(1),
        ..QpAttr::to(QpState::Rtr)
    };
    let rts = QpAttr {
        sq_psn: Some(Psn::new(1)),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(16),
        ..QpAttr::to(QpState::Rts)
    };
    qp.modify(&rtr).unwrap();
    qp.modify(&rts).unwrap();
}

/// The wire: a pool of buffers, so that only the devices' own allocations show.
struct Wire {
    now: Instant,
    transmit: Transmit,
    pool: Vec<Vec<u8>>,
    /// Sender, destination, bytes.
    flying: VecDeque<(SocketAddr, IpAddr, Vec<u8>)>,
    packets: u64,
    /// Time spent in the devices.
    busy: Duration,
}

impl Wire {
    fn new() -> Wire {
        let pool = (0..512).map(|_| Vec::with_capacity(4200)).collect();
        Wire {
            now: Instant::now(),
            transmit: Transmit::default(),
            pool,
            flying: VecDeque::with_capacity(512),
            packets: 0,
            busy: Duration::ZERO,
        }
    }

    /// Moves packets until both hosts are quiet.
    fn run(&mut self, hosts: [&Host; 2]) {
        loop {
            let mut quiet = true;
            for host in hosts {
                let start = Instant::now();
                let mut drive = host.device.drive();
                self.now += Duration::from_micros(25);
                drive.handle_timeout(self.now);
                while drive.poll_transmit(self.now, &mut self.transmit) {
                    quiet = false;
                    let src = SocketAddr::new(self.transmit.src, self.transmit.src_port);
                    for segment in self.transmit.segments() {
                        let mut bytes = self.pool.pop().expect("the window is smaller than the pool");
                        bytes.clear();
                        bytes.extend_from_slice(segment);
                        self.flying.push_back((src, self.transmit.dst.ip(), bytes));
                    }
                }
                drop(drive);
                self.busy += start.elapsed();
            }
            let start = Instant::now();
            for host in hosts {
                let mut drive = host.device.drive();
                for _ in 0..self.flying.len() {
                    let Some((src, dst, bytes)) = self.flying.pop_front() else { break };
                    if dst != host.ip {
                        self.flying.push_back((src, dst, bytes));
                        continue;
                    }
                    self.packets += 1;
                    let datagram = Datagram { src, dst, tos: 0, ttl: 64, ip_id: None, bytes: &bytes };
                    drive.handle_datagram(self.now, datagram);
                    self.pool.push(bytes);
                }
            }
            self.busy += start.elapsed();
            if quiet {
                return;
            }
        }
    }
}

/// Bytes the process holds beyond those at the start of `region`.
fn held(region: &Region<'_, System>) -> usize {
    let stats = region.change();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn idle_connections() {
    const CONNECTIONS: usize = 1000;
    let (a, b) = (host(1), host(2));
    let mut wire = Wire::new();
    let region = Region::new(ALLOCATOR);
    let pairs: Vec<_> = (0..CONNECTIONS).map(|_| (qp(&a), qp(&b))).collect();
    for ((one, _), (other, _)) in &pairs {
        connect(one, a.ip, b.ip, other.qpn());
        connect(other, b.ip, a.ip, one.qpn());
    }
    let fresh = held(&region) / (2 * CONNECTIONS);
    // Each has worked once, so that whatever grows on use has grown.
    let (from, to) = (a.pd.register(8192, all_access()).unwrap(), b.pd.register(8192, all_access()).unwrap());
    let mut out = Vec::new();
    let region2 = Region::new(ALLOCATOR);
    for ((one, cq), (other, other_cq)) in &pairs {
        other.post_recv(RecvWr::new(1, [to.sge(..)])).unwrap();
        let write = SendOp::Write { remote: to.remote(0) };
        one.post_send(SendWr::new(1, write).with_sges([from.sge(..)])).unwrap();
        one.post_send(SendWr::new(2, SendOp::Send).with_sges([from.sge(..)])).unwrap();
        one.post_send(SendWr::new(3, SendOp::Read { remote: to.remote(0) }).with_sges([from.sge(..)]))
            .unwrap();
        wire.run([&a, &b]);
        out.clear();
        assert_eq!(cq.poll(&mut out, 10), Ok(3));
        assert_eq!(other_cq.poll(&mut out, 10), Ok(1));
        assert!(out.iter().all(|entry| entry.status == WcStatus::Success));
    }
    let used = fresh + held(&region2) / (2 * CONNECTIONS);
    println!("an idle connection: {fresh} bytes when fresh, {used} after use, per side");
    assert!(used < IDLE_LIMIT, "{used} bytes");
    drop(pairs);
    let left = held(&region) / (2 * CONNECTIONS);
    println!("left behind: {left} bytes a connection");
    assert!(left < 1024, "{left} bytes a connection stay when it goes");
}

fn busy_connection() {
    let (a, b) = (host(3), host(4));
    let ((one, cq), (other, _)) = (qp(&a), qp(&b));
    connect(&one, a.ip, b.ip, other.qpn());
    connect(&other, b.ip, a.ip, one.qpn());
    let (from, to) =
        (a.pd.register(65_536, all_access()).unwrap(), b.pd.register(65_536, all_access()).unwrap());
    let mut wire = Wire::new();
    let mut out = Vec::with_capacity(64);
    let mut round = |wire: &mut Wire| {
        for n in 0..16 {
            let write = SendOp::Write { remote: to.remote(0) };
            one.post_send(SendWr::new(n, write).with_sges([from.sge(..)])).unwrap();
        }
        wire.run([&a, &b]);
        out.clear();
        assert_eq!(cq.poll(&mut out, 64), Ok(16));
    };
    (0..20).for_each(|_| round(&mut wire));
    let (packets, busy) = (wire.packets, wire.busy);
    let region = Region::new(ALLOCATOR);
    (0..20).for_each(|_| round(&mut wire));
    let change = region.change();
    let packets = wire.packets - packets;
    let time = (wire.busy - busy) / packets as u32;
    println!("busy: {packets} packets, {} allocations, {time:?} a packet on both sides", change.allocations);
    // Some table may still grow once; packets and work requests of four segments allocate nothing.
    assert!(change.allocations < 10, "{} for {packets} packets", change.allocations);
}

#[test]
fn connections_cost_little() {
    idle_connections();
    busy_connection();
}
