//! `everywire srp`: the initiator. SCSI RDMA Protocol over RDMA/CM.
//!
//! One file an action; what they share is here: who the initiator is, the device toward the target, the target port. The
//! protocol is `everywire_srp::rdma`'s.

mod attach;
pub mod bench;
mod discover;
mod info;
mod io;

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use everywire_net::{Host, TokioRt};
use everywire_srp::rdma::initiator::{Disk, SrpErrorKind};
use everywire_srp::rdma::{Initiator, InitiatorOptions, SrpError};
use everywire_srp::{PORT, PortId};
use everywire_verbs::Device;
use everywire_verbs::rt::Rt;
use uuid::Uuid;

use crate::attached::while_attached;
use crate::device::DeviceArgs;
use crate::error::{self, CliError};
use crate::patience;
use crate::peer::PeerName;

/// How long a command line waits for a target that was lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(30);
/// Namespace of the GUIDs derived from a machine's identity (a random UUID, fixed for ever).
const GUIDS: Uuid = Uuid::from_u128(0x41b8_0c63_5f0d_4a27_9b77_d2f6_8e15_a0c4);
/// Bit of a GUID's first byte: given out locally (EUI-64).
const LOCAL: u64 = 0x0200_0000_0000_0000;
/// Bit of a GUID's first byte: of a group, which none of ours is.
const GROUP: u64 = 0x0100_0000_0000_0000;

/// Flags of `everywire srp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire serve --srp disk=ram:256MiB &       prints id_ext=…,ioc_guid=…,dest=…\n  \
    everywire srp info 127.0.0.1 ID_EXT:IOC_GUID\n  \
    everywire srp write 127.0.0.1 ID_EXT:IOC_GUID --offset 1MiB < image\n  \
    everywire srp read 127.0.0.1 id_ext=…,ioc_guid=… --offset 1MiB --length 64KiB > copy\n  \
    everywire srp attach 127.0.0.1 ID_EXT:IOC_GUID --nbd /run/disk.sock")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Ask a port on InfiniBand for its targets, as ibsrpdm does.
    Discover(discover::Args),
    /// Log in, show what was agreed and the logical unit, and log out.
    #[command(visible_alias = "login")]
    Info(info::Args),
    /// Read bytes to standard output.
    Read(io::ReadArgs),
    /// Write standard input to a logical unit.
    Write(io::WriteArgs),
    /// Keep a logical unit attached as a Network Block Device.
    Attach(attach::Args),
    /// Measure I/O. Writing tests destroy what the logical unit holds.
    Bench(bench::Args),
}

/// Runs one action.
pub fn run(args: &Args) -> Result<(), CliError> {
    match &args.action {
        Action::Discover(args) => discover::run(args),
        Action::Info(args) => info::run(args),
        Action::Read(args) => io::read(args),
        Action::Write(args) => io::write(args),
        Action::Attach(args) => attach::run(args),
        Action::Bench(args) => bench::run(args),
    }
}

impl Args {
    /// Whether it goes on until it is told to stop, and says meanwhile what happens.
    pub fn serves(&self) -> bool {
        matches!(self.action, Action::Attach(_))
    }
}

fn service_id(text: &str) -> Result<u64, String> {
    everywire_srp::id::parse_half(text).ok_or_else(|| "1 to 16 hexadecimal digits are needed".to_owned())
}

/// A target port: `ID_EXT:IOC_GUID`, 32 digits, or Linux's `id_ext=…,ioc_guid=…`.
#[derive(Debug, Clone, Copy)]
struct TargetId(PortId);

impl FromStr for TargetId {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetId, String> {
        let field = |name: &str| {
            let value = text.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            value.and_then(everywire_srp::id::parse_half)
        };
        match (field("id_ext"), field("ioc_guid")) {
            (Some(ext), Some(guid)) => Ok(TargetId(PortId::new(ext, guid))),
            _ => text.parse().map(TargetId).map_err(|e: everywire_srp::id::PortIdError| e.to_string()),
        }
    }
}

/// A logical unit of a target.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    #[command(flatten)]
    device: DeviceArgs,
    /// The target's address: ADDRESS or ADDRESS:PORT ([v6]:PORT); the port is 5555.
    #[arg(value_name = "ADDRESS")]
    address: PeerName,
    /// The target port, as `everywire serve` and ibsrpdm print it: ID_EXT:IOC_GUID.
    #[arg(value_name = "TARGET")]
    target: TargetId,
    /// The logical unit.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..16384))]
    lun: u16,
    /// This initiator port, EXTENSION:GUID [default: derived from the machine's identity].
    #[arg(long, value_name = "ID")]
    initiator: Option<PortId>,
    /// Log in to this service of InfiniBand's connection manager, 16 hexadecimal digits as `discover` prints it, instead of
    /// RDMA/CM.
    #[arg(long, value_name = "HEX", value_parser = service_id)]
    service_id: Option<u64>,
    /// RDMA channels.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    channels: u16,
    /// Most bytes of immediate data with a command; 0 sends none.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(0..=65536))]
    immediate: u32,
    /// Describe buffers in pieces of so many bytes, as a scattered buffer would be.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(512..))]
    segment: Option<u32>,
    /// Descriptors that go into a command; the target fetches a longer table.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=255))]
    descriptors: u16,
}

