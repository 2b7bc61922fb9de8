//! The measuring side: connects, runs the test, and measures raw UDP where that was asked for.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use everywire_net::Host;
use everywire_net::baseline::{self, BaselineOptions, BaselineResult};
use everywire_verbs::{
    Access, CmError, CmErrorKind, ConnParam, ConnectOptions, Connection, Cq, Device, MemoryRegion, Pd, Qp,
    QpCaps, QpInit, Qpn, Remote, UdDest, WcStatus,
};

use super::datagram::{self, GRH_BYTES, headroom};
use super::hello::Hello;
use super::latency::{self, PingPong};
use super::report::{Measured, Report};
use super::{Args, Operation, Plan, Service, throughput};
use crate::attached::{self, while_attached};
use crate::error::{self, CliError};
use crate::patience::{self, PATIENCE};
use crate::probe::ACK_TIMEOUT;
use crate::progress::Progress;
use crate::second::SecondProcess;
use crate::second::places::{self, ByHand};

/// Memory that the messages in flight cycle through: enough to be real, little enough to stay in the cache as the baseline's.
const CYCLE_BYTES: usize = 1 << 20;
/// SENDs of a ping-pong that may await an acknowledgement, which comes behind the answer.
pub const UNACKNOWLEDGED: u32 = 64;
/// READs and atomics in flight on a connection.
const RD_ATOMIC: u8 = 16;

/// A connection under test.
pub struct Link {
    /// Its number, and the `wr_id` of its messages.
    pub index: u64,
    /// Its queue pair.
    pub qp: Qp,
    /// Shared by all links.
    pub cq: Cq,
    /// Messages come from, and READs go to, its slots.
    pub buffer: MemoryRegion,
    /// Slots that messages cycle through.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// The peer's buffer.
    pub remote: Remote,
    /// On UD, the way to the peer's queue pair.
    pub ud: Option<UdDest>,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// Both ends, for errors.
    pub who: String,
    connection: Option<Connection>,
}

impl Link {
    /// How a request ended that failed: what ended the connection, where that is why it was flushed; or that nothing was heard
    /// of the peer for so long.
    pub fn ended(&self, status: WcStatus, silent: Option<Duration>) -> String {
        error::ended(status, self.connection.as_ref(), silent)
    }

    /// A slot of the peer's buffer.
    pub fn remote_slot(&self, slot: usize) -> Remote {
        Remote { addr: self.remote.addr + (slot * self.slot_bytes) as u64, ..self.remote }
    }
}

/// Where messages lie in a buffer: slots, bytes of each.
pub fn slots(size: u32, depth: u32) -> (usize, usize) {
    let slot_bytes = (size as usize).next_multiple_of(64);
    let most = (CYCLE_BYTES / slot_bytes).max(1);
    ((depth as usize).clamp(1, most), slot_bytes)
}

/// Measures.
pub fn run(args: &Args, mut plan: Plan) -> Result<(), CliError> {
    if args.baseline {
        // What cannot be is said before anything is measured.
        raw_options(args, &plan)?;
    }
    let second = match &args.target {
        None => {
            let client = format!("perf {}", plan.operation.flag());
            let by_hand = ByHand { server: "perf --listen", client: &client };
            let devices = places::beside(args.device.device.as_deref(), by_hand)?;
            Some(SecondProcess::start(&devices, |device| super::listen_arguments(device, args.port))?)
        }
        Some(_) => None,
    };
    let peer = match (&args.target, &second) {
        (Some(target), _) => target.socket_addr(args.port),
        (None, Some(second)) => second.addr(),
        (None, None) => return Err(CliError::usage("no peer")),
    };
    let measured = product(args, &mut plan, peer)?;
    drop(second);
    let baseline = args.baseline.then(|| raw(args, &raw_options(args, &plan)?, &plan)).transpose()?;
    let name = format!(
        "{} {} {} B{}",
        plan.service.name(),
        plan.operation.name(),
        plan.size,
        if plan.latency {
            ", latency".to_owned()
        } else {
            format!(", {} in flight", plan.depth * plan.connections)
        }
    );
    let raw = if args.device.wire() == "iwarp" { "raw TCP" } else { "raw UDP" };
    Report { name, measured, baseline, raw, by_time: plan.latency }.print(args.json)
}

/// What the device's wire does not have is wrong usage, and nobody need be asked.
fn check_wire(device: &Device, plan: &Plan) -> Result<(), CliError> {
    match plan.operation.lacked_by(device) {
        None => Ok(()),
        Some(why) => {
            let name = device.name();
            Err(CliError::usage(format_args!(
                "{name}: {why}: name it {name},rfc7306, and the peer's likewise"
            )))
        }
    }
}

