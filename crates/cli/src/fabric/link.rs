//! `everywire fabric link`: pulls a cable of a running fabric, or puts it back.

use clap::ValueEnum;
use everywire_net::fabric_host::control::{self, Cable};

use crate::error::{CliError, print};

/// Flags of `everywire fabric link`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  everywire fabric link down fat-tree-16 leaf1/5\n  \
    everywire fabric link up fat-tree-16 leaf1/5 - spine1/1")]
pub struct Args {
    /// Pull it, or put it back.
    #[arg(value_enum)]
    to: To,
    /// The running fabric's name.
    fabric: String,
    /// The cable: NODE/PORT of either end, or both as `fabric show` names them, "NODE/PORT - NODE/PORT".
    #[arg(required = true, num_args = 1..=3, value_name = "CABLE")]
    cable: Vec<String>,
}

/// What becomes of the cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum To {
    /// Pulled.
    Down,
    /// Put back.
    Up,
}

/// Does it.
pub fn run(args: &Args) -> Result<(), CliError> {
    let up = args.to == To::Up;
    let cable: Cable = args.cable.join(" ").parse().map_err(CliError::usage)?;
    let news = control::set_link(&args.fabric, &cable, up).map_err(super::control)?;
    let (state, before) = (if up { "up" } else { "down" }, if news { "" } else { ", as it was" });
    print(format_args!("link at {cable} is {state}{before}"))
}
