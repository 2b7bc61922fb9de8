//! The `everywire` program: one file a command. Flags are parsed by clap, resolved into what the command needs, then run.
//!
//! Exit codes: 0 success; 1 the work failed (the message says who, which step and which limit or clause); 2 the command line or a
//! configuration file is wrong; 3 the peer or the network did not answer, refused or was lost, or the fabric ended; 4 data read
//! back differs from data written.
#![forbid(unsafe_code)]

mod attached;
mod bench;
mod check;
mod decode;
mod demo;
mod device;
mod devices;
mod error;
mod fabric;
mod iscsi;
mod logical_unit;
mod nbd;
mod nvme;
mod patience;
mod peer;
mod perf;
mod ping;
mod probe;
mod progress;
mod samples;
mod second;
mod serve;
mod srp;
mod words;

use std::io::IsTerminal;

use clap::{Parser, Subcommand};

/// RDMA on every wire, in user space.
#[derive(Debug, Parser)]
#[command(
    name = "everywire",
    version,
    about = "RDMA on every wire, in user space: no card, no kernel module, no root",
    after_help = "Start with `everywire demo`.\n\n\
        Devices are named by their wire and address: rocev2:192.0.2.1, rocev2:::1, rocev2:fe80::1%eth0.\n\
        Exit codes: 0 success, 1 failure here, 2 wrong usage or configuration,\n  \
        3 the peer or the network (no answer, refused, lost, or the fabric ended), 4 data mismatch.\n\
        EVERYWIRE_LOG=debug (or everywire_nvmeof=trace, …) prints what happens inside."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a configuration of `everywire serve` without opening anything, and say what it serves.
    Check(check::Args),
    /// See it work: a target and an initiator in two processes here, bytes written, read back and compared, and measured.
    Demo(demo::Args),
    /// Print the packets of a capture file: headers by their standard names, ICRC good or bad, the protocol above.
    Decode(decode::Args),
    /// List the devices that can be opened here, their addresses, MTU and capabilities.
    Devices(devices::Args),
    /// Measure bandwidth or latency, beside raw UDP in the same run.
    Perf(perf::Args),
    /// An InfiniBand subnet: draw it, run it in real time, pull its cables.
    Fabric(fabric::Args),
    /// NVMe over RDMA: discover, look, read, write, attach, measure.
    Nvme(nvme::Args),
    /// iSCSI: discover, log in, read, write.
    Iscsi(iscsi::Args),
    /// SRP: look, read, write, attach, measure.
    Srp(srp::Args),
    /// Serve disks: to NVMe over RDMA hosts, iSCSI and SRP initiators, Linux's among them.
    Serve(serve::Args),
    /// Ping over RDMA: rping's protocol, with `everywire ping --listen` or rping on the other side.
    Ping(ping::Args),
}

/// What a small server logs: beside warnings, whether its port is lost or there again.
const SERVES: &str = "warn,everywire_net::driver=info";

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    end_on_panic();
    // A server tells what it does; a client's errors are its command's outcome, not to be told twice.
    init_logging(match &cli.command {
        Command::Serve(_) | Command::Fabric(_) => "warn,everywire=info",
        Command::Nvme(args) if args.serves() => "warn,everywire=info",
        Command::Srp(args) if args.serves() => "warn,everywire=info",
        Command::Iscsi(args) if args.serves() => "warn,everywire=info",
        Command::Ping(args) if args.serves() => SERVES,
        Command::Perf(args) if args.serves() => SERVES,
        _ => "warn,everywire_nvmeof::rdma::initiator::queue=error,everywire_net::driver::fabric=error",
    });
    let result = match cli.command {
        Command::Check(args) => check::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Decode(args) => decode::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Nvme(args) => nvme::run(&args),
        Command::Iscsi(args) => iscsi::run(&args),
        Command::Srp(args) => srp::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Ping(args) => ping::run(&args),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

/// A panic on whatever thread or task ends the program: a server that has lost a part of itself must not stay and look well.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::exit(1);
    }));
}

/// Logs go to standard error, so that standard output stays data.
fn init_logging(default: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("EVERYWIRE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
