//! `everywire ping`: speaks the protocol of rping, of rdma-core's tools, with another `everywire ping` or with rping itself.
//!
//! One turn: the client advertises a source buffer by SEND; the server reads it by RDMA READ and says so by SEND; the client
//! advertises a sink; the server writes the data there by RDMA WRITE and says so; the client compares. The advertisement is 16
//! bytes, big-endian: address (8), R_Key (4), size (4). The client ends by disconnecting.

mod client;
mod multicast;
mod server;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use everywire_verbs::rt::Rt;
use everywire_verbs::{
    Access, Completion, Connection, Cq, MemoryRegion, Pd, Qp, QpCaps, QpInit, QpType, RKey, RecvWr, Remote,
    SendOp, SendWr, VerbsError, WcStatus,
};

use crate::device::DeviceArgs;
use crate::error::{self, CliError};
use crate::peer::PeerName;
use crate::probe;

/// The port of rping.
pub const DEFAULT_PORT: u16 = 7174;
/// The largest buffer rping uses.
const MAX_SIZE: u32 = 64 * 1024;
/// Bytes of an advertisement.
const ADVERT_LEN: usize = 16;
/// Work requests a side has outstanding: one receive, and a SEND after a READ or WRITE.
const QUEUE_DEPTH: u32 = 16;

/// Flags of `everywire ping`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  everywire ping --listen --device rocev2:127.0.0.1\n  everywire ping 127.0.0.1 --count 3\n  \
    everywire ping 192.0.2.7          # rping -s -a 192.0.2.7 on the other side"
)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Serve instead: wait for clients on the device's address.
    #[arg(long, conflicts_with = "target")]
    listen: bool,
    /// Ask the members of this group instead; with --listen, be one and answer.
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["target", "persistent"])]
    multicast: Option<IpAddr>,
    /// Go on serving after a client left.
    #[arg(long, requires = "listen")]
    persistent: bool,
    /// TCP-like port to listen on (a client's port stands in TARGET).
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Turns to take.
    #[arg(short = 'C', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Bytes of each buffer, 1 to 65536.
    #[arg(short = 'S', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SIZE)))]
    size: u32,
    /// Pause between turns, in milliseconds.
    #[arg(short, long, default_value_t = 0)]
    interval: u64,
    /// One JSON object with the result instead of a line a turn.
    #[arg(long)]
    json: bool,
    /// The server: ADDRESS or ADDRESS:PORT ([v6]:PORT).
    #[arg(required_unless_present_any = ["listen", "multicast"])]
    target: Option<PeerName>,
}

impl Args {
    /// Whether it waits for clients.
    pub fn serves(&self) -> bool {
        self.listen
    }
}

/// Serves, or pings.
pub fn run(args: &Args) -> Result<(), CliError> {
    if let Some(group) = args.multicast {
        return multicast::run(args, group);
    }
    match &args.target {
        Some(target) => client::run(args, target.socket_addr(args.port)),
        None => server::run(args),
    }
}

/// What a side tells the other about a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Advert {
    addr: u64,
    rkey: RKey,
    size: u32,
}

impl Advert {
    fn of(mr: &MemoryRegion) -> Advert {
        Advert { addr: mr.addr(), rkey: mr.rkey(), size: mr.len() as u32 }
    }

    fn emit(&self) -> [u8; ADVERT_LEN] {
        let mut out = [0; ADVERT_LEN];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..].copy_from_slice(&self.size.to_be_bytes());
        out
    }

    fn parse(bytes: &[u8; ADVERT_LEN]) -> Advert {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Advert { addr: u64::from(word(0)) << 32 | u64::from(word(4)), rkey: RKey(word(8)), size: word(12) }
    }

    fn remote(&self) -> Remote {
        Remote { addr: self.addr, rkey: self.rkey }
    }
}

/// One side's queue pair and its message buffers.
struct Endpoint {
    qp: Qp,
    cq: Cq,
    inbox: MemoryRegion,
    who: String,
    /// Once there is one: it knows why it has ended.
    connection: Option<Connection>,
    ready: Vec<Completion>,
    /// The client's turn, for errors.
    turn: Option<u32>,
    rt: Rt,
    /// A question whether the peer is there has not been answered.
    asked: bool,
    /// When something was last heard of the peer, or sent to it.
    heard: Instant,
}

