//! `everywire perf --connections N`: what a connection costs that does nothing, over iWARP and over RC, side by side.
//!
//! Both ends are in this process, on one thread: two devices and N connections between them. What is measured is the
//! process's resident memory (proc(5), statm) before and after; the kernel's own memory of a socket is not in it.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use everywire_net::{Host, OpenOptions, TokioRt};
use everywire_verbs::rt::Rt;
use everywire_verbs::{
    ConnParam, ConnectOptions, Connection, Cq, Device, DeviceLimits, ListenOptions, MAX_QPS, Pd, QpCaps,
    QpInit, QpType,
};
use serde_json::json;

use crate::error::{self, CliError, print};
use crate::progress::Progress;

/// Connections made first, so that what is made once is not counted.
const WARM: u32 = 16;
/// Work requests of each queue: as many as an idle connection needs to say something.
const DEPTH: u32 = 4;
/// Loopback addresses tried for the two devices.
const ADDRESSES: std::ops::RangeInclusive<u8> = 170..=229;

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
    print(format_args!("{connections} idle connections on one thread, both ends in this process"))?;
    for (name, bytes) in rows {
        print(format_args!("{name:<16} {bytes:>8} bytes a connection ({} an end)", bytes / 2))?;
    }
    Ok(())
}

/// Bytes of resident memory of one connection, both ends.
fn measure(wire: &str, connections: u32) -> Result<u64, CliError> {
    let (server, client) = (open(wire)?, open(wire)?);
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    for host in [&server, &client] {
        host.run(&runtime).map_err(CliError::failed)?;
    }
    let rt = runtime.handle();
    runtime.block_on(async {
        let ground = Ground::new(&rt, server.device(), client.device())?;
        let mut kept = Vec::new();
        ground.connect(&mut kept, WARM).await?;
        let before = resident()?;
        ground.connect(&mut kept, connections).await?;
        let grown = resident()?.saturating_sub(before);
        Ok(grown / u64::from(connections))
    })
}

fn open(wire: &str) -> Result<Host, CliError> {
    let limits = DeviceLimits { max_qp: MAX_QPS, ..DeviceLimits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let mut last = None;
    // Devices on TCP share addresses; two of them on one do no harm, but no good either.
    for byte in ADDRESSES {
        let ip = Ipv4Addr::new(127, 0, (std::process::id() % 250) as u8, byte);
        match Host::open(&format!("{wire}:{ip}"), &options) {
            Ok(host) => return Ok(host),
            Err(e) => last = Some(e),
        }
    }
    Err(CliError::failed(last.map_or_else(String::new, |e| e.to_string())))
}

/// The ends' queues, and who accepts.
struct Ground {
    dst: SocketAddr,
    pd: Pd,
    cq: Cq,
    /// Connections that were accepted.
    accepted: Rc<RefCell<Vec<Result<Connection, CliError>>>>,
}

impl Ground {
    fn new(rt: &Rt, server: &Device, client: &Device) -> Result<Ground, CliError> {
        let ip = server.gids().first().ok_or_else(|| CliError::failed("the device has no address"))?.ip;
        let listener = server.listen(SocketAddr::new(ip, 0), ListenOptions::default()).map_err(error::cm)?;
        let dst = listener.local_addr();
        let (pd, cq) = queues(server)?;
        let accepted = Rc::new(RefCell::new(Vec::new()));
        let into = accepted.clone();
        drop(rt.spawn(async move {
            while let Ok(request) = listener.next_request().await {
                let outcome = match queue_pair(&pd, &cq) {
                    Ok(qp) => request.accept(&qp, ConnParam::default()).await.map_err(error::cm),
                    Err(error) => Err(error),
                };
                into.borrow_mut().push(outcome);
            }
        }));
        let (pd, cq) = queues(client)?;
        Ok(Ground { dst, pd, cq, accepted })
    }

    async fn connect(&self, kept: &mut Vec<Connection>, count: u32) -> Result<(), CliError> {
        for _ in 0..count {
            let qp = queue_pair(&self.pd, &self.cq)?;
            let connecting = qp.device().connect(ConnectOptions::new(self.dst, &qp));
            kept.push(connecting.await.map_err(error::cm)?);
        }
        match self.accepted.borrow().iter().find_map(|outcome| outcome.as_ref().err()) {
            Some(error) => Err(CliError::failed(error)),
            None => Ok(()),
        }
    }
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
