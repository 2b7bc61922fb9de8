//! The emulated READ loop beside `everywire nvme bench`: the same bytes, as many in flight, as bare UDP datagrams.
//!
//! Its other side is a second process of this program, as the target's is, so that both measurements share the processors
//! in the same way. What a READ loop is, and which checks it makes, is told in `everywire_net::baseline`.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use everywire_net::baseline::{self, BaselineOptions, BaselineResult, Client};
use everywire_net::{DeviceSpec, OpenError, OpenOptions};

use crate::device;
use crate::error::{CliError, print};
use crate::second::{self, SecondProcess, places};

/// Most bytes that the READs go to.
pub const MAX_REGION: u64 = 1 << 30;
/// Loopback addresses tried for the client, from 127.0.0.2 on.
const TRIES: u8 = 60;
/// RoCE v2's port, in the line that says that the other side is there.
const PORT: u16 = 4791;

/// Flags of the other side.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// Its address, as a device's name.
    device: String,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct ReadLoop {
    /// Bytes of a READ.
    pub size: u64,
    /// READs in flight.
    pub depth: u16,
    /// Bytes they go to: those of the namespace, 1 GiB at most.
    pub region: u64,
    /// How long.
    pub duration: Duration,
}

impl ReadLoop {
    /// Measures against a second process; READs a second.
    pub fn measure(self) -> Result<BaselineResult, CliError> {
        let arguments = |device: &str| ["nvme", "baseline-server", device].map(str::to_owned).to_vec();
        let second = SecondProcess::start(&places::loopback("rocev2", ""), arguments)?;
        let options = BaselineOptions {
            size: self.size as usize,
            depth: self.depth.into(),
            region: self.region.min(MAX_REGION) as usize,
            duration: self.duration,
            ..BaselineOptions::default()
        };
        let mut client = open(second.addr().ip(), &options)?;
        client.read_loop().map_err(|e| CliError::failed(format_args!("baseline: {e}")))
    }
}

/// A client at the first free loopback address.
fn open(peer: IpAddr, options: &BaselineOptions) -> Result<Client, CliError> {
    let mut taken = String::new();
    for last in 2..2 + TRIES {
        match Client::open(IpAddr::from([127, 0, 0, last]), 0, peer, options) {
            Ok(client) => return Ok(client),
            Err(e @ OpenError::InUse { .. }) => taken = e.to_string(),
            Err(e) => return Err(CliError::failed(format_args!("baseline: {e}"))),
        }
    }
    Err(CliError::failed(format_args!("baseline: no free loopback address: {taken}")))
}

/// Answers READs until standard input ends.
pub fn serve(args: &ServerArgs) -> Result<(), CliError> {
    second::end_with_stdin();
    let spec = DeviceSpec::parse(&args.device).map_err(CliError::usage)?;
    // Whoever has the address already has it after the line below, too, and is named here.
    drop(device::open(&args.device, &OpenOptions::default())?);
    print(format_args!("listening on {}", std::net::SocketAddr::new(spec.ip, PORT)))?;
    let options = BaselineOptions::default().port;
    baseline::serve(spec.ip, 0, &options, &AtomicBool::new(false)).map_err(CliError::failed)
}
