//! A connected iWARP device whose peer's stream goes wrong at one place: honest FPDUs up to there, garbage from there on, cut
//! anywhere. It says TERMINATE or closes before the garbage ends, every work request posted completes once, and nothing hangs.
//!
//! With CRC, and without: there what a header says wrong ends the stream with the FPDU that says it, while damage to what may be
//! any value (a payload, where in its region a WRITE goes) is none that anybody could see, and ends nothing by itself.
//!
//! An input: where the garbage begins (two bytes), how the stream is cut, whether it overwrites and has CRCs, then the garbage.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use everywire_fuzz::target;
use everywire_verbs::{
    Access, Command, ConnEvent, ConnId, ConnParam, Connection, Cq, Device, DeviceConfig, IwarpOptions,
    ListenOptions, Listener, MemoryRegion, Qp, QpInit, QpType, RecvWr, Remote, SendOp, SendWr, StreamBurst,
};
use everywire_wire::mpa;

const IP: [u8; 4] = [192, 0, 2, 1];
/// Behind any position so much garbage completes whatever a length field may announce, and without CRC another FPDU behind
/// that, of garbage alone.
const FILL: usize = 140_000;
/// Bytes of the first honest segment.
const FIRST: usize = 48;
const RECVS: std::ops::Range<u64> = 0..4;
const SENDS: std::ops::Range<u64> = 10..13;

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

struct Bench {
    device: Device,
    cq: Cq,
    region: MemoryRegion,
    now: Instant,
    burst: StreamBurst,
    conn: ConnId,
    sent: Vec<u8>,
    over: bool,
    qp: Qp,
    connection: Connection,
    seen: BTreeMap<u64, u32>,
    _listener: Listener,
}

/// A start frame of revision 1, and FPDUs.
fn request(crc: bool) -> Vec<u8> {
    let mut out = b"MPA ID Req Frame".to_vec();
    out.extend([if crc { 0x40 } else { 0 }, 1, 0, 0]);
    out
}

