//! What raw UDP does on this machine: the measure that the speed of the product is judged by.
//!
//! Three tests, each with the product's own sockets, packet sizes, trains and checks, but without any verbs, queue pairs or
//! reliability beyond resending: one-way bandwidth (trains of MTU packets, an ACK every 16, payload copied to its
//! destination, ICRC written and checked), ping-pong of small datagrams between two spinning threads, and a loop of
//! emulated READs. Two threads ([`with_thread`]) or two processes ([`serve`] in one, [`Client`] in the other).
//!
//! It is no benchmark of the product; `everywire perf` divides the two.

mod bandwidth;
mod end;
mod ping_pong;
mod read_loop;
pub mod tcp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use end::{End, Flow, Spin};

use crate::error::OpenError;
use crate::route;
use crate::udp::{PortOptions, ROCE_V2_PORT, UdpPort};

/// Bytes of BTH, which begins every datagram here too.
const BTH: usize = 12;
/// Bytes of RETH, in the first packet of a message.
const RETH: usize = 16;
/// Bytes of AETH, in every READ response here.
const AETH: usize = 4;
/// Bytes of ICRC, which ends every datagram.
const ICRC: usize = 4;
/// Packets between two acknowledgements.
const ACK_EVERY: u32 = 16;
/// Without any answer for so long, what is not acknowledged is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(20);
/// Without any answer for so long, the peer is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// Most bytes that the READ loop reads from.
const MAX_REGION: usize = 1 << 30;
/// Most latencies kept of one run; later ones replace random earlier ones.
const MAX_SAMPLES: usize = 1 << 18;

const HELLO: u8 = 0xf0;
const READY: u8 = 0xf1;
const STOP: u8 = 0xf2;
const DATA: u8 = 0x06;
const ACK: u8 = 0x11;
const PING: u8 = 0x04;
const READ_REQUEST: u8 = 0x0c;
const READ_RESPONSE: u8 = 0x10;

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct BaselineOptions {
    /// How the sockets are made: the product's own.
    pub port: PortOptions,
    /// Bytes of one message, READ or ping; a ping is one packet at most.
    pub size: usize,
    /// Payload bytes of one packet.
    pub mtu: usize,
    /// The first packet of a message has a RETH, as that of a WRITE.
    pub writes: bool,
    /// Packets in flight, at most, in the bandwidth test.
    pub window: u32,
    /// READs in flight in the READ loop.
    pub depth: u32,
    /// Bytes that the READ loop reads from, at random places; at least one READ's.
    pub region: usize,
    /// How long a run measures.
    pub duration: Duration,
}

impl Default for BaselineOptions {
    fn default() -> Self {
        BaselineOptions {
            port: PortOptions::default(),
            size: 65_536,
            mtu: 4096,
            writes: true,
            window: 128,
            depth: 1,
            region: 1 << 20,
            duration: Duration::from_secs(1),
        }
    }
}

/// What a run measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BaselineResult {
    /// Payload, in 10^9 bits a second.
    pub gbit_per_s: f64,
    /// Messages, round trips or READs a second.
    pub msg_per_s: f64,
    /// Median time of one, in microseconds: message until acknowledged, round trip, READ.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// How often packets had to be sent again.
    pub resends: u64,
}

/// The test that a client asks a server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Test {
    Bandwidth = 1,
    PingPong = 2,
    ReadLoop = 3,
}

/// Begins a datagram: opcode and sequence number where the BTH has its own.
fn header(datagram: &mut [u8], opcode: u8, sequence: u32) {
    datagram[0] = opcode;
    datagram[5..8].fill(0);
    datagram[8..BTH].copy_from_slice(&sequence.to_be_bytes());
}

/// Notes which packet of a READ's response it is, where the BTH has its destination.
fn set_index(datagram: &mut [u8], index: usize) {
    datagram[5..8].copy_from_slice(&(index as u32).to_be_bytes()[1..]);
}

fn index(datagram: &[u8]) -> usize {
    u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]]) as usize
}

fn opcode(datagram: &[u8]) -> u8 {
    datagram[0]
}

fn sequence(datagram: &[u8]) -> u32 {
    u32::from_be_bytes([datagram[8], datagram[9], datagram[10], datagram[11]])
}

/// Latencies of one run.
#[derive(Debug, Default)]
struct Samples {
    nanoseconds: Vec<u32>,
    seen: u64,
}

