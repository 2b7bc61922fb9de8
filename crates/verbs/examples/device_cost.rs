//! What a device costs by itself, without sockets: two of them exchange messages by hand in one thread.
//!
//! `cargo run --release -p everywire-verbs --example device_cost` prints nanoseconds a message for a ping-pong of 64-byte
//! WRITEs, for SENDs, and for a stream of 4 KiB READs. What a driver adds to that is system calls.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use everywire_verbs::{
    Access, Completion, Cq, DEFAULT_SOURCE_PORT, Datagram, Device, DeviceConfig, MemoryRegion, Mtu, Path,
    Psn, Qp, QpAttr, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, Transmit,
};

const ROUNDS: u32 = 300_000;

struct Side {
    device: Device,
    cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
    ip: IpAddr,
    done: Vec<Completion>,
}

impl Side {
    fn new(host: u8) -> Side {
        let ip = IpAddr::from([10, 0, 0, host]);
        let device = Device::new(DeviceConfig { seed: host.into(), ..DeviceConfig::roce_v2(ip) });
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(1024).expect("a queue");
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).expect("a queue pair");
        let mr = pd.register(1 << 20, access()).expect("memory");
        Side { device, cq, qp, mr, ip, done: Vec::new() }
    }

    fn connect(&self, peer: &Side) {
        let path = Path::new(self.ip, peer.ip, DEFAULT_SOURCE_PORT);
        let init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access()),
            ..QpAttr::to(QpState::Init)
        };
        let rtr = QpAttr {
            path: Some(path),
            path_mtu: Some(Mtu::M4096),
            dest_qp: Some(peer.qp.qpn()),
            rq_psn: Some(Psn::new(7)),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(1),
            ..QpAttr::to(QpState::Rtr)
        };
        let rts = QpAttr {
            sq_psn: Some(Psn::new(7)),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..QpAttr::to(QpState::Rts)
        };
        for attr in [init, rtr, rts] {
            self.qp.modify(&attr).expect("a legal step");
        }
    }

    /// Hands everything that waits here to `peer`; the number of datagrams.
    fn flow_to(&self, peer: &Side, out: &mut Vec<Transmit>) -> usize {
        let now = Instant::now();
        let mut filled = 0;
        {
            let mut drive = self.device.drive();
            loop {
                if filled == out.len() {
                    out.push(Transmit::default());
                }
                if !drive.poll_transmit(now, &mut out[filled]) {
                    break;
                }
                filled += 1;
            }
            drive.poll_timeout();
        }
        if filled == 0 {
            return 0;
        }
        let mut datagrams = 0;
        let mut drive = peer.device.drive();
        let now = Instant::now();
        for transmit in &out[..filled] {
            let src = SocketAddr::new(transmit.src, transmit.src_port);
            for bytes in transmit.segments() {
                datagrams += 1;
                let datagram = Datagram { src, dst: peer.ip, tos: 0, ttl: 64, ip_id: None, bytes };
                drive.handle_datagram(now, datagram);
            }
        }
        datagrams
    }

    fn poll(&mut self) -> usize {
        self.done.clear();
        self.cq.poll(&mut self.done, 64).expect("polls")
    }
}

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

fn main() {
    let (mut a, mut b) = (Side::new(1), Side::new(2));
    a.connect(&b);
    b.connect(&a);
    let mut out = Vec::new();
    for name in ["WRITE", "SEND"] {
        let mut datagrams = 0;
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            for turn in 0..2 {
                let (one, other) = if turn == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let wr = if name == "WRITE" {
                    SendWr::new(1, SendOp::Write { remote: other.mr.remote(0) })
                } else {
                    other.qp.post_recv(RecvWr::new(2, [other.mr.sge(4096..4160)])).expect("posted");
                    SendWr::new(1, SendOp::Send)
                };
                one.qp.post_send(wr.with_sges([one.mr.sge(0..64)])).expect("posted");
                datagrams += one.flow_to(other, &mut out);
                other.poll();
            }
        }
        report(name, begin, ROUNDS * 2, datagrams);
    }
    let mut datagrams = 0;
    let begin = Instant::now();
    let mut completed = 0;
    let mut posted = 0;
    while completed < ROUNDS {
        while posted < completed + 32 {
            let at = (posted as usize * 4096) & 0x3_f000;
            let wr = SendWr::new(1, SendOp::Read { remote: b.mr.remote(at) });
            a.qp.post_send(wr.with_sges([a.mr.sge(at..at + 4096)])).expect("posted");
            posted += 1;
        }
        datagrams += a.flow_to(&b, &mut out);
        datagrams += b.flow_to(&a, &mut out);
        completed += a.poll() as u32;
    }
    report("READ 4 KiB, 32 deep", begin, completed, datagrams);
}

fn report(name: &str, begin: Instant, messages: u32, datagrams: usize) {
    let each = begin.elapsed().as_nanos() as f64 / f64::from(messages);
    println!("{name:20} {each:7.0} ns a message, {:.2} datagrams", datagrams as f64 / f64::from(messages));
}
