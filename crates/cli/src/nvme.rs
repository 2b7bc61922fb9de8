//! `everywire nvme`: the initiator. NVMe over Fabrics 1.1, NVMe RDMA Transport 1.0.
//!
//! One file an action; what they share is here: who the host is, the device toward the target, the subsystem where none was
//! named, and the namespace. The protocol is `everywire_nvmeof::rdma`'s.

mod attach;
mod baseline;
pub mod bench;
mod discover;
mod info;
pub mod io;

use std::net::SocketAddr;
use std::time::Duration;

use everywire_net::{Host, TokioRt};
use everywire_nvmeof::Nqn;
use everywire_nvmeof::pdu::discovery::{DiscoveryEntry, SUBTYPE_NVM};
use everywire_nvmeof::pdu::fabrics::{InvalidParameter, connect_at};
use everywire_nvmeof::rdma::initiator::NvmeErrorKind;
use everywire_nvmeof::rdma::{self, Controller, HostIdentity, InitiatorOptions, Namespace, NvmeError};
use everywire_verbs::Device;
use everywire_verbs::rt::Rt;
use uuid::Uuid;

use crate::attached::while_attached;
use crate::device::DeviceArgs;
use crate::error::{self, CliError};
use crate::patience::{self, Cure};
use crate::peer::PeerName;
use crate::serve::config::NVME_PORT;

/// How long a command line waits for a controller that was lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(30);
/// Namespace of the host identities derived from a machine's (a random UUID, fixed for ever).
const HOST_SPACE: Uuid = Uuid::from_u128(0x3b0e_1d0a_8d6c_4d5f_b1c4_6f52_0c3e_91d7);

/// Flags of `everywire nvme`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire serve --nvme nqn.2026-11.example:disk=ram:256MiB &\n  \
    everywire nvme discover 127.0.0.1\n  \
    everywire nvme write 127.0.0.1 nqn.2026-11.example:disk --offset 1MiB < image\n  \
    everywire nvme read 127.0.0.1 nqn.2026-11.example:disk --offset 1MiB --length 64KiB > copy\n  \
    everywire nvme attach 127.0.0.1 nqn.2026-11.example:disk --nbd /run/disk.sock\n  \
    everywire nvme bench 127.0.0.1 --rw randread --depth 32 --json\n  \
    everywire nvme bench --baseline            a RAM disk here, beside the same READs as raw UDP")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Ask a discovery service what it offers.
    Discover(discover::Args),
    /// Show a controller and its namespaces.
    Info(info::Args),
    /// Read bytes to standard output.
    Read(io::ReadArgs),
    /// Write standard input to a namespace.
    Write(io::WriteArgs),
    /// Keep a namespace attached as a Network Block Device, for the kernel's nbd driver, QEMU, libnbd's tools.
    Attach(attach::Args),
    /// Measure I/O: IOPS, GB/s, latency. Writing tests destroy what the namespace holds.
    Bench(bench::Args),
    /// The other side of `bench --baseline`.
    #[command(hide = true)]
    BaselineServer(baseline::ServerArgs),
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
        Action::BaselineServer(args) => baseline::serve(args),
    }
}

impl Args {
    /// Whether it goes on until it is told to stop, and says meanwhile what happens.
    pub fn serves(&self) -> bool {
        matches!(self.action, Action::Attach(_))
    }
}

/// Options of a command that somebody waits for.
pub fn impatient() -> InitiatorOptions {
    InitiatorOptions { loss_timeout: LOSS_TIMEOUT, ..InitiatorOptions::default() }
}

/// Where to, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Target {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The target: ADDRESS or ADDRESS:PORT ([v6]:PORT); the port of NVMe over RDMA is 4420.
    #[arg(value_name = "TARGET")]
    target: PeerName,
    /// Host NQN [default: that of /etc/nvme/hostnqn, or derived from the machine's identity].
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<Nqn>,
}

/// A subsystem's namespace.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    #[command(flatten)]
    target: Target,
    /// The subsystem [default: the only one that the target offers].
    #[arg(value_name = "NQN")]
    subsystem: Option<Nqn>,
    /// The namespace [default: the first].
    #[arg(long)]
    nsid: Option<u32>,
}

/// What every action runs on. The host's driver is a task of the runtime.
pub struct Ground {
    runtime: TokioRt,
    host: Host,
    /// The target.
    pub address: SocketAddr,
    /// Who we are.
    pub identity: HostIdentity,
}

