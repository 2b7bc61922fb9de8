//! `everywire perf --connections N`: what a connection costs that does nothing, over iWARP and over RC, side by side.
//!
//! One end is this process, on one thread; the other is a second process, since a process may have few descriptors. What is
//! measured is this process's resident memory (proc(5), statm) before and after; the kernel's own of a socket is not in it.

use std::net::{Ipv4Addr, SocketAddr};

use everywire_net::{Host, OpenOptions, TokioRt};
use everywire_verbs::{
    ConnParam, ConnectOptions, Connection, Cq, Device, DeviceLimits, ListenOptions, MAX_QPS, Pd, QpCaps,
    QpInit, QpType,
};
use serde_json::json;

use crate::error::{self, CliError, print};
use crate::progress::Progress;
use crate::second::SecondProcess;
use crate::second::places::{self, ByHand};

/// Connections made first, so that what is made once is not counted.
const WARM: u32 = 16;
/// Work requests of each queue: as many as an idle connection needs to say something.
const DEPTH: u32 = 4;
/// Loopback addresses tried for our device.
const ADDRESSES: std::ops::RangeInclusive<u8> = 170..=229;
/// Requests that may wait.
const BACKLOG: usize = 128;

/// Measures both and prints them.
pub fn run(connections: u32, as_json: bool) -> Result<(), CliError> {
    everywire_net::raise_descriptor_limit();
    let mut rows = Vec::new();
    for (wire, name) in [("iwarp", "iWARP"), ("rocev2", "RC over RoCE v2")] {
        let progress = Progress::steps(&format!("{connections} connections, {name}"));
        rows.push((name, measure(wire, connections)?));
        drop(progress);
    }
    if as_json {
        let rows: Vec<_> =
            rows.iter().map(|(name, bytes)| json!({"wire": name, "bytes_per_connection": bytes})).collect();
        return print(json!({"connections": connections, "rows": rows}));
    }
    print(format_args!("{connections} idle connections on one thread"))?;
    for (name, bytes) in rows {
        print(format_args!("{name:<16} {bytes:>8} bytes a connection"))?;
    }
    Ok(())
}

/// The second process: accepts whatever comes, until its standard input ends.
pub fn serve(host: &Host, runtime: &TokioRt) -> Result<(), CliError> {
    everywire_net::raise_descriptor_limit();
    let device = host.device();
    let ip = device.gids().first().ok_or_else(|| CliError::failed("the device has no address"))?.ip;
    let options = ListenOptions { backlog: BACKLOG };
    let listener = device.listen(SocketAddr::new(ip, 0), options).map_err(error::cm)?;
    print(format_args!("listening on {}", listener.local_addr()))?;
    let (pd, cq) = queues(device)?;
    runtime.block_on(async {
        let mut kept = Vec::new();
        loop {
            let request = listener.next_request().await.map_err(error::cm)?;
            let qp = queue_pair(&pd, &cq)?;
            kept.push(request.accept(&qp, ConnParam::default()).await.map_err(error::cm)?);
        }
    })
}

/// Bytes of resident memory of one connection.
fn measure(wire: &str, connections: u32) -> Result<u64, CliError> {
    let by_hand = ByHand { server: "perf --listen", client: "perf" };
    let second = SecondProcess::start(&places::beside(Some(wire), by_hand)?, |device| {
        ["perf", "--listen", "--idle", "--until-stdin-ends", "--device", device].map(str::to_owned).to_vec()
    })?;
    let host = open(wire)?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    let (pd, cq) = queues(host.device())?;
    runtime.block_on(async {
        let mut kept = Vec::new();
        connect(&pd, &cq, second.addr(), &mut kept, WARM).await?;
        let before = resident()?;
        connect(&pd, &cq, second.addr(), &mut kept, connections).await?;
        let grown = resident()?.saturating_sub(before);
        Ok(grown / u64::from(connections))
    })
}

async fn connect(
    pd: &Pd,
    cq: &Cq,
    dst: SocketAddr,
    kept: &mut Vec<Connection>,
    count: u32,
) -> Result<(), CliError> {
    for _ in 0..count {
        let qp = queue_pair(pd, cq)?;
        let connecting = pd.device().connect(ConnectOptions::new(dst, &qp));
        kept.push(connecting.await.map_err(error::cm)?);
    }
    Ok(())
}

fn open(wire: &str) -> Result<Host, CliError> {
    let limits = DeviceLimits { max_qp: MAX_QPS, ..DeviceLimits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let mut last = None;
    for byte in ADDRESSES {
        let ip = Ipv4Addr::new(127, 0, (std::process::id() % 250) as u8, byte);
        match Host::open(&format!("{wire}:{ip}"), &options) {
            Ok(host) => return Ok(host),
            Err(e) => last = Some(e),
        }
    }
    Err(CliError::failed(last.map_or_else(String::new, |e| e.to_string())))
}

fn queues(device: &Device) -> Result<(Pd, Cq), CliError> {
    let pd = device.alloc_pd().map_err(CliError::failed)?;
    let cq = device.create_cq(64).map_err(CliError::failed)?;
    Ok((pd, cq))
}

fn queue_pair(pd: &Pd, cq: &Cq) -> Result<everywire_verbs::Qp, CliError> {
    let caps = QpCaps { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpCaps::default() };
    pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, cq) }).map_err(CliError::failed)
}

/// Bytes of this process that are resident.
fn resident() -> Result<u64, CliError> {
    let statm = std::fs::read_to_string("/proc/self/statm")
        .map_err(|e| CliError::failed(format_args!("/proc/self/statm: {e}")))?;
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    Ok(pages * 4096)
}