impl Samples {
    fn add(&mut self, took: Duration) {
        let value = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        self.seen += 1;
        if self.nanoseconds.len() < MAX_SAMPLES {
            self.nanoseconds.push(value);
        } else {
            let slot = self.seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 46; // 18 bits
            self.nanoseconds[slot as usize] = value;
        }
    }

    fn result(mut self, bytes_each: usize, elapsed: Duration, resends: u64) -> BaselineResult {
        self.nanoseconds.sort_unstable();
        let at = |q: f64| {
            let last = self.nanoseconds.len().saturating_sub(1);
            self.nanoseconds.get((last as f64 * q) as usize).map_or(0.0, |&ns| f64::from(ns) / 1e3)
        };
        let per_s = self.seen as f64 / elapsed.as_secs_f64();
        BaselineResult {
            gbit_per_s: per_s * bytes_each as f64 * 8.0 / 1e9,
            msg_per_s: per_s,
            p50_us: at(0.5),
            p99_us: at(0.99),
            resends,
        }
    }
}

/// Answers clients at `ip` until one says that it is done, or `stop` is set.
///
/// # Errors
/// The address cannot be opened.
pub fn serve(ip: IpAddr, scope_id: u32, options: &PortOptions, stop: &AtomicBool) -> Result<(), OpenError> {
    let mut port = UdpPort::open(ip, scope_id, scope_id, options, u64::from(std::process::id()))?;
    loop {
        let mut hello = None;
        while hello.is_none() {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            port.receive(&mut 0, &mut Vec::new(), |received| {
                let datagram = received.bytes;
                if datagram.len() == BTH + HELLO_BODY + ICRC && opcode(datagram) == HELLO {
                    hello = Some((received.src, datagram[BTH..BTH + HELLO_BODY].to_vec()));
                }
            });
            std::thread::sleep(Duration::from_micros(200));
        }
        let Some((src, body)) = hello else { continue };
        let word =
            |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]) as usize;
        let (size, mtu) = (word(4).clamp(1, 1 << 24), word(8).clamp(256, 4096));
        let own = port.source_ports()[0];
        let mut peer = src;
        peer.set_port(ROCE_V2_PORT);
        let mut end = End {
            out: Flow { src: ip, dst: src.ip(), src_port: own },
            back: Flow { src: src.ip(), dst: ip, src_port: src.port() },
            port,
            peer,
            spin: Spin::default(),
        };
        end.control(READY, 0, &[]);
        match body[0] {
            1 => bandwidth::serve(&mut end, size, mtu, body[1] != 0, stop),
            2 => ping_pong::serve(&mut end, stop),
            3 => read_loop::serve(&mut end, size, mtu, word(12).min(MAX_REGION), stop),
            _ => return Ok(()),
        }
        port = end.port;
    }
}

/// Test, whether messages are WRITEs, two bytes of nothing, size, MTU, region.
const HELLO_BODY: usize = 16;

/// The measuring end.
#[derive(Debug)]
pub struct Client {
    end: End,
    options: BaselineOptions,
}

impl Client {
    /// Opens `ip` to measure against a [`serve`] at `peer`.
    ///
    /// # Errors
    /// The address cannot be opened.
    pub fn open(
        ip: IpAddr,
        scope_id: u32,
        peer: IpAddr,
        options: &BaselineOptions,
    ) -> Result<Client, OpenError> {
        let port = UdpPort::open(ip, scope_id, scope_id, &options.port, u64::from(std::process::id()) << 20)?;
        let src_port = port.source_ports()[0];
        let end = End {
            port,
            out: Flow { src: ip, dst: peer, src_port },
            back: Flow { src: peer, dst: ip, src_port: 0 },
            peer: route::with_scope(peer, ROCE_V2_PORT, scope_id),
            spin: Spin::default(),
        };
        Ok(Client { end, options: *options })
    }

    /// One-way bandwidth with messages of `size` bytes.
    ///
    /// # Errors
    /// `TimedOut` if the peer does not answer.
    pub fn bandwidth(&mut self) -> io::Result<BaselineResult> {
        self.hello(Test::Bandwidth)?;
        let result = bandwidth::measure(&mut self.end, &self.options);
        self.stop();
        result
    }