/// What every action runs on. The host's driver is a task of the runtime.
pub struct Ground {
    runtime: TokioRt,
    host: Host,
    /// The target.
    pub address: SocketAddr,
}

impl Ground {
    /// The device.
    pub fn device(&self) -> &Device {
        self.host.device()
    }

    /// The runtime's handle.
    pub fn rt(&self) -> Rt {
        self.runtime.handle()
    }

    /// Runs `work` to its end, or that of the fabric that the device is attached to.
    pub fn block_on<T>(&self, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        self.runtime.block_on(while_attached(&self.host, work))
    }

    /// Runs `work`, which outlives fabrics.
    pub fn block_on_for_good<T>(
        &self,
        work: impl Future<Output = Result<T, CliError>>,
    ) -> Result<T, CliError> {
        self.runtime.block_on(work)
    }

    /// Both ends.
    fn who(&self) -> String {
        format!("srp {} - {}", self.device().name(), self.address)
    }
}

impl Place {
    /// Opens the device.
    pub fn open(&self) -> Result<Ground, CliError> {
        open_ground(&self.device, &self.address)
    }

    /// Logs in; commands wait for a lost target for `loss_timeout`.
    pub async fn log_in(
        &self,
        ground: &Ground,
        loss_timeout: Option<Duration>,
    ) -> Result<Initiator, CliError> {
        let options = InitiatorOptions {
            initiator: self.initiator.unwrap_or_else(|| PortId::new(0, machine())),
            channels: self.channels.into(),
            service_id: self.service_id,
            immediate: self.immediate,
            segment: self.segment,
            descriptors: self.descriptors.into(),
            loss_timeout,
            ..InitiatorOptions::default()
        };
        let (rt, device) = (ground.rt(), ground.device());
        let attempt = async || {
            let connecting = Initiator::connect(&rt, device, ground.address, self.target.0, options.clone());
            connecting.await.map_err(failed)
        };
        patience::connect(ground.who(), attempt, async |pause| rt.sleep(pause).await).await
    }

    /// The same for somebody who waits, and the logical unit.
    pub async fn disk(&self, ground: &Ground) -> Result<(Initiator, Disk), CliError> {
        let initiator = self.log_in(ground, Some(LOSS_TIMEOUT)).await?;
        let disk = initiator.disk(self.lun).await.map_err(failed)?;
        Ok((initiator, disk))
    }
}

/// Opens the device toward an address.
fn open_ground(device: &DeviceArgs, address: &PeerName) -> Result<Ground, CliError> {
    let address = address.socket_addr(PORT);
    let host = device.open_for_peer(address)?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    Ok(Ground { runtime, host, address })
}

/// A failure of the initiator, by blame.
pub fn failed(source: SrpError) -> CliError {
    match &*source.kind {
        // The text of the connection manager has both addresses, and why.
        SrpErrorKind::Cm(cm) => error::cm_with(cm, format_args!("target port {}: {cm}", source.target)),
        SrpErrorKind::Verbs(_) => CliError::failed(source),
        SrpErrorKind::Argument(_) => CliError::usage(source),
        _ => CliError::peer(source),
    }
}

/// A GUID that stands for this machine; one that stays the same while there is a machine-id.
pub fn machine() -> u64 {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let whose = if machine.trim().is_empty() { "everywire" } else { machine.trim() };
    (Uuid::new_v5(&GUIDS, whose.as_bytes()).as_u64_pair().0 | LOCAL) & !GROUP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_ports_as_they_are_printed() {
        let id = PortId::new(0x0002_c903_0000_0002, 0x0002_c903_0000_0001);
        for text in [
            "id_ext=0002c90300000002,ioc_guid=0002c90300000001,dest=192.0.2.1:5555",
            "0002c90300000002:0002c90300000001",
            "0002c903000000020002c90300000001",
        ] {
            assert_eq!(text.parse::<TargetId>().map(|id| id.0), Ok(id), "{text}");
        }
        assert!("id_ext=1".parse::<TargetId>().is_err());
        assert_eq!(machine() >> 56 & 3, 2, "locally given, and no group");
    }
}
