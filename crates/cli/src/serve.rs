//! `everywire serve`: the target. Devices, sessions and backends run on one thread, on the async runtime of `everywire-net`.
//!
//! The first SIGTERM or SIGINT stops listening, ends every association, flushes the backends and exits with 0; the second
//! exits at once. Logs go to standard error; standard output gets one line per address once it listens.

pub mod config;
mod iscsi;
mod srp;
mod target;
mod units;

pub use target::memory_warning;

use std::path::PathBuf;

use everywire_net::{Host, OpenOptions, TokioRt, route};
use everywire_nvmeof::rdma::{NvmeTarget, TargetOptions};
use everywire_verbs::rt::{Either, select};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::device;
use crate::error::{CliError, print};
use crate::second;
use config::srp::SrpFlags;
use config::{Config, Flags};
use units::Units;

/// Flags of `everywire serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire serve --nvme nqn.2026-11.example:disk=ram:256MiB\n  \
    everywire serve --device rocev2:192.0.2.7 --nvme nqn.2026-11.example:disk=file:/srv/disk.img\n  \
    everywire serve --iscsi iqn.2026-11.example:disk=ram:256MiB --tcp 127.0.0.1\n  \
    everywire serve --device rocev2:192.0.2.7 --srp disk=ram:256MiB\n  \
    everywire serve --volume disk=ram:256MiB --nvme nqn.2026-11.example:disk=volume:disk \\\n    \
    --iscsi iqn.2026-11.example:disk=volume:disk --srp disk=volume:disk\n  \
    everywire serve target.toml\n\n\
    Then, on a Linux host: nvme connect -t rdma -a 192.0.2.7 -s 4420 -n nqn.2026-11.example:disk\n\
    or here: everywire nvme discover 127.0.0.1\n\n\
    Backends: ram:SIZE[,bs=4096], file:PATH[,ro][,size=SIZE][,bs=4096][,write-through][,buffered], null:SIZE.\n\n\
    A configuration file has the same, and more (`everywire check FILE` reads it without opening anything):\n\n  \
    devices = [\"rocev2:192.0.2.7\", \"rocev2:2001:db8::7\"]\n\n  \
    [[volume]]                   # what several may serve, by backend = \"volume:disk\"\n  \
    name = \"disk\"\n  \
    backend = \"ram:256MiB\"       # serial, removable, reservations as of a logical unit\n\n  \
    [nvme]\n  \
    port = 4420                  # the default\n  \
    max_io_queues = 64           # of a host\n  \
    max_queue_entries = 1024\n  \
    in_capsule_data = 4096       # bytes, a multiple of 16\n\n  \
    [[nvme.subsystem]]\n  \
    nqn = \"nqn.2026-11.example:disk\"\n  \
    serial = \"0001\"              # derived from the NQN if left out\n  \
    model = \"Everywire\"\n  \
    hosts = [\"nqn.2014-08.org.nvmexpress:uuid:…\"]  # left out: any host\n\n  \
    [[nvme.subsystem.namespace]]\n  \
    backend = \"file:/srv/disk.img\"\n  \
    nsid = 1                     # the next free one if left out\n  \
    uuid = \"…\"                   # derived, and stable, if left out\n\n  \
    [iscsi]\n  \
    portals = [\"192.0.2.7\"]       # of TCP, port 3260 if left out; iSER is on port 3260 of each device\n  \
    ping = 15                    # seconds of silence before an initiator is asked for a sign of life\n  \
    discovery_chap = [{ name = \"user\", secret_file = \"/etc/secret\" }]  # left out: anybody\n\n  \
    [[iscsi.target]]\n  \
    name = \"iqn.2026-11.example:disk\"\n  \
    chap = [{ name = \"user\", secret_file = \"/etc/secret\" }]        # left out: none needed\n  \
    chap_target = { name = \"disk\", secret_file = \"/etc/other\" }    # mutual CHAP\n\n  \
    [[iscsi.target.access]]      # the first that fits decides; left out: everybody sees all\n  \
    initiators = [\"iqn.2026-11.example:host\"]\n  \
    addresses = [\"192.0.2.0/24\"]\n  \
    deny = false\n  \
    luns = { 0 = 3 }             # this initiator's LUN 0 is the target's LUN 3; left out: all\n\n  \
    [[iscsi.target.lun]]\n  \
    backend = \"file:/srv/disk.img\"\n  \
    lun = 0                      # the next free one if left out\n  \
    serial = \"0001\"              # derived, and stable, if left out\n  \
    removable = false            # the default\n  \
    reservations = \"/srv/pr\"     # beside the image if left out\n\n  \
    [srp]\n  \
    port = 5555                  # of RDMA/CM, the default\n  \
    ioc_guid = \"0002c90300000001\" # derived from the machine's identity if left out\n\n  \
    [[srp.target]]\n  \
    name = \"disk\"\n  \
    id_ext = \"0002c90300000002\"   # derived from the name if left out\n  \
    initiators = [\"INITIATOR_EXT:GUID\"]  # left out: any initiator\n\n  \
    [[srp.target.access]]        # in place of `initiators`: what each sees\n  \
    initiators = [\"INITIATOR_EXT:GUID\"]\n  \
    luns = { 0 = 3 }\n\n  \
    [[srp.target.lun]]            # as of iSCSI\n  \
    backend = \"file:/srv/disk.img\"")]