    /// Round trips of `size` bytes, at most one MTU.
    ///
    /// # Errors
    /// `TimedOut` if the peer does not answer.
    pub fn ping_pong(&mut self) -> io::Result<BaselineResult> {
        self.hello(Test::PingPong)?;
        let result = ping_pong::measure(&mut self.end, &self.options);
        self.stop();
        result
    }

    /// READs of `size` bytes, `depth` at a time.
    ///
    /// # Errors
    /// `TimedOut` if the peer does not answer.
    pub fn read_loop(&mut self) -> io::Result<BaselineResult> {
        self.hello(Test::ReadLoop)?;
        let result = read_loop::measure(&mut self.end, &self.options);
        self.stop();
        result
    }

    /// Changes what the next run does.
    pub fn options_mut(&mut self) -> &mut BaselineOptions {
        &mut self.options
    }

    fn hello(&mut self, test: Test) -> io::Result<()> {
        let mut body = [0; HELLO_BODY];
        body[..2].copy_from_slice(&[test as u8, self.options.writes.into()]);
        body[4..8].copy_from_slice(&(self.options.size as u32).to_be_bytes());
        body[8..12].copy_from_slice(&(self.options.mtu as u32).to_be_bytes());
        body[12..].copy_from_slice(&(self.options.region as u32).to_be_bytes());
        let start = Instant::now();
        let (peer, mut ready) = (self.end.peer, None);
        while ready.is_none() {
            if start.elapsed() > GIVE_UP_AFTER {
                return Err(no_answer(peer));
            }
            self.end.control(HELLO, 0, &body);
            std::thread::sleep(Duration::from_millis(2));
            self.end.port.receive(&mut 0, &mut Vec::new(), |received| {
                if received.bytes.len() == BTH + ICRC && opcode(received.bytes) == READY {
                    ready = Some(received.src.port());
                }
            });
        }
        self.end.back.src_port = ready.unwrap_or(0);
        Ok(())
    }

    fn stop(&mut self) {
        for _ in 0..3 {
            self.end.control(STOP, 0, &[]);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn no_answer(peer: SocketAddr) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer from the baseline's peer at {peer}"))
}

/// Runs `measure` against a [`serve`] in a second thread at `peer`.
///
/// # Errors
/// One of the addresses cannot be opened, or the measurement failed.
pub fn with_thread(
    ip: IpAddr,
    peer: IpAddr,
    options: &BaselineOptions,
    measure: impl FnOnce(&mut Client) -> io::Result<BaselineResult>,
) -> io::Result<BaselineResult> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut client = Client::open(ip, 0, peer, options).map_err(io::Error::other)?;
    let server = {
        let (stop, port) = (stop.clone(), options.port);
        std::thread::spawn(move || serve(peer, 0, &port, &stop))
    };
    let result = measure(&mut client);
    stop.store(true, Ordering::Relaxed);
    match server.join() {
        Ok(Ok(())) => result,
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::other("the baseline's server thread panicked")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(
        last: u8,
        options: BaselineOptions,
        f: fn(&mut Client) -> io::Result<BaselineResult>,
    ) -> BaselineResult {
        let pid = std::process::id();
        let ip = |n| IpAddr::from([127, 0x40 | (pid >> 8) as u8 & 0x3f, pid as u8, n]);
        // Long enough for one of each on a busy machine.
        let options = BaselineOptions { duration: Duration::from_millis(300), ..options };
        with_thread(ip(last), ip(last + 1), &options, f).unwrap()
    }

    #[test]
    fn each_test_moves_data() {
        let bandwidth = run(1, BaselineOptions::default(), Client::bandwidth);
        assert!(bandwidth.gbit_per_s > 0.0 && bandwidth.p50_us <= bandwidth.p99_us, "{bandwidth:?}");
        let ping = run(3, BaselineOptions { size: 64, ..BaselineOptions::default() }, Client::ping_pong);
        assert!(ping.msg_per_s > 0.0 && ping.p50_us > 1.0, "{ping:?}");
        for depth in [1, 32] {
            let options = BaselineOptions { size: 4096, depth, ..BaselineOptions::default() };
            let reads = run(5, options, Client::read_loop);
            assert!(reads.msg_per_s > 0.0 && reads.p50_us > 1.0, "{reads:?}");
        }
    }

    #[test]
    fn a_silent_peer_is_told_by_address() {
        let error = no_answer("127.0.0.9:4791".parse().unwrap());
        assert!(error.to_string().contains("127.0.0.9:4791"));
    }
}
