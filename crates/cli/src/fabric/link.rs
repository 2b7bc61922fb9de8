//! `everywire fabric link`: pulls a cable of a running fabric, or puts it back.

use clap::ValueEnum;
use everywire_net::fabric_host::control;

use crate::error::{CliError, print};

/// Flags of `everywire fabric link`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  everywire fabric link down fat-tree-16 leaf1/5")]
pub struct Args {
    /// Pull it, or put it back.
    #[arg(value_enum)]
    to: To,
    /// The running fabric's name.
    fabric: String,
    /// The port at either end of the cable: NODE/PORT.
    port: String,
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
    control::set_link(&args.fabric, &args.port, up).map_err(CliError::failed)?;
    print(format_args!("link at {} is {}", args.port, if up { "up" } else { "down" }))
}