fn product(args: &Args, plan: &mut Plan, peer: SocketAddr) -> Result<Measured, CliError> {
    let host = args.device.open_for_peer(peer)?;
    check_wire(host.device(), plan)?;
    if plan.service == Service::Ud && args.size.is_none() && !plan.latency {
        let pd = host.device().alloc_pd().map_err(CliError::failed)?;
        plan.size = everywire_net::block_on(datagram::path_mtu(&pd, peer))?;
    }
    let plan = &*plan;
    let links = open(&host, plan, peer)?;
    let progress = Progress::time("measuring", plan.duration);
    let measured = if plan.latency { latency::run(&links[0], plan) } else { throughput::run(&links, plan) };
    drop(progress);
    let measured = match measured {
        Ok(sent) if datagram::counts_at_the_peer(plan) => delivered(&links, peer, sent),
        other => other,
    };
    close(&links);
    measured.map_err(|error| attached::explain(&host, error))
}

/// Connects every link of a plan.
pub fn open(host: &Host, plan: &Plan, peer: SocketAddr) -> Result<Vec<Link>, CliError> {
    everywire_net::block_on(while_attached(host, connect_all(host.device(), plan, peer)))
}

/// Disconnects them.
pub fn close(links: &[Link]) {
    everywire_net::block_on(async {
        for link in links {
            if let Some(connection) = &link.connection {
                connection.disconnect().await;
            }
        }
    });
}

/// What was sent, brought down to what the peer received.
fn delivered(links: &[Link], peer: SocketAddr, sent: Measured) -> Result<Measured, CliError> {
    let mut arrived = 0;
    for link in links {
        arrived += everywire_net::block_on(datagram::arrived(link, peer))?;
    }
    Ok(sent.of_which_arrived(arrived))
}

async fn connect_all(device: &Device, plan: &Plan, peer: SocketAddr) -> Result<Vec<Link>, CliError> {
    let pd = device.alloc_pd().map_err(CliError::failed)?;
    let mtu = device.port().active_mtu.bytes();
    if plan.service == Service::Ud && plan.size as usize > mtu {
        let text =
            format_args!("--size {}: a UD message fits one packet, {mtu} bytes on this device", plan.size);
        return Err(CliError::usage(text));
    }
    let depth = plan.connections * (plan.depth + 2) + 16;
    let cq = device.create_cq(depth.min(device.limits().max_cqe)).map_err(CliError::failed)?;
    let own = device.gids().first().map_or_else(|| "this host".to_owned(), |gid| gid.ip.to_string());
    let who = format!("perf {own} - {peer}");
    let mut links = Vec::new();
    for index in 0..plan.connections {
        let attempt = async || connect((&pd, &cq), plan, (&who, peer), index).await;
        links.push(patience::connect(&who, attempt, patience::sleep).await?);
    }
    Ok(links)
}

async fn connect(
    (pd, cq): (&Pd, &Cq),
    plan: &Plan,
    (who, peer): (&str, SocketAddr),
    index: u32,
) -> Result<Link, CliError> {
    let (slots, slot_bytes) = slots(plan.size, plan.depth);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // Twice: a ping-pong's first half is written by the peer, its second half is sent.
    let buffer = pd.register((slots * slot_bytes + GRH_BYTES) * 2, access).map_err(CliError::failed)?;
    let caps =
        QpCaps { max_send_wr: plan.depth.max(UNACKNOWLEDGED) + 1, max_recv_wr: 2, ..QpCaps::default() };
    let qp = match plan.service {
        Service::Ud => datagram::queue_pair(pd, cq, caps),
        _ => pd.create_qp(&QpInit { caps, ..QpInit::new(plan.service.qp_type(), cq) }),
    };
    let qp = qp.map_err(error::verbs)?;
    let hello = Hello::new(plan, &buffer);
    let mut link = Link {
        index: u64::from(index),
        qp,
        cq: cq.clone(),
        buffer,
        slots,
        slot_bytes,
        remote: hello.remote,
        ud: None,
        peer_qpn: Qpn::new(0),
        who: who.to_owned(),
        connection: None,
    };
    if plan.service == Service::Ud {
        ready_to_receive(&link, plan)?;
        datagram::connect(&mut link, &hello, peer).await?;
        return Ok(link);
    }
    link.qp.to_init(access).map_err(CliError::failed)?;
    ready_to_receive(&link, plan)?;
    let param = ConnParam {
        private_data: hello.emit(),
        responder_resources: RD_ATOMIC,
        initiator_depth: RD_ATOMIC,
        retry_count: 7,
        rnr_retry_count: 7,
        ack_timeout: Some(ACK_TIMEOUT),
        ..ConnParam::default()
    };
    let options = ConnectOptions { param, ..ConnectOptions::new(peer, &link.qp) };
    let connection = pd.device().connect(options.timeout(PATIENCE)).await.map_err(refused)?;
    let answer = Hello::parse(connection.private_data())
        .map_err(|e| CliError::peer(format_args!("{}: {e}", link.who)))?;
    link.remote = answer.remote;
    link.peer_qpn = connection.param().qp_num;
    link.connection = Some(connection);
    Ok(link)
}