fn fpdu(crc: bool, segment: &[u8]) -> Vec<u8> {
    let mut out = (segment.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(segment);
    out.resize(mpa::fpdu_len(segment.len()), 0);
    if crc {
        mpa::seal(&mut out);
    }
    out
}

impl Bench {
    fn new(crc: bool) -> Bench {
        let iwarp = IwarpOptions { crc, ..IwarpOptions::default() };
        let device = Device::new(DeviceConfig { iwarp, ..DeviceConfig::iwarp(IP.into()) });
        let (pd, now) = (device.alloc_pd().unwrap(), Instant::now());
        let cq = device.create_cq(64).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = pd.register(4096, all).unwrap();
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
        qp.to_init(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        for id in RECVS {
            qp.post_recv(RecvWr::new(id, [region.sge(..64)])).unwrap();
        }
        let address = SocketAddr::from((IP, 4420));
        let listener = device.listen(address, ListenOptions::default()).unwrap();
        let mut of = None;
        while let Some(command) = device.drive().poll_command() {
            if let Command::StreamListen { listener, .. } = command {
                of = Some(listener);
            }
        }
        let peer = SocketAddr::from(([192, 0, 2, 2], 999));
        let conn = device.drive().accepted(now, of.unwrap(), address, peer, 1460).unwrap();
        device.drive().handle_stream(now, conn, &request(crc));
        let asked = poll(&mut Box::pin(listener.next_request())).unwrap().unwrap();
        let mut accepting = Box::pin(asked.accept(&qp, ConnParam::default()));
        let mut burst = StreamBurst::new();
        let connection = loop {
            if let Some(result) = poll(&mut accepting) {
                break result.unwrap();
            }
            while device.drive().poll_stream(now, &mut burst) {
                device.drive().stream_event(now, conn, ConnEvent::Written(burst.len()));
            }
        };
        drop(accepting);
        let remote = Remote { addr: region.addr(), rkey: region.rkey() };
        for (id, op) in SENDS.zip([SendOp::Send, SendOp::Read { remote }, SendOp::Write { remote }]) {
            qp.post_send(SendWr::new(id, op).with_sges([region.sge(64..128)])).unwrap();
        }
        let (sent, over, seen) = (Vec::new(), false, BTreeMap::new());
        let _listener = listener;
        let mut bench =
            Bench { device, cq, region, now, burst, conn, sent, over, qp, connection, seen, _listener };
        bench.drain();
        bench.sent.clear();
        bench
    }

    /// The peer's honest words: two SENDs, a WRITE, the READ's answer, a READ.
    fn honest(&self, crc: bool) -> Vec<u8> {
        let (stag, to) = (self.region.rkey().0.to_be_bytes(), self.region.addr());
        let send = |msn: u8| {
            let mut out = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
            out.extend([msn; 30]);
            out
        };
        let tagged =
            |ulp: u8, at: u64| [&[0xc1, ulp][..], &stag, &(to + at).to_be_bytes(), &[7; 64]].concat();
        let mut read = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
        read.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
        read.extend(stag);
        read.extend(to.to_be_bytes());
        let all = [send(1), tagged(0x40, 512), tagged(0x42, 64), read, send(2)];
        all.iter().flat_map(|segment| fpdu(crc, segment)).collect()
    }

    fn drain(&mut self) {
        let device = self.device.clone();
        let mut drive = device.drive();
        while drive.poll_stream(self.now, &mut self.burst) {
            self.burst.copy_to(0, &mut self.sent);
            drive.stream_event(self.now, self.burst.conn(), ConnEvent::Written(self.burst.len()));
        }
        while let Some(command) = drive.poll_command() {
            self.over |= matches!(command, Command::StreamClose { conn } | Command::StreamReset { conn } if conn == self.conn);
        }
        drop(drive);
        let mut done = Vec::new();
        self.cq.poll(&mut done, usize::MAX).unwrap();
        for wc in done {
            *self.seen.entry(wc.wr_id).or_default() += 1;
        }
    }

    /// The first FPDU, which lets the device's READ go, and then the rest: its answer is expected when it comes.
    fn hear(&mut self, stream: &[u8], piece: usize) {
        let (first, rest) = stream.split_at(stream.len().min(mpa::fpdu_len(FIRST)));
        for piece in first.chunks(piece.max(1)).chain(rest.chunks(piece.max(1))) {
            self.device.drive().handle_stream(self.now, self.conn, piece);
            self.drain();
        }
    }

    /// What is to be seen once garbage came: the end, before the peer's.
    fn judge(mut self) {
        assert!(self.over, "neither TERMINATE nor close");
        assert!(self.connection.closed_reason().is_some(), "the program is not told");
        self.device.drive().stream_event(self.now, self.conn, ConnEvent::Eof);
        self.drain();
        for id in RECVS.chain(SENDS) {
            assert_eq!(self.seen.get(&id), Some(&1), "work request {id}");
        }
        drop((self.qp, self.connection));
    }
}

/// Honest up to `at`, garbage from there; then so many bytes of the same kind that any length is complete.
fn spoilt(honest: &[u8], at: usize, overwrite: bool, garbage: &[u8], fill: u8) -> Vec<u8> {
    let at = at % (honest.len() + 1);
    let mut stream = honest[..at].to_vec();
    stream.extend_from_slice(garbage);
    if overwrite {
        stream.extend_from_slice(honest.get(at + garbage.len()..).unwrap_or(&[]));
    }
    stream.resize(stream.len() + FILL, fill);
    stream
}

fn seeds() -> Vec<Vec<u8>> {
    let honest = Bench::new(true).honest(true);
    (0..honest.len())
        .step_by(3)
        .map(|at| vec![0, at as u8, 7, (at & 3) as u8, 0xff, 1, 0, at as u8])
        .collect()
}

target!(iwarp_device, seeds(), |bytes| {
    let [high, low, cut, how, garbage @ ..] = bytes else { return };
    let crc = how & 2 == 0;
    let mut bench = Bench::new(crc);
    let honest = bench.honest(crc);
    let at = usize::from(u16::from_be_bytes([*high, *low]));
    // A fill of zeroes would be honest empty FPDUs but for their CRC, which is not zero. An FPDU of any other one byte is none: it
    // is tagged, and not of RDMAP's version, or it names a queue that there is not.
    let fill = if crc { how >> 2 } else { (how >> 2).max(1) };
    let stream = spoilt(&honest, at, how & 1 != 0, garbage, fill);
    let (first, fill) = stream.split_at(stream.len() - FILL);
    bench.hear(first, usize::from(*cut));
    bench.hear(fill, 4096);
    bench.judge();
});

/// Each bit of each byte of an honest stream, wrong: with a CRC nothing of it goes unnoticed.
#[test]
fn every_position() {
    let honest = Bench::new(true).honest(true);
    for at in 0..honest.len() {
        for (bit, cut) in [(1, 1), (0x80, 13), (0xff, 4096)] {
            let mut bench = Bench::new(true);
            let mut stream = bench.honest(true);
            stream[at] ^= bit;
            bench.hear(&stream, cut);
            bench.hear(&vec![0xff; FILL], 4096);
            bench.judge();
        }
    }
}

/// A field of the honest stream that has one value only: its FPDU, its first byte within the DDP segment, and bits by byte.
type Fixed = (usize, usize, &'static [u8]);

/// What is seen wrong without a CRC, bit by bit (RFC 5041 §4 and §5.3, RFC 5040 §4 and §7). Not here, since a receiver has to
/// take them: reserved bits, the STag of a SEND that invalidates nothing, the last flag where nothing more is needed, a place
/// within the region, payload, the sink of the peer's READ, padding, the CRC itself. A length field is judged by what comes behind.
const FIXED: &[Fixed] = &[
    // A SEND: T, L and version (the message behind it is then out of order), RDMAP's version and opcode, queue, MSN, offset.
    (0, 0, &[0xc3, 0xcf]),
    (0, 6, &[0xff; 12]),
    // A WRITE: T and version; version and opcode; STag; a place outside the region of 4096 bytes.
    (1, 0, &[0x83, 0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0]),
    // The answer to our READ, which is for one place only. With 0x02 in its opcode it were a WRITE.
    (2, 0, &[0x83, 0xcd]),
    (2, 2, &[0xff; 12]),
    // A READ request, then its length, which the region does not have, its source's STag and place.
    (3, 0, &[0xc3, 0xcf]),
    (3, 6, &[0xff; 12]),
    (3, 30, &[0xff, 0xff, 0xf0]),
    (3, 34, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0]),
    // The last SEND: without its L more would have to come.
    (4, 0, &[0x83, 0xcf]),
    (4, 6, &[0xff; 12]),
];

/// Where the DDP segments of a stream begin.
fn segments(stream: &[u8]) -> Vec<usize> {
    let mut at = 0;
    let mut all = Vec::new();
    while let Some(length) = stream.get(at..at + 2) {
        all.push(at + 2);
        at += mpa::fpdu_len(usize::from(u16::from_be_bytes([length[0], length[1]])));
    }
    all
}

/// Each bit of each field that has one value only, wrong: seen without a CRC, and without a byte more.
#[test]
fn every_fixed_bit_without_crc() {
    for (fpdu, first, masks) in FIXED {
        for (byte, bit) in
            masks.iter().enumerate().flat_map(|(n, mask)| (0..8).map(move |b| (n, 1 << b & mask)))
        {
            for cut in [1, 13, 4096] {
                let mut bench = Bench::new(false);
                let mut stream = bench.honest(false);
                let at = segments(&stream)[*fpdu] + first + byte;
                stream[at] ^= bit;
                bench.hear(&stream, cut);
                assert_eq!(
                    bench.over,
                    bit != 0,
                    "FPDU {fpdu}, byte {} of its segment, bit {bit:#x}",
                    first + byte
                );
                if bit != 0 {
                    bench.judge();
                }
            }
        }
    }
}

/// Any bit wrong, seen or not: what is no FPDU behind it ends the stream, however much of it a wrong length swallows.
#[test]
fn every_position_without_crc() {
    let honest = Bench::new(false).honest(false);
    for at in 0..honest.len() {
        for (bit, cut) in [(1, 1), (0x80, 13), (0xff, 4096)] {
            let mut bench = Bench::new(false);
            let mut stream = bench.honest(false);
            stream[at] ^= bit;
            bench.hear(&stream, cut);
            bench.hear(&vec![0xff; FILL], 4096);
            bench.judge();
        }
    }
}

/// Nothing wrong: all of it is taken, whatever the cuts, and nothing ends.
#[test]
fn an_honest_peer() {
    for crc in [true, false] {
        for cut in [1, 2, 7, 4096] {
            let mut bench = Bench::new(crc);
            let honest = bench.honest(crc);
            bench.hear(&honest, cut);
            assert!(!bench.over && bench.connection.closed_reason().is_none());
            assert!([0, 1, 10, 11, 12].iter().all(|id| bench.seen.get(id) == Some(&1)), "{:?}", bench.seen);
        }
    }
}
