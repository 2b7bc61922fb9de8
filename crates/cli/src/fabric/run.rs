//! `everywire fabric run`: a subnet in real time, until SIGINT or SIGTERM.
//!
//! Standard output gets a line `ready` once every link carries data; without a subnet manager of ours that comes once the doors
//! are open, and `active` once somebody else's has brought every link up. What happens besides goes to standard error.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};

use clap::ValueEnum;
use everywire_net::TokioRt;
use everywire_net::fabric_host::plan::Engine;
use everywire_net::fabric_host::{Fabric, FabricEvent, FabricOptions, Plan};

use super::plan_of;
use crate::error::{CliError, print};
use crate::second;
use crate::serve::Signals;

/// Names in one line.
const MAX_SHOWN: usize = 12;
/// Longest name of an ibsim server, in bytes: it is in a socket's address, with what libumad2sim adds.
const MAX_IBSIM_NAME: usize = 64;

/// Flags of `everywire fabric run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire fabric run examples/fat-tree-16.toml\n\n\
    and in two other terminals:\n  \
    everywire ping --listen --device ib:fat-tree-16/h2/1\n  \
    everywire ping 10.77.0.2 --device ib:fat-tree-16/h1/1\n\n\
    With OpenSM as subnet manager, and infiniband-diags (Debian: ibsim-utils, opensm, infiniband-diags):\n  \
    everywire fabric run examples/fat-tree-16.toml --no-sm --ibsim sim\n  \
    export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so\n  \
    SIM_HOST=h1 opensm -f opensm.log\n  \
    SIM_HOST=h2 ibnetdiscover")]
pub struct Args {
    /// The topology file.
    topology: String,
    /// Run without a subnet manager of ours: another one, such as OpenSM, is to come by --ibsim.
    #[arg(long)]
    no_sm: bool,
    /// How routes are made, instead of what the file says.
    #[arg(long, value_enum)]
    engine: Option<EngineArg>,
    /// Let OpenSM and infiniband-diags in by ibsim's protocol, under this name (their IBSIM_SOCKNAME; they take `sim`
    /// if they are told nothing).
    #[arg(long, value_name = "NAME", value_parser = ibsim_name)]
    ibsim: Option<String>,
    /// The fabric's name, instead of the file's.
    #[arg(long)]
    name: Option<String>,
    /// Write every packet on every link to this pcapng file.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// End when standard input does.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

/// The name of an ibsim server: part of an abstract socket's, and clients have it from their environment.
fn ibsim_name(text: &str) -> Result<String, String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > MAX_IBSIM_NAME || !text.bytes().all(legal) {
        return Err(format!(
            "wanted is a name of 1 to {MAX_IBSIM_NAME} letters, digits, '-', '_' or '.', as in `--ibsim sim`, which clients \
             have as IBSIM_SOCKNAME"
        ));
    }
    Ok(text.to_owned())
}

/// How routes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineArg {
    /// Shortest paths; loops are named and warned of.
    Minhop,
    /// Up, then down.
    Updn,
    /// For fat trees.
    Ftree,
}

impl From<EngineArg> for Engine {
    fn from(engine: EngineArg) -> Engine {
        match engine {
            EngineArg::Minhop => Engine::MinHop,
            EngineArg::Updn => Engine::UpDown,
            EngineArg::Ftree => Engine::FatTree,
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), CliError> {
    let mut plan = plan_of(&args.topology)?;
    if let Some(name) = &args.name {
        plan.name = name.clone();
        plan.check().map_err(CliError::usage)?;
    }
    if let Some(engine) = args.engine {
        plan.engine = engine.into();
    }
    if args.until_stdin_ends {
        second::stop_with_stdin();
    }
    let options = FabricOptions {
        subnet_manager: !args.no_sm,
        ibsim: args.ibsim.clone(),
        capture: args.capture.clone(),
    };
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    runtime.block_on(async {
        // Signals count from before the first line of output, so that whoever reads it may send one.
        let mut signals = Signals::new()?;
        let (fabric, events) = start(plan, &options)?;
        tracing::info!("fabric {} runs; programs attach with --device ib:{0}/HOST/PORT", fabric.name());
        if args.no_sm {
            print("ready")?;
        }
        let up = if args.no_sm { "active" } else { "ready" };
        let teller = std::thread::spawn(move || events.into_iter().try_for_each(|event| tell(&event, up)));
        let name = signals.next().await;
        tracing::info!("{name}: stopping");
        drop(fabric);
        // It ends with the fabric, whose events it tells.
        teller.join().map_err(|_| CliError::failed("the thread that tells what happens has panicked"))?
    })
}

/// Starts a fabric, and hears what it tells.
pub fn start(plan: Plan, options: &FabricOptions) -> Result<(Fabric, Receiver<FabricEvent>), CliError> {
    let (sender, events) = channel();
    let tell = move |event| drop(sender.send(event));
    let fabric = Fabric::start(plan, options, tell).map_err(CliError::failed)?;
    Ok((fabric, events))
}

/// Names, the first of many.
pub fn list(names: &[String]) -> String {
    let shown = names.iter().take(MAX_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn tell(event: &FabricEvent, up: &str) -> Result<(), CliError> {
    match event {
        FabricEvent::Ready => print(up)?,
        FabricEvent::SubnetManager { at, text, warning: true } => {
            tracing::warn!("subnet manager at {at}: {text}");
        }
        FabricEvent::SubnetManager { at, text, .. } => tracing::info!("subnet manager at {at}: {text}"),
        FabricEvent::NoWay { ports } if ports.is_empty() => {
            tracing::info!("the subnet manager has a way to every host again");
        }
        FabricEvent::NoWay { ports } => {
            tracing::warn!("no way from the subnet manager to: {}", list(ports));
        }
        FabricEvent::Attached { port, pid } => tracing::info!("{port}: process {pid} is attached"),
        FabricEvent::Left { port, pid, why } => tracing::info!("{port}: process {pid}: {why}"),
        FabricEvent::Ibsim { port, what } => tracing::info!("ibsim at {port}: {what}"),
        FabricEvent::Link { port, up: true } => tracing::info!("the cable at {port} is back"),
        FabricEvent::Link { port, up: false } => tracing::info!("the cable at {port} is pulled"),
        other => tracing::info!("{other:?}"),
    }
    Ok(())
}