impl Target {
    /// Opens the device toward the target.
    pub fn open(&self) -> Result<Ground, CliError> {
        let address = self.target.socket_addr(NVME_PORT);
        let host = self.device.open_for_peer(address)?;
        let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
        host.run(&runtime).map_err(CliError::failed)?;
        let identity = identity(self.host_nqn.as_ref(), &runtime.handle());
        Ok(Ground { runtime, host, address, identity })
    }
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
        format!("nvme {} - {}", self.device().name(), self.address)
    }

    /// What the target offers to this host.
    pub async fn discover(&self) -> Result<Vec<DiscoveryEntry>, CliError> {
        let rt = self.rt();
        let attempt =
            async || rdma::discover(&rt, self.device(), self.address, &self.identity).await.map_err(nvme);
        patience::connect(self.who(), attempt, async |pause| rt.sleep(pause).await).await
    }

    /// The subsystem named, or the only one there is.
    async fn subsystem(&self, named: Option<&Nqn>) -> Result<Nqn, CliError> {
        if let Some(nqn) = named {
            return Ok(nqn.clone());
        }
        let entries = self.discover().await?;
        let mut names: Vec<&str> =
            entries.iter().filter(|e| e.subtype == SUBTYPE_NVM).map(DiscoveryEntry::subsystem).collect();
        names.sort_unstable();
        names.dedup();
        match names[..] {
            [] => Err(CliError::peer(format_args!("{} offers no subsystem to this host", self.address))),
            [only] => only
                .parse()
                .map_err(|e| CliError::peer(format_args!("{}: subsystem {only:?}: {e}", self.address))),
            _ => Err(CliError::usage(format_args!(
                "{} offers {} subsystems, name one: {}",
                self.address,
                names.len(),
                names.join(" ")
            ))),
        }
    }

    /// Connects.
    pub async fn connect(
        &self,
        named: Option<&Nqn>,
        options: InitiatorOptions,
    ) -> Result<Controller, CliError> {
        let subsystem = self.subsystem(named).await?;
        let (rt, device) = (self.rt(), self.device());
        let attempt = async || {
            let connecting =
                Controller::connect(&rt, device, self.address, &subsystem, &self.identity, options.clone());
            connecting.await.map_err(nvme)
        };
        patience::connect(self.who(), attempt, async |pause| rt.sleep(pause).await).await
    }
}

impl Place {
    /// Opens the device.
    pub fn open(&self) -> Result<Ground, CliError> {
        self.target.open()
    }

    /// Connects, and picks the namespace.
    pub async fn namespace(
        &self,
        ground: &Ground,
        options: InitiatorOptions,
    ) -> Result<(Controller, Namespace), CliError> {
        let controller = ground.connect(self.subsystem.as_ref(), options).await?;
        self.check_nsid(ground, &controller)?;
        let first = controller.namespaces().first().map(|n| n.nsid);
        let nsid = self.nsid.or(first).ok_or_else(|| {
            CliError::peer(format_args!("{}: the subsystem has no namespace", ground.address))
        })?;
        let namespace = controller.namespace(nsid).map_err(nvme)?;
        Ok((controller, namespace))
    }

    /// A namespace that was named must be one of those that are there.
    fn check_nsid(&self, ground: &Ground, controller: &Controller) -> Result<(), CliError> {
        let there: Vec<u32> = controller.namespaces().iter().map(|n| n.nsid).collect();
        let Some(nsid) = self.nsid.filter(|nsid| !there.contains(nsid)) else { return Ok(()) };
        let numbers: Vec<String> = there.iter().map(u32::to_string).collect();
        let others = match there.len() {
            0 => "there is none".to_owned(),
            1 => format!("there is {}", numbers[0]),
            _ => format!("there are {}", numbers.join(", ")),
        };
        Err(CliError::usage(format_args!("{}: there is no namespace {nsid}; {others}", ground.address)))
    }
}

/// A failure of the initiator, by blame.
pub fn nvme(source: NvmeError) -> CliError {
    match &*source.kind {
        // The text of the connection manager has both addresses, and why.
        NvmeErrorKind::Cm(cm) => error::cm_with(cm, format_args!("subsystem {}: {cm}", source.subsystem)),
        NvmeErrorKind::Verbs(_) => CliError::failed(source),
        NvmeErrorKind::Argument(_) => CliError::usage(source),
        NvmeErrorKind::Parameter { parameter, .. }
            if *parameter == InvalidParameter::data(connect_at::DATA_SUBNQN) =>
        {
            CliError::peer(format_args!(
                "{source}: no such subsystem there, or this host may not use it; `everywire nvme discover {}` lists those \
                it may",
                source.remote
            ))
        }
        NvmeErrorKind::ControllerGone(_) => CliError::peer(source).with_cure(Cure::StartingOver),
        _ => CliError::peer(source),
    }
}

/// The host's identity: as named, as the system's NVMe tools have it, or derived from the machine's.
fn identity(named: Option<&Nqn>, rt: &Rt) -> HostIdentity {
    let line = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let random = || Uuid::from_u64_pair(rt.entropy(), rt.entropy());
    let derived = || match line("/etc/machine-id").filter(|id| !id.is_empty()) {
        Some(machine) => Uuid::new_v5(&HOST_SPACE, machine.as_bytes()),
        None => random(),
    };
    let id = line("/etc/nvme/hostid").and_then(|text| text.parse::<Uuid>().ok());
    let nqn = line("/etc/nvme/hostnqn").and_then(|text| text.parse::<Nqn>().ok());
    match (named, nqn, id) {
        // A host identifier belongs to one NQN, so another name gets another identifier.
        (Some(nqn), _, _) => {
            let id = Uuid::new_v5(&HOST_SPACE, nqn.as_str().as_bytes());
            HostIdentity { nqn: nqn.clone(), id: id.into_bytes() }
        }
        (None, Some(nqn), Some(id)) => HostIdentity { nqn, id: id.into_bytes() },
        _ => HostIdentity::from_uuid(derived()),
    }
}
