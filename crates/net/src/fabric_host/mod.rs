//! An InfiniBand subnet that runs in real time, in this process: switches and links of `everywire_fabric::ib`, a subnet
//! manager, and doors for programs.
//!
//! Start with [`Fabric`]: it takes a [`Plan`], runs it on a thread of its own (`engine.rs`), and sleeps when nothing happens.
//! Programs attach to its ports (`door.rs`, [`crate::fabric_port`]), OpenSM and infiniband-diags come in by the ibsim
//! protocol (`ibsim/`), and [`control`] asks and tells it. Nothing here knows verbs: a port is packets, from LRH to VCRC.

mod built;
pub mod control;
mod door;
mod engine;
mod ibsim;
mod mads;
pub mod place;
pub mod plan;
mod ready;
mod seat;
pub mod snapshot;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod two_hosts;
mod ways;

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use everywire_fabric::ib::PcapTap;

use crate::capture::Capture;
use crate::event::Signal;
use built::Built;
use engine::Engine;
pub use plan::Plan;

/// How a fabric runs.
#[derive(Clone, Debug)]
pub struct FabricOptions {
    /// With a subnet manager of ours. Without one it waits for another: OpenSM, say.
    pub subnet_manager: bool,
    /// Let clients of ibsim in under this name (`IBSIM_SOCKNAME`).
    pub ibsim: Option<String>,
    /// Write every packet on every link to this pcapng file.
    pub capture: Option<PathBuf>,
}

impl Default for FabricOptions {
    fn default() -> FabricOptions {
        FabricOptions { subnet_manager: true, ibsim: None, capture: None }
    }
}

/// What a fabric tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricEvent {
    /// Every link with a cable carries data, for the first time.
    Ready,
    /// The subnet manager has something to say: that tables are in place, that they have a loop, that a link is lost.
    SubnetManager {
        /// Which one, by its port: `HOST/PORT`, or a switch.
        at: String,
        /// In words.
        text: String,
        /// Whether somebody should act.
        warning: bool,
    },
    /// Ports of hosts that the subnet manager has no way to, when they become others; none once all have one.
    NoWay {
        /// `HOST/PORT` of each.
        ports: Vec<String>,
    },
    /// A program is attached.
    Attached {
        /// `HOST/PORT`.
        port: String,
        /// The process.
        pid: i32,
    },
    /// It is no longer.
    Left {
        /// `HOST/PORT`.
        port: String,
        /// The process.
        pid: i32,
        /// How it has left.
        why: String,
    },
    /// A client of ibsim has come, gone, or become a subnet manager.
    Ibsim {
        /// `HOST/PORT`.
        port: String,
        /// Which process has done what.
        what: String,
    },
    /// A cable was pulled or put back by hand.
    Link {
        /// `NODE/PORT`.
        port: String,
        /// Put back.
        up: bool,
    },
}

/// A subnet that runs until this value is dropped.
#[derive(Debug)]
pub struct Fabric {
    name: String,
    stop: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
    _claim: place::Claim,
}

impl Fabric {
    /// Starts it on a thread of its own. `tell` is called on that thread.
    ///
    /// # Errors
    /// The plan breaks a rule; the name is taken, and by whom; no sockets, no thread; a capture that would overwrite
    /// something else.
    pub fn start(
        plan: Plan,
        options: &FabricOptions,
        tell: impl FnMut(FabricEvent) + Send + 'static,
    ) -> io::Result<Fabric> {
        let claim = place::Claim::take(&plan.name)?;
        let name = plan.name.clone();
        let base = Instant::now();
        let mut built = Built::new(plan, base, engine::seed()?)?;
        if let Some(path) = &options.capture {
            built.subnet.set_tap(Some(Box::new(capture(path, &built, base)?)));
        }
        let seed = engine::seed()?;
        let entropy = engine::seed()?;
        let seats = options.subnet_manager.then(|| seat::Seat::take_all(&mut built, base, seed, entropy));
        let ibsim = options.ibsim.as_deref().map(ibsim::Ibsim::open).transpose()?;
        let stop = Signal::new()?;
        let mut engine = Engine {
            door: Some(door::Door::open(&name)?),
            control: Some(control::Server::open(&name)?),
            ibsim,
            seats: seats.unwrap_or_default(),
            backlog: mads::Backlog::default(),
            stop: stop.clone(),
            tell: Box::new(tell),
            ready: false,
            ways: ways::Ways::new(base),
            built,
        };
        let thread =
            std::thread::Builder::new().name(format!("fabric {name}")).spawn(move || engine.run())?;
        Ok(Fabric { name, stop, thread: Some(thread), _claim: claim })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        std::task::Wake::wake_by_ref(&self.stop);
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, was reported by its own thread.
            let _ = thread.join();
        }
    }
}

fn capture(path: &Path, built: &Built, base: Instant) -> io::Result<PcapTap<BufWriter<File>>> {
    Capture::may_write(path)?;
    let file =
        File::create(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let base_ns = u64::try_from(since.as_nanos()).unwrap_or_default();
    PcapTap::new(BufWriter::new(file), &built.subnet, base, base_ns)
}