/// A failure of connecting, with what the peer says to it.
fn refused(source: CmError) -> CliError {
    let CmErrorKind::Rejected { private_data, .. } = source.kind() else { return error::cm(source) };
    let used = private_data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match std::str::from_utf8(&private_data[..used]) {
        Ok(words) if used > 0 && !words.contains(char::is_control) => {
            error::cm_with(&source, format_args!("{source} It says: {words}"))
        }
        _ => error::cm(source),
    }
}

fn ready_to_receive(link: &Link, plan: &Plan) -> Result<(), CliError> {
    if plan.latency && plan.operation == Operation::Send {
        let wr = PingPong::receive_into(&link.buffer, plan.size as usize + headroom(plan.service));
        link.qp
            .post_recv(wr)
            .map_err(|e| CliError::failed(format_args!("{}: post receive: {e}", link.who)))?;
    }
    Ok(())
}

/// One message, answered by one message: half a round trip is reported.
fn is_ping_pong(plan: &Plan) -> bool {
    plan.latency && matches!(plan.operation, Operation::Write | Operation::Send)
}

/// How raw UDP does the same.
fn raw_options(args: &Args, plan: &Plan) -> Result<BaselineOptions, CliError> {
    if args.target.is_some() {
        return Err(CliError::usage("--baseline measures on this host: leave the peer away"));
    }
    let options = BaselineOptions {
        size: plan.size as usize,
        writes: plan.operation == Operation::Write,
        // A connection has no more READs and atomics than that on their way.
        depth: plan.depth.min(RD_ATOMIC.into()) * plan.connections,
        duration: plan.duration,
        ..BaselineOptions::default()
    };
    if is_ping_pong(plan) && options.size > options.mtu && args.device.wire() != "iwarp" {
        let text = format_args!("--baseline of a ping-pong is one packet: --size up to {}", options.mtu);
        return Err(CliError::usage(text));
    }
    Ok(options)
}

/// Raw TCP with CRC32C at both ends: a ping-pong for latency, a stream for all else.
fn raw_tcp(own: IpAddr, peer: IpAddr, plan: &Plan) -> Result<Measured, CliError> {
    let size = plan.size as usize;
    let result = match plan.latency {
        true => baseline::tcp::ping_pong(own, peer, size, plan.duration),
        false => baseline::tcp::stream(own, peer, size, plan.duration),
    };
    let BaselineResult { gbit_per_s, msg_per_s, p50_us, p99_us, .. } =
        result.map_err(|e| CliError::failed(format_args!("baseline: {e}")))?;
    let half = if is_ping_pong(plan) { 0.5 } else { 1.0 };
    let (msg_per_s, p50_us, p99_us) = (msg_per_s / half, p50_us * half, p99_us * half);
    Ok(Measured { gbit_per_s, msg_per_s, p50_us, p99_us, messages: 0, lost: None })
}

/// Two loopback addresses that no other process takes by this rule: those that the second process has left may be another's
/// by now.
fn own_loopback_pair() -> [IpAddr; 2] {
    let pid = std::process::id();
    [1, 2]
        .map(|last| IpAddr::from([127, 0x80 | (pid >> 14) as u8, (pid >> 6) as u8, (pid << 2) as u8 | last]))
}

/// Raw UDP with the product's sockets, in a second thread on two addresses of this host.
fn raw(args: &Args, options: &BaselineOptions, plan: &Plan) -> Result<Measured, CliError> {
    let [own, peer] = own_loopback_pair();
    if args.device.wire() == "iwarp" {
        return raw_tcp(own, peer, plan);
    }
    let result = match (plan.operation, plan.latency) {
        (Operation::Read | Operation::Atomic, _) => {
            baseline::with_thread(own, peer, options, |c| c.read_loop())
        }
        (_, true) => baseline::with_thread(own, peer, options, |c| c.ping_pong()),
        (_, false) => baseline::with_thread(own, peer, options, |c| c.bandwidth()),
    };
    let BaselineResult { gbit_per_s, msg_per_s, p50_us, p99_us, .. } =
        result.map_err(|e| CliError::failed(format_args!("baseline: {e}")))?;
    // The product reports half a round trip of a ping-pong.
    let half = if is_ping_pong(plan) { 0.5 } else { 1.0 };
    let (msg_per_s, p50_us, p99_us) = (msg_per_s / half, p50_us * half, p99_us * half);
    Ok(Measured { gbit_per_s, msg_per_s, p50_us, p99_us, messages: 0, lost: None })
}
