//! `everywire perf`: bandwidth and latency of one operation, beside what raw UDP does in the same run.
//!
//! With no peer it starts a second `everywire perf --listen` on the same wire, so that two processes talk. The
//! sides agree on the test in the CM private data ([`hello`]). Results are payload only, in units of 10^9 bits.

pub mod client;
pub mod datagram;
mod hello;
mod idle;
mod latency;
mod report;
mod server;
pub mod throughput;

use std::time::Duration;

use clap::ValueEnum;
use everywire_verbs::{Device, QpType, WireFeature};

use crate::device::DeviceArgs;
use crate::error::CliError;
use crate::peer::PeerName;

/// The port that `perf --listen` takes.
pub const DEFAULT_PORT: u16 = 18515;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub enum Operation {
    /// RDMA WRITE.
    Write = 1,
    /// RDMA READ.
    Read = 2,
    /// SEND.
    Send = 3,
    /// FETCH_ADD of 8 bytes.
    Atomic = 4,
}

/// The transport service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 1,
    /// Unreliable connection: WRITE and SEND.
    Uc = 2,
    /// Unreliable datagram: SEND of at most one MTU.
    Ud = 3,
}

impl Operation {
    /// Why a device cannot do it; `None` if it can.
    fn lacked_by(self, device: &Device) -> Option<&'static str> {
        device.config().lacks(WireFeature::Atomics).filter(|_| self == Operation::Atomic)
    }

    /// As the standard writes it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Write => "WRITE",
            Operation::Read => "READ",
            Operation::Send => "SEND",
            Operation::Atomic => "FETCH_ADD",
        }
    }
}

impl Operation {
    /// As the command line has it.
    fn flag(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Send => "send",
            Operation::Atomic => "atomic",
        }
    }
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Ud => "UD",
        }
    }

    fn qp_type(self) -> QpType {
        match self {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        }
    }
}

/// Flags of `everywire perf`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  everywire perf --connections 10000          memory of idle connections, iWARP and RC\n  everywire perf write --baseline            two processes on loopback, beside raw UDP\n  \
    everywire perf send --latency --size 64\n  everywire perf --listen --device rocev2:192.0.2.7\n  \
    everywire perf read 192.0.2.7 --depth 32 --size 4096 --json"
)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// What to measure.
    #[arg(value_enum, required_unless_present_any = ["listen", "connections"])]
    operation: Option<Operation>,
    /// The peer, which runs `everywire perf --listen`; none: a second process here.
    target: Option<PeerName>,
    /// Be the peer.
    #[arg(long, conflicts_with_all = ["operation", "target", "baseline"])]
    listen: bool,
    /// End when standard input does.
    #[arg(long, hide = true, requires = "listen")]
    until_stdin_ends: bool,
    /// Accept idle connections only.
    #[arg(long, hide = true, requires = "listen")]
    idle: bool,
    /// Port to listen on.
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Measure the time of one operation at a time (a ping-pong for WRITE and SEND).
    #[arg(long)]
    latency: bool,
    /// Transport service.
    #[arg(long, value_enum, default_value = "rc")]
    transport: Service,
    /// Bytes of a message [default: 65536; 64 with --latency; the path MTU on UD].
    #[arg(short, long, value_parser = size)]
    size: Option<u32>,
    /// Messages in flight on each connection.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,
    /// Connections (queue pairs) that share the work, at most 1024. Without an operation: make so many idle ones, and print
    /// the memory of each over iWARP and RC.
    #[arg(short = 'q', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: u32,
    /// Seconds to measure.
    #[arg(short = 'D', long, default_value_t = 2.0)]
    seconds: f64,
    /// Measure raw UDP in the same run (over iWARP: raw TCP with CRC32C at both ends), with the product's own sockets, window, packets and checks, and print the ratio.
    #[arg(long)]
    baseline: bool,
    /// One JSON object: gbit_per_s, msg_per_s, p50_us, p99_us, ratio.
    #[arg(long)]
    json: bool,
}

