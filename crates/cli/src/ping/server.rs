//! The answering side: reads what the client advertises, writes it back.

use std::net::SocketAddr;

use everywire_net::TokioRt;
use everywire_verbs::rt::{Either, Rt, select};
use everywire_verbs::{
    ConnParam, ConnectRequest, Device, DisconnectReason, ListenOptions, Listener, MemoryRegion, SendOp,
    SendWr,
};

use super::{ADVERT_LEN, Advert, Args, Endpoint, MAX_SIZE, between};
use crate::error::{self, CliError, print};
use crate::serve::Signals;
use crate::words::count;

/// Serves one client, or with `--persistent` one after another. SIGTERM or SIGINT ends it in order.
pub fn run(args: &Args) -> Result<(), CliError> {
    let host = args.device.open_to_serve()?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    let device = host.device();
    let addr = crate::device::listen_at(&host, args.port)?;
    let shown = crate::device::listening(&host, addr);
    let listener = device.listen(addr, ListenOptions::default()).map_err(error::cm)?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        eprintln!("ping: {shown}");
        match select(answer_all(args, &runtime.handle(), device, &listener), signals.next()).await {
            Either::First(ended) => ended,
            Either::Second(name) => {
                eprintln!("ping: stopped by {name}");
                Ok(())
            }
        }
    })
}

async fn answer_all(args: &Args, rt: &Rt, device: &Device, listener: &Listener) -> Result<(), CliError> {
    loop {
        let request = listener.next_request().await.map_err(CliError::failed)?;
        let served = serve(args, rt, device, request).await;
        // A client whose fabric is gone has not been served: the next may come with the next fabric.
        if !args.persistent && !matches!(served, Ok(Served::PortLost)) {
            return served.map(drop);
        }
        if let Err(e) = served {
            eprintln!("everywire: {e}");
        }
    }
}

/// How a client was served.
enum Served {
    /// To its end.
    Whole,
    /// Until the port was gone.
    PortLost,
}

async fn serve(args: &Args, rt: &Rt, device: &Device, request: ConnectRequest) -> Result<Served, CliError> {
    let (local, peer) = (request.local(), request.peer());
    let pd = device.alloc_pd().map_err(CliError::failed)?;
    let mut end = Endpoint::new(rt, &pd, between(local, peer))?;
    let buffer = pd.register(MAX_SIZE as usize, device.read_sink_access()).map_err(CliError::failed)?;
    let asked = request.param();
    let param = ConnParam {
        responder_resources: asked.initiator_depth.clamp(1, 16),
        initiator_depth: asked.responder_resources.clamp(1, 16),
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    };
    let connection = request.accept(&end.qp, param).await.map_err(error::cm)?;
    end.connection = Some(connection.clone());
    let mut turns = 0;
    let outcome = answer(args, &mut end, &buffer, peer, &mut turns).await;
    if let Err(error) = outcome {
        eprintln!("ping: {peer} is lost after {}", count(turns, "turn", "s"));
        return Err(error);
    }
    let reason = connection.disconnect().await;
    if reason == DisconnectReason::PortLost {
        eprintln!("ping: {peer} is lost after {}: {reason}", count(turns, "turn", "s"));
        return Ok(Served::PortLost);
    }
    eprintln!("ping: {peer} left after {}", count(turns, "turn", "s"));
    Ok(Served::Whole)
}

/// Answers until the client disconnects.
async fn answer(
    args: &Args,
    end: &mut Endpoint,
    buffer: &MemoryRegion,
    peer: SocketAddr,
    turns: &mut usize,
) -> Result<(), CliError> {
    while let Some(source) = end.receive().await? {
        let len = within_limit(&end.who, source)?;
        let read = SendWr::new(0, SendOp::Read { remote: source.remote() }).with_sges([buffer.sge(..len)]);
        end.finish(read).await?;
        if !args.json {
            print(format_args!("{} bytes from {peer}: {}", len, printable(buffer, len)?))?;
        }
        end.send([0; ADVERT_LEN])?;
        let Some(sink) = end.receive().await? else {
            return Err(CliError::peer(format_args!("{}: the client left in the middle of a turn", end.who)));
        };
        let len = within_limit(&end.who, sink)?;
        let write = SendWr::new(0, SendOp::Write { remote: sink.remote() }).with_sges([buffer.sge(..len)]);
        end.finish(write).await?;
        end.send([0; ADVERT_LEN])?;
        *turns += 1;
    }
    Ok(())
}

fn within_limit(who: &str, advert: Advert) -> Result<usize, CliError> {
    if advert.size > MAX_SIZE {
        return Err(CliError::peer(format_args!(
            "{who}: a buffer of {} bytes; the limit is {MAX_SIZE}",
            advert.size
        )));
    }
    Ok(advert.size as usize)
}

/// The first characters of what was read.
fn printable(buffer: &MemoryRegion, len: usize) -> Result<String, CliError> {
    let bytes = buffer.read_vec(0, len.min(40)).map_err(CliError::failed)?;
    Ok(bytes
        .iter()
        .take_while(|&&b| b != 0)
        .map(|&b| if b.is_ascii_graphic() || b == b' ' { b as char } else { '.' })
        .collect())
}
