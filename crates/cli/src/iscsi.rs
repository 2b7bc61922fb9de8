//! `everywire iscsi`: the initiator. iSCSI over TCP, RFC 7143, or with `--device` over RDMA (iSER, RFC 7145).
//!
//! One file an action; what they share is here: who the initiator is, its secrets, the target and the session. The protocol is
//! `everywire_iscsi`'s, the sockets are `socket`'s.

mod attach;
pub mod bench;
mod discover;
mod info;
mod io;
pub mod socket;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;

use everywire_iscsi::initiator::{self, ConnectError, Disk, Initiator, IscsiError, Options};
use everywire_iscsi::keys::Key;
use everywire_iscsi::login::chap::Credentials;
use everywire_iscsi::name::IscsiName;
use everywire_iscsi::rdma::RdmaBinding;
use everywire_iscsi::session::target::Listed;
use everywire_net::{Host, TokioRt};
use everywire_verbs::rt::Rt;
use uuid::Uuid;

use crate::attached::while_attached;
use crate::device::DeviceArgs;
use crate::error::{self, CliError};
use crate::patience::{self, Cure};
use crate::peer::PeerName;
use socket::TcpConnector;

/// Namespace of the initiator names derived from a machine's identity (a random UUID, fixed for ever).
const NAME_SPACE: Uuid = Uuid::from_u128(0x7a61_44f0_93b5_4e0e_8f0a_2a3d_d1b8_5c19);
/// Where open-iscsi keeps its name.
const NAME_FILE: &str = "/etc/iscsi/initiatorname.iscsi";

/// Flags of `everywire iscsi`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire serve --iscsi iqn.2026-11.example:disk=ram:256MiB --tcp 127.0.0.1 &\n  \
    everywire iscsi discover 127.0.0.1\n  \
    everywire iscsi login 127.0.0.1 iqn.2026-11.example:disk\n  \
    everywire iscsi write 127.0.0.1 iqn.2026-11.example:disk --offset 1MiB < image\n  \
    everywire iscsi read 127.0.0.1 iqn.2026-11.example:disk --offset 1MiB --length 64KiB > copy\n\n\
    Over RDMA (iSER), which every device of `serve` takes on port 3260:\n  \
    everywire iscsi login --device rocev2 127.0.0.1 iqn.2026-11.example:disk")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Ask a portal for its targets (SendTargets).
    Discover(discover::Args),
    /// Log in, show what was agreed and the logical unit, and log out.
    #[command(visible_alias = "info")]
    Login(info::Args),
    /// Read bytes to standard output.
    Read(io::ReadArgs),
    /// Write standard input to a logical unit.
    Write(io::WriteArgs),
    /// Keep a logical unit attached as a Network Block Device, for the kernel's nbd driver, QEMU, libnbd's tools.
    Attach(attach::Args),
    /// Measure I/O: IOPS, GB/s, latency. Writing tests destroy what the logical unit holds.
    Bench(bench::Args),
}

/// Runs one action.
pub fn run(args: &Args) -> Result<(), CliError> {
    match &args.action {
        Action::Discover(args) => discover::run(args),
        Action::Login(args) => info::run(args),
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

/// Where to, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Portal {
    #[command(flatten)]
    device: DeviceArgs,
    /// The portal: ADDRESS or ADDRESS:PORT ([v6]:PORT); the port of iSCSI is 3260.
    #[arg(value_name = "PORTAL")]
    portal: PeerName,
    /// This initiator's name [default: that of /etc/iscsi/initiatorname.iscsi, or derived from the machine's identity].
    #[arg(long, value_name = "IQN")]
    name: Option<IscsiName>,
    /// CHAP name; the secret is read from the file of --chap-secret.
    #[arg(long, value_name = "NAME", requires = "chap_secret")]
    chap: Option<String>,
    /// File with the CHAP secret, one line.
    #[arg(long, value_name = "FILE", requires = "chap")]
    chap_secret: Option<PathBuf>,
    /// Mutual CHAP: the name that the target must give.
    #[arg(long, value_name = "NAME", requires_all = ["chap", "chap_target_secret"])]
    chap_target: Option<String>,
    /// File with the target's secret, one line.
    #[arg(long, value_name = "FILE", requires = "chap_target")]
    chap_target_secret: Option<PathBuf>,
    /// Ask for CRC32C over headers.
    #[arg(long)]
    header_digest: bool,
    /// Ask for CRC32C over data.
    #[arg(long)]
    data_digest: bool,
    /// No data with commands (ImmediateData=No).
    #[arg(long)]
    no_immediate_data: bool,
    /// No data before the target asks for it (InitialR2T=Yes).
    #[arg(long)]
    initial_r2t: bool,
}

/// A target's logical unit.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    #[command(flatten)]
    portal: Portal,
    /// The target [default: the only one that the portal offers].
    #[arg(value_name = "IQN")]
    target: Option<IscsiName>,
    /// The logical unit.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..16384))]
    lun: u16,
}

