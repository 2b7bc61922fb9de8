//! The pinging side: advertises, waits, compares, and measures each turn.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everywire_net::{Host, TokioRt};
use everywire_verbs::rt::Rt;
use everywire_verbs::{
    Access, ConnParam, ConnectOptions, Connection, MemoryRegion, Pd, VerbsError, WcStatus,
};
use serde_json::json;

use super::{Advert, Args, Endpoint, between};
use crate::attached::while_attached;
use crate::error::{self, CliError, print};
use crate::patience::{self, PATIENCE};
use crate::probe::ACK_TIMEOUT;
use crate::words::count;

/// Pings `peer`.
pub fn run(args: &Args, peer: SocketAddr) -> Result<(), CliError> {
    let host = args.device.open_for_peer(peer)?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    runtime.block_on(while_attached(&host, ping(args, &runtime.handle(), &host, peer)))
}

async fn ping(args: &Args, rt: &Rt, host: &Host, peer: SocketAddr) -> Result<(), CliError> {
    let device = host.device();
    let pd = device.alloc_pd().map_err(CliError::failed)?;
    let own = host.addresses().first().map_or_else(|| "this host".to_owned(), |(ip, _)| ip.to_string());
    let who = format!("ping {own} - {peer}");
    let attempt = async || connect(rt, &pd, &who, peer).await;
    let pause = async |time| rt.sleep(time).await;
    let (mut end, connection) = patience::connect(&who, attempt, pause).await?;
    let buffers = Buffers::new(&pd, args.size).map_err(CliError::failed)?;
    let mut times = Vec::new();
    let outcome = turns(args, peer, &mut end, &buffers, &mut times).await;
    connection.disconnect().await;
    outcome?;
    summary(args, peer, &times)
}

async fn connect(rt: &Rt, pd: &Pd, who: &str, peer: SocketAddr) -> Result<(Endpoint, Connection), CliError> {
    let mut end = Endpoint::new(rt, pd, who.to_owned())?;
    let param = ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ack_timeout: Some(ACK_TIMEOUT),
        ..ConnParam::default()
    };
    let options = ConnectOptions { param, ..ConnectOptions::new(peer, &end.qp) };
    let connection = pd.device().connect(options.timeout(PATIENCE)).await.map_err(error::cm)?;
    end.who = between(connection.local(), peer);
    end.connection = Some(connection.clone());
    Ok((end, connection))
}

/// What is read from, and written to.
struct Buffers {
    source: MemoryRegion,
    sink: MemoryRegion,
}

impl Buffers {
    fn new(pd: &Pd, size: u32) -> Result<Buffers, VerbsError> {
        let source = pd.register(size as usize, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let sink = pd.register(size as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Buffers { source, sink })
    }
}

async fn turns(
    args: &Args,
    peer: SocketAddr,
    end: &mut Endpoint,
    buffers: &Buffers,
    times: &mut Vec<Duration>,
) -> Result<(), CliError> {
    for turn in 0..args.count {
        end.turn = Some(turn);
        let text = pattern(turn, args.size as usize);
        buffers.source.write_at(0, &text).map_err(CliError::failed)?;
        buffers.sink.write_at(0, &vec![0; text.len()]).map_err(CliError::failed)?;
        let start = Instant::now();
        for buffer in [&buffers.source, &buffers.sink] {
            end.send(Advert::of(buffer).emit())?;
            if end.receive().await?.is_none() {
                let why = end.ended(WcStatus::WrFlushErr);
                return Err(CliError::peer(format_args!("{}: {why}", end.place())));
            }
        }
        times.push(start.elapsed());
        let back = buffers.sink.read_vec(0, text.len()).map_err(CliError::failed)?;
        if let Some(at) = (0..text.len()).find(|&at| back[at] != text[at]) {
            let (got, want) = (back[at], text[at]);
            let who = &end.who;
            return Err(CliError::mismatch(format_args!(
                "{who}: turn {turn}: byte {at} came back as {got:#04x}, not {want:#04x}"
            )));
        }
        if !args.json {
            print(format_args!(
                "{} bytes read and written back by {peer}: turn={turn} time={:.1} us",
                text.len(),
                micros(times[times.len() - 1])
            ))?;
        }
        if args.interval > 0 && turn + 1 < args.count {
            end.rt.sleep(Duration::from_millis(args.interval)).await;
        }
    }
    Ok(())
}

/// The text that rping sends: its server writes back up to the first zero byte, so there is just one, at the end.
fn pattern(turn: u32, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{turn}: ").into_bytes();
    text.extend((0..).map(|i: u32| b'A' + ((turn + i) % 58) as u8).take(size));
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn summary(args: &Args, peer: SocketAddr, times: &[Duration]) -> Result<(), CliError> {
    let mut sorted: Vec<f64> = times.iter().copied().map(micros).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |q: f64| sorted.get(((sorted.len().max(1) - 1) as f64 * q) as usize).copied().unwrap_or(0.0);
    if args.json {
        print(json!({"peer": peer.to_string(), "turns": times.len(), "size": args.size, "verified": true,
                   "min_us": at(0.0), "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0)}))?;
    } else {
        print(format_args!(
            "{} of {} bytes, all verified; min/p50/max {:.1}/{:.1}/{:.1} us",
            count(times.len(), "turn", "s"),
            args.size,
            at(0.0),
            at(0.5),
            at(1.0)
        ))?;
    }
    Ok(())
}