impl Endpoint {
    /// A queue pair in INIT with its first receive posted; `who` names both ends in errors.
    fn new(rt: &Rt, pd: &Pd, who: String) -> Result<Endpoint, CliError> {
        let verbs = |e: VerbsError| CliError::failed(format_args!("{who}: {e}"));
        let cq = pd.device().create_cq(QUEUE_DEPTH * 2).map_err(verbs)?;
        let caps = QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() };
        let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }).map_err(verbs)?;
        let inbox = pd.register(ADVERT_LEN, Access::LOCAL_WRITE).map_err(verbs)?;
        qp.to_init(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE).map_err(verbs)?;
        let end = Endpoint {
            qp,
            cq,
            inbox,
            who,
            connection: None,
            ready: Vec::new(),
            turn: None,
            rt: rt.clone(),
            asked: false,
            heard: Instant::now(),
        };
        end.post_receive()?;
        Ok(end)
    }

    fn post_receive(&self) -> Result<(), CliError> {
        let wr = RecvWr::new(0, [self.inbox.sge(..)]);
        self.qp.post_recv(wr).map_err(|e| CliError::failed(format_args!("{}: post receive: {e}", self.who)))
    }

    fn post(&mut self, wr: SendWr) -> Result<(), CliError> {
        let name = wr.op.name();
        self.heard = Instant::now();
        self.qp.post_send(wr).map_err(|e| CliError::failed(format_args!("{}: post {name}: {e}", self.who)))
    }

    /// Sends 16 bytes; its completion is not waited for but checked by the next wait.
    fn send(&mut self, bytes: [u8; ADVERT_LEN]) -> Result<(), CliError> {
        self.post(SendWr::new(0, SendOp::Send).with_inline(bytes).unsignaled())
    }

    /// Waits for the completion of a READ or WRITE.
    async fn finish(&mut self, wr: SendWr) -> Result<(), CliError> {
        let name = wr.op.name();
        self.post(wr)?;
        let done = self.next().await?;
        if done.status != WcStatus::Success {
            return Err(CliError::peer(format_args!(
                "{}: {name}: {}",
                self.place(),
                self.ended(done.status)
            )));
        }
        Ok(())
    }

    /// Waits for a message; `None` once the peer has disconnected.
    async fn receive(&mut self) -> Result<Option<Advert>, CliError> {
        let done = self.next().await?;
        match done.status {
            WcStatus::Success => {}
            WcStatus::WrFlushErr => return Ok(None),
            status => return Err(CliError::peer(format_args!("{}: {}", self.place(), self.ended(status)))),
        }
        if done.byte_len as usize != ADVERT_LEN {
            let text = format_args!("{}: a message of {} bytes, not {ADVERT_LEN}", self.who, done.byte_len);
            return Err(CliError::peer(text));
        }
        let mut bytes = [0; ADVERT_LEN];
        self.inbox.read_at(0, &mut bytes).map_err(|e| CliError::failed(format_args!("{}: {e}", self.who)))?;
        self.post_receive()?;
        Ok(Some(Advert::parse(&bytes)))
    }

    /// How a request ended, or what has ended the connection.
    fn ended(&self, status: WcStatus) -> String {
        error::ended(status, self.connection.as_ref(), Some(self.heard.elapsed()))
    }

    /// Both ends, and the turn.
    fn place(&self) -> String {
        self.turn.map_or_else(|| self.who.clone(), |turn| format!("{}: in turn {turn}", self.who))
    }

    /// The next completion of a message, a READ or a WRITE. While there is none the peer is asked now and then whether it is
    /// there; that it is not ends the wait, as an error's completion.
    async fn next(&mut self) -> Result<Completion, CliError> {
        loop {
            match self.rt.timeout(probe::SILENCE, self.cq.wait(&mut self.ready, 1)).await {
                Ok(waited) => {
                    waited.map_err(|e| CliError::failed(format_args!("{}: {e}", self.who)))?;
                }
                Err(_) => {
                    self.ask();
                    continue;
                }
            }
            let done = self.ready.pop();
            let done = done.ok_or_else(|| CliError::failed(format_args!("{}: no completion", self.who)))?;
            if done.wr_id != probe::TOKEN || done.status != WcStatus::Success {
                return Ok(done);
            }
            (self.asked, self.heard) = (false, Instant::now());
        }
    }

    fn ask(&mut self) {
        if let Some(question) = probe::question(&self.qp).filter(|_| !self.asked) {
            // A queue pair that takes none has ended, and says so by its receive.
            self.asked = self.qp.post_send(question).is_ok();
        }
    }
}

/// An error for a completion that is none of success.
fn check(who: &str, what: &str, done: &Completion) -> Result<(), CliError> {
    if done.status == WcStatus::Success {
        return Ok(());
    }
    let text = format_args!("{who}: {what} ended with {} ({})", done.status.as_str(), done.status as u8);
    Err(CliError::peer(text))
}

/// Names both ends.
fn between(local: SocketAddr, peer: SocketAddr) -> String {
    format!("ping {local} - {peer}")
}

#[cfg(test)]
mod tests {
    use super::*;

    mod fuzz {
        use super::*;

        everywire_fuzz::target!(rping_advert, [vec![1; ADVERT_LEN]], |bytes| {
            if let Some(bytes) = bytes.first_chunk() {
                assert_eq!(Advert::parse(bytes).emit(), *bytes);
            }
        });
    }

    #[test]
    fn advert_is_what_rping_sent() {
        // Frame 6 of captures/rping.pcap (rping -S 2500): the server's READ in frame 8 names the same three.
        let bytes = [0, 0, 0x55, 0x78, 0x2b, 0x8d, 0x5f, 0xc0, 0, 0, 0x06, 0x76, 0, 0, 0x09, 0xc4];
        let advert = Advert { addr: 0x5578_2b8d_5fc0, rkey: RKey(0x676), size: 2500 };
        assert_eq!(Advert::parse(&bytes), advert);
        assert_eq!(advert.emit(), bytes);
    }
}