/// What every action runs on.
pub struct Ground {
    runtime: TokioRt,
    /// What iSER runs on; `None` is TCP.
    host: Option<Host>,
    /// The portal.
    pub address: SocketAddr,
    options: Options,
}

impl Portal {
    /// Resolves the flags.
    pub fn open(&self) -> Result<Ground, CliError> {
        let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
        let address = self.portal.socket_addr(everywire_iscsi::PORT);
        let host = match (&self.device.device, &self.device.capture) {
            (Some(_), _) => Some(self.device.open_for_peer(address)?),
            (None, Some(_)) => {
                return Err(CliError::usage("--capture is of a --device: TCP is not captured"));
            }
            (None, None) => None,
        };
        if let Some(host) = &host {
            host.run(&runtime).map_err(CliError::failed)?;
        }
        let name = match &self.name {
            Some(name) => name.clone(),
            None => own_name(&runtime)?,
        };
        let mut options = Options::new(name);
        options.chap = credentials(self.chap.as_deref(), self.chap_secret.as_ref())?;
        options.chap_target = credentials(self.chap_target.as_deref(), self.chap_target_secret.as_ref())?;
        let mut set = |when: bool, key: Key, value: &str| {
            if when {
                options.offers.set(key, value);
            }
        };
        set(self.header_digest, Key::HeaderDigest, "CRC32C");
        set(self.data_digest, Key::DataDigest, "CRC32C");
        set(self.no_immediate_data, Key::ImmediateData, "No");
        set(self.initial_r2t, Key::InitialR2T, "Yes");
        Ok(Ground { runtime, host, address, options })
    }
}

impl Place {
    /// As whom this host is by itself.
    fn of(device: DeviceArgs, portal: PeerName, target: Option<IscsiName>, lun: u16) -> Place {
        let portal = Portal {
            device,
            portal,
            name: None,
            chap: None,
            chap_secret: None,
            chap_target: None,
            chap_target_secret: None,
            header_digest: false,
            data_digest: false,
            no_immediate_data: false,
            initial_r2t: false,
        };
        Place { portal, target, lun }
    }

    /// Resolves the flags.
    pub fn open(&self) -> Result<Ground, CliError> {
        self.portal.open()
    }

    /// Logs in.
    pub async fn login(&self, ground: &Ground) -> Result<Initiator, CliError> {
        let target = ground.target(self.target.as_ref()).await?;
        let (rt, options) = (ground.rt(), ground.options.clone());
        let (to, binding) = (ground.address, ground.binding()?);
        let attempt = async || {
            let options = options.clone();
            let connected = match &binding {
                None => Initiator::connect(&rt, TcpConnector, to, &target, options).await,
                Some(binding) => Initiator::connect_rdma(&rt, binding.clone(), to, &target, options).await,
            };
            connected.map_err(failed)
        };
        patience::connect(ground.who(), attempt, async |pause| rt.sleep(pause).await).await
    }

    /// The logical unit.
    pub async fn disk(&self, session: &Initiator) -> Result<Disk, CliError> {
        session.disk(self.lun).await.map_err(failed)
    }
}