pub struct Args {
    /// Configuration file (TOML).
    config: Option<PathBuf>,
    /// A device to serve on, instead of those of the file; may be repeated [default: rocev2:127.0.0.1].
    #[arg(long, value_name = "WIRE:ADDRESS")]
    device: Vec<String>,
    /// Give a backend a name, by which NVMe, iSCSI and SRP may serve it at once (`volume:NAME` in place of a backend).
    #[arg(long, value_name = "NAME=BACKEND")]
    volume: Vec<String>,
    /// Serve a namespace; may be repeated, also with the same NQN.
    #[arg(long, value_name = "NQN=BACKEND")]
    nvme: Vec<String>,
    /// Port of NVMe over RDMA [default: 4420].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    nvme_port: Option<u16>,
    /// Serve a logical unit over iSCSI: iSER on port 3260 of every device, TCP where --tcp says; may be repeated, also with
    /// the same IQN.
    #[arg(long, value_name = "IQN=BACKEND")]
    iscsi: Vec<String>,
    /// Take iSCSI connections over TCP here too [port 3260 if not said]; may be repeated.
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    tcp: Vec<String>,
    /// Serve a logical unit over SRP; may be repeated, also with the same name.
    #[arg(long, value_name = "NAME=BACKEND")]
    srp: Vec<String>,
    /// Port of SRP over RDMA/CM [default: 5555].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    srp_port: Option<u16>,
    /// GUID of SRP's I/O controller, 16 hexadecimal digits [default: derived from the machine's identity].
    #[arg(long, value_name = "HEX")]
    srp_ioc_guid: Option<String>,
    /// Identifier extension of the target of --srp, 16 hexadecimal digits [default: derived from its name].
    #[arg(long, value_name = "HEX")]
    srp_id_ext: Option<String>,
    /// Write every packet to this pcapng file (one device only).
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// End when standard input does.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

/// The command line of a target that ends with its parent.
pub fn arguments<S: AsRef<str>>(device: &str, exports: &[S]) -> Vec<String> {
    let first = ["serve", "--until-stdin-ends", "--device", device];
    first.into_iter().chain(exports.iter().map(AsRef::as_ref)).map(str::to_owned).collect()
}

/// Serves until it is told to stop.
pub fn run(args: &Args) -> Result<(), CliError> {
    let flags = Flags {
        devices: &args.device,
        volumes: &args.volume,
        exports: &args.nvme,
        nvme_port: args.nvme_port,
        iscsi: &args.iscsi,
        tcp: &args.tcp,
        srp: SrpFlags {
            exports: &args.srp,
            port: args.srp_port,
            ioc_guid: args.srp_ioc_guid.as_deref(),
            id_ext: args.srp_id_ext.as_deref(),
        },
    };
    let config = Config::resolve(args.config.as_deref(), &flags)?;
    if args.capture.is_some() && config.devices.len() > 1 {
        return Err(CliError::usage("--capture takes one device: each has its own packets"));
    }
    if let Some(capture) = &args.capture
        && let Some(backend) = config.backend_at(capture)
    {
        let (capture, backend) = (capture.display(), backend.display());
        return Err(CliError::usage(format_args!(
            "--capture {capture}: it is the backend {backend}, which a capture would overwrite"
        )));
    }
    let options = OpenOptions { capture: args.capture.clone(), ..OpenOptions::default() };
    if args.until_stdin_ends {
        second::stop_with_stdin();
    }
    let hosts = config.devices.iter().map(|name| device::open(name, &options));
    let hosts = hosts.collect::<Result<Vec<Host>, CliError>>()?;
    if let Some(warning) = memory_warning(&config) {
        tracing::warn!("{warning}");
    }
    let mut units = Units::open(&config.volumes)?;
    let target = target::open(&config, &units)?;
    let iscsi = iscsi::open(&config.iscsi, &mut units)?;
    let srp = srp::open(&config.srp, &mut units)?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    for host in &hosts {
        host.run(&runtime).map_err(CliError::failed)?;
    }
    let rt = runtime.handle();
    runtime.block_on(async {
        // Signals count from before the first line of output, so that whoever reads it may send one.
        let mut signals = Signals::new()?;
        units.drive(&rt);
        let iscsi = iscsi.listen(&rt, &config.iscsi, &hosts).await?;
        let srp = srp.listen(&rt, &hosts, config.srp.port)?;
        let nvme = NvmeTarget::new(rt, target, TargetOptions::default());
        // Whoever serves SCSI alone need not answer NVMe's discovery.
        if !config.subsystems.is_empty() {
            hosts.iter().try_for_each(|host| listen(&nvme, host, config.nvme_port))?;
        }
        describe(&config);
        let name = signals.next().await;
        let open = || nvme.connections() + iscsi.sessions() + srp.channels();
        tracing::info!("{name}: stopping, {} connections are open; a second signal stops at once", open());
        hosts.iter().for_each(tell_counters);
        let stopped = async {
            iscsi.shutdown().await;
            srp.shutdown().await;
            nvme.shutdown().await;
            units.flush().await;
        };
        match select(std::pin::pin!(stopped), signals.next()).await {
            Either::First(()) => {
                tracing::info!("stopped");
                Ok(())
            }
            Either::Second(name) => {
                let open = open();
                Err(CliError::failed(format_args!("stopped at once by {name}: {open} connections were open")))
            }
        }
    })
}

/// What a device has counted, by the names of Linux's `hw_counters`; dropped packets are among it.
fn tell_counters(host: &Host) {
    let counters = host.device().counters();
    let told: Vec<String> =
        counters.iter().filter(|entry| entry.1 > 0).map(|(name, value)| format!("{name} {value}")).collect();
    let told = if told.is_empty() { "nothing".to_owned() } else { told.join(", ") };
    tracing::info!("{}: counted {told}", host.device().name());
}

fn listen(nvme: &NvmeTarget, host: &Host, port: u16) -> Result<(), CliError> {
    for (ip, scope_id) in host.addresses() {
        let address = route::with_scope(*ip, port, *scope_id);
        let address = nvme.listen(host.device(), address).map_err(CliError::failed)?;
        print(device::listening(host, address))?;
    }
    Ok(())
}

fn describe(config: &Config) {
    for subsystem in &config.subsystems {
        for namespace in &subsystem.namespaces {
            tracing::info!("serving {} from {}", subsystem.nqn, namespace.backend_text);
        }
    }
    for target in &config.srp.targets {
        for lun in &target.luns {
            tracing::info!(
                "serving {} ({}) LUN {} from {}",
                target.name,
                target.id,
                lun.number,
                lun.backend_text
            );
        }
    }
    for target in &config.iscsi.targets {
        for lun in &target.luns {
            tracing::info!("serving {} LUN {} from {}", target.name, lun.number, lun.backend_text);
        }
    }
}

/// What asks a server to stop.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Watches from now on; within a runtime.
    pub fn new() -> Result<Signals, CliError> {
        let watch = |kind| signal(kind).map_err(|e| CliError::failed(format_args!("watch for signals: {e}")));
        Ok(Signals { terminate: watch(SignalKind::terminate())?, interrupt: watch(SignalKind::interrupt())? })
    }

    /// Waits for the next one; its name.
    pub async fn next(&mut self) -> &'static str {
        let signal = select(self.terminate.recv(), self.interrupt.recv());
        match select(std::pin::pin!(signal), std::pin::pin!(second::stdin_ended())).await {
            Either::First(Either::First(_)) => "SIGTERM",
            Either::First(Either::Second(_)) => "SIGINT",
            Either::Second(()) => "the end of standard input",
        }
    }
}
