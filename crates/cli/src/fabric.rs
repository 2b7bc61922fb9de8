//! `everywire fabric`: an InfiniBand subnet described by a file. `show` draws it, `run` runs it in real time, `link` pulls and
//! puts back its cables.
//!
//! Programs attach to a running fabric by `--device ib:FABRIC/HOST/PORT`; OpenSM and infiniband-diags by ibsim's protocol.

mod draw;
mod link;
pub mod run;
mod show;
pub mod topology;

use std::path::Path;

use everywire_net::fabric_host::snapshot::Snapshot;
use everywire_net::fabric_host::{self, Plan};

use crate::error::CliError;

/// Flags of `everywire fabric`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A topology file:\n\n  \
    sm = \"h1/1\"                  # the host's port where the subnet manager is\n  \
    engine = \"ftree\"             # or \"updn\", \"minhop\"\n  \
    [generate]\n  \
    fat_tree = { hosts = 16, radix = 8 }\n\n\
    or, written out:\n\n  \
    links = [\"h1 - s1/1\", \"h2 - s1/2\"]\n  \
    [[host]]\n  \
    name = \"h1\"                  # and ports, guid, ip\n  \
    [[host]]\n  \
    name = \"h2\"\n  \
    [[switch]]\n  \
    name = \"s1\"\n  \
    ports = 8\n\n\
    The folder examples/ has a fat tree, a ring, a torus, and one with every key that there is.\n\n\
    Fabrics are per user: what runs under another user's name is neither seen nor reached, and two users may each have one of\n\
    the same name. Programs attach as the user who runs the fabric.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Draw a fabric: of a topology file, or one that runs.
    Show(show::Args),
    /// Run a fabric in real time until SIGINT or SIGTERM.
    Run(run::Args),
    /// Pull a cable of a running fabric, or put it back.
    Link(link::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    match &args.command {
        Command::Show(args) => show::run(args),
        Command::Run(args) => run::run(args),
        Command::Link(args) => link::run(args),
    }
}

/// A topology file, or the name of a running fabric.
fn snapshot_of(what: &str) -> Result<Snapshot, CliError> {
    let is_file = what.contains('/') || what.ends_with(".toml");
    if is_file {
        return Ok(Snapshot::of_plan(&plan_of(what)?));
    }
    fabric_host::control::show(what).map_err(control)
}

/// A failure of asking a running fabric: what it does not have is wrong usage.
fn control(source: std::io::Error) -> CliError {
    match source.kind() {
        std::io::ErrorKind::InvalidInput => CliError::usage(source),
        _ => CliError::failed(source),
    }
}

/// The plan of a topology file.
fn plan_of(path: &str) -> Result<Plan, CliError> {
    topology::read(Path::new(path))
}