/// The command line of a peer that ends with its parent.
pub fn listen_arguments(device: &str, port: u16) -> Vec<String> {
    let port = port.to_string();
    ["perf", "--listen", "--until-stdin-ends", "--device", device, "--port", &port]
        .map(str::to_owned)
        .to_vec()
}

impl Args {
    /// Whether it waits for clients.
    pub fn serves(&self) -> bool {
        self.listen
    }
}

/// Measures, or serves a measuring peer.
pub fn run(args: &Args) -> Result<(), CliError> {
    match args.operation {
        None if !args.listen => idle::run(args.connections, args.json),
        None => server::run(args),
        Some(operation) => client::run(args, Plan::resolve(args, operation)?),
    }
}

/// What a client has made of the flags.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    operation: Operation,
    service: Service,
    latency: bool,
    size: u32,
    depth: u32,
    connections: u32,
    duration: Duration,
}

fn size(text: &str) -> Result<u32, String> {
    let bytes = everywire_block::parse_size(text).map_err(|e| e.to_string())?;
    u32::try_from(bytes).map_err(|_| format!("{text} is more than {MAX_SIZE} bytes"))
}

/// The largest message measured.
const MAX_SIZE: u32 = 64 << 20;
/// Most connections that share the work.
const MAX_CONNECTIONS: u32 = 1024;
/// Bytes of a datagram that every path takes.
const UD_SIZE: u32 = 256;
/// Bytes of an atomic's operand.
const ATOMIC_SIZE: u32 = 8;

impl Plan {
    /// Checks the flags against each other.
    fn resolve(args: &Args, operation: Operation) -> Result<Plan, CliError> {
        let allowed = match args.transport {
            Service::Rc => true,
            Service::Uc => matches!(operation, Operation::Write | Operation::Send),
            Service::Ud => operation == Operation::Send,
        };
        if !allowed {
            return Err(CliError::usage(format_args!(
                "{} does not exist on {}: UC has WRITE and SEND, UD has SEND (IBTA table 38)",
                operation.name(),
                args.transport.name()
            )));
        }
        let size = match (operation, args.size) {
            (Operation::Atomic, None | Some(ATOMIC_SIZE)) => ATOMIC_SIZE,
            (Operation::Atomic, Some(other)) => {
                return Err(CliError::usage(format_args!("an atomic has 8 bytes, not {other}")));
            }
            (_, Some(size)) if size == 0 || size > MAX_SIZE => {
                return Err(CliError::usage(format_args!("--size {size}: from 1 to {MAX_SIZE} bytes")));
            }
            (_, Some(size)) => size,
            (_, None) if args.latency => 64,
            // Until the path is known.
            (_, None) if args.transport == Service::Ud => UD_SIZE,
            (_, None) => 65_536,
        };
        if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
            return Err(CliError::usage(format_args!(
                "--seconds {}: more than 0, at most 3600",
                args.seconds
            )));
        }
        if args.connections > MAX_CONNECTIONS {
            return Err(CliError::usage(format_args!(
                "--connections {}: at most {MAX_CONNECTIONS} that work",
                args.connections
            )));
        }
        if args.latency && args.connections != 1 {
            return Err(CliError::usage("--latency measures one connection"));
        }
        Ok(Plan {
            operation,
            service: args.transport,
            latency: args.latency,
            size,
            depth: if args.latency { 1 } else { args.depth },
            connections: args.connections,
            duration: Duration::from_secs_f64(args.seconds),
        })
    }

    /// Messages in flight on one reliable connection.
    pub fn reliable(operation: Operation, size: u32, depth: u32, duration: Duration) -> Plan {
        Plan { operation, service: Service::Rc, latency: false, size, depth, connections: 1, duration }
    }

    /// What the last byte of turn `n` of a ping-pong is: never what it was the turn before, never zero.
    fn turn(n: u64) -> u8 {
        (n % 251 + 1) as u8
    }
}