impl Ground {
    /// Runs `work` to its end, or that of the fabric that the device is attached to.
    pub fn block_on<T>(&self, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        match &self.host {
            Some(host) => self.runtime.block_on(while_attached(host, work)),
            None => self.runtime.block_on(work),
        }
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
        let from =
            self.host.as_ref().map_or_else(|| "TCP".to_owned(), |host| host.device().name().to_string());
        format!("iscsi {from} - {}", self.address)
    }

    /// The runtime's handle.
    pub fn rt(&self) -> Rt {
        self.runtime.handle()
    }

    /// How to connect over RDMA, if that is wanted.
    fn binding(&self) -> Result<Option<RdmaBinding>, CliError> {
        let binding = self.host.as_ref().map(|host| RdmaBinding::new(host.device(), None));
        binding.transpose().map_err(CliError::failed)
    }

    /// What the portal offers.
    pub async fn discover(&self) -> Result<Vec<Listed>, CliError> {
        let (rt, options) = (self.rt(), self.options.clone());
        let binding = self.binding()?;
        let attempt = async || {
            let options = options.clone();
            let found = match &binding {
                None => initiator::discover(&rt, TcpConnector, self.address, options).await,
                Some(binding) => initiator::discover_rdma(&rt, binding.clone(), self.address, options).await,
            };
            found.map_err(failed)
        };
        patience::connect(self.who(), attempt, async |pause| rt.sleep(pause).await).await
    }

    /// The target named, or the only one there is.
    async fn target(&self, named: Option<&IscsiName>) -> Result<IscsiName, CliError> {
        if let Some(name) = named {
            return Ok(name.clone());
        }
        let names: Vec<String> = self.discover().await?.into_iter().map(|one| one.name.to_string()).collect();
        match &names[..] {
            [] => Err(CliError::peer(format_args!("{} offers no target to this initiator", self.address))),
            [only] => only.parse().map_err(CliError::peer),
            _ => Err(CliError::usage(format_args!(
                "{} offers {} targets, name one: {}",
                self.address,
                names.len(),
                names.join(" ")
            ))),
        }
    }
}

/// A failure of the initiator, by blame.
pub fn failed(error: IscsiError) -> CliError {
    match &error {
        IscsiError::Argument(_) => CliError::usage(error),
        IscsiError::Connect { source: ConnectError::Cm(cm), .. } => error::cm_with(cm, &error),
        IscsiError::Connect { source: ConnectError::Verbs(_), .. } => CliError::failed(error),
        IscsiError::Connect { source: ConnectError::Tcp(ErrorKind::ConnectionRefused, _), .. } => {
            CliError::peer(error).with_cure(Cure::Time)
        }
        _ => CliError::peer(error),
    }
}

fn credentials(name: Option<&str>, file: Option<&PathBuf>) -> Result<Option<Credentials>, CliError> {
    let (Some(name), Some(file)) = (name, file) else { return Ok(None) };
    let secret = std::fs::read_to_string(file)
        .map_err(|e| CliError::usage(format_args!("cannot read {}: {e}", file.display())))?;
    let credentials = Credentials::new(name, secret.trim_end_matches(['\r', '\n']).as_bytes());
    credentials.map(Some).map_err(|e| CliError::usage(format_args!("{}: {e}", file.display())))
}

/// This host's name: open-iscsi's, or one derived from the machine's identity.
fn own_name(runtime: &TokioRt) -> Result<IscsiName, CliError> {
    let theirs = std::fs::read_to_string(NAME_FILE).ok();
    let named = theirs.as_deref().and_then(|text| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix("InitiatorName="))
            .and_then(|name| name.trim().parse().ok())
    });
    if let Some(name) = named {
        return Ok(name);
    }
    let machine = std::fs::read_to_string("/etc/machine-id").ok().filter(|id| !id.trim().is_empty());
    let id = match machine {
        Some(machine) => Uuid::new_v5(&NAME_SPACE, machine.trim().as_bytes()),
        None => Uuid::from_u64_pair(runtime.handle().entropy(), runtime.handle().entropy()),
    };
    format!("iqn.2026-11.io.everywire:{}", id.simple()).parse().map_err(CliError::failed)
}
