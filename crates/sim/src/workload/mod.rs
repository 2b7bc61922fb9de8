//! The main workload: a seed makes hosts, queue pairs of every service, faults and a thousand work requests of every kind, and
//! every completion and every byte is held against models of its own.
//!
//! Start at [`run`]; `plan` says what a seed stands for, `ops` and `bad` make the requests, `drive` judges what becomes of them, `finish`
//! closes the accounts. A failure names its seed, and the seed replays it.

mod atomics;
mod bad;
mod chaos;
mod connection;
mod datagram;
mod drive;
mod end;
mod finish;
mod manager;
mod node;
mod openings;
mod ops;
mod plan;
mod random;
mod receives;
mod rig;
mod slots;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

pub use ops::Kind;
pub use plan::{ConnectionPlan, Plan, Setup, Weather};
pub use rig::Tally;

use everywire_verbs::Wire;

use crate::checkers::Violation;
use crate::world::HostId;
use rig::Rig;

/// Work requests in a run, at least.
pub const DEFAULT_TARGET: usize = 1_000;
/// The most steps of a run; each posts something or lets time pass.
const MAX_STEPS: usize = 100_000;

/// How to run a seed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Work requests to post, at least.
    pub target: usize,
    /// Where to write every frame, as pcapng.
    pub capture: Option<PathBuf>,
    /// Print what is posted and what completes.
    pub trace: bool,
    /// What carries the messages.
    pub wire: Wire,
    /// Whether iWARP has the extensions of RFC 7306.
    pub rfc7306: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { target: DEFAULT_TARGET, capture: None, trace: false, wire: Wire::RoceV2, rfc7306: false }
    }
}

/// What a run that passed did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Numbers.
    pub tally: Tally,
    /// Frames that hosts sent.
    pub frames: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// The digest of every frame and completion.
    pub digest: u64,
}

/// A seed failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "seed {seed} ({weather:?}) after {elapsed:?} and {sends} sends: {violation}\nreplay with EVERYWIRE_SEED={seed}"
)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The weather.
    pub weather: Weather,
    /// Virtual time until then.
    pub elapsed: Duration,
    /// Sends until then.
    pub sends: usize,
    /// What was violated.
    pub violation: Violation,
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Result<Report, Failure> {
    let plan = Plan::new(seed, options.target).over(options.wire, options.rfc7306);
    let weather = plan.weather;
    let fail = |violation, elapsed, sends| Failure { seed, weather, elapsed, sends, violation };
    let mut rig = Rig::new(plan, options).map_err(|v| fail(v, Duration::ZERO, 0))?;
    let result = rig.work().and_then(|()| rig.finish());
    let result = result.and_then(|()| match rig.world.with_subnet(|subnet| subnet.check_credits()) {
        Some(Err(fault)) => Err(crate::violation!("credits: {fault:?}")),
        Some(Ok(())) | None => Ok(()),
    });
    let captured = rig.world.end_capture();
    if let Err(violation) = result {
        rig.say(|| rig.counters());
        return Err(fail(violation, rig.world.elapsed(), rig.tally.sends));
    }
    if let Err(error) = captured {
        return Err(fail(
            crate::violation!("writing the capture: {error}"),
            rig.world.elapsed(),
            rig.tally.sends,
        ));
    }
    let frames = (0..rig.nodes.len()).map(|h| rig.world.nic_counters(HostId(h)).sent).sum();
    Ok(Report { seed, tally: rig.tally, frames, elapsed: rig.world.elapsed(), digest: rig.world.digest() })
}

impl Rig {
    /// Posts, lets time pass, breaks things, until enough was posted.
    fn work(&mut self) -> Result<(), Violation> {
        for step in 0..MAX_STEPS {
            if self.tally.sends + self.tally.receives >= self.plan.target {
                break;
            }
            self.step()?;
            if step % 64 == 63 {
                self.verify_memory()?;
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Violation> {
        let index = self.dice.below(self.connections.len());
        let side = self.dice.below(2);
        if self.connections[index].broken {
            // Leave it to its fate for a while: the peer may notice by itself, or not.
            if self.dice.chance(1, 4) {
                return self.reconnect(index);
            }
            return self.pass_time();
        }
        match self.dice.weighted(&[30, 30, 8, 4, 40]) {
            0 if self.dice.chance(1, self.plan.one_bad_in / 6) => self.post_bad(index, side),
            0 => self.post_batch(index, side),
            1 => {
                for _ in 0..self.dice.between(1, 4) {
                    self.post_recv(index, side, false)?;
                }
                Ok(())
            }
            2 => self.datagrams_step(),
            3 => self.disturb(index),
            _ => self.pass_time(),
        }
    }

    fn pass_time(&mut self) -> Result<(), Violation> {
        let micros = match self.dice.weighted(&[6, 3, 1]) {
            0 => self.dice.between(1, 10),
            1 => self.dice.between(10, 100),
            _ => self.dice.between(100, 3_000),
        };
        self.tick(Duration::from_micros(micros as u64))
    }

    fn datagrams_step(&mut self) -> Result<(), Violation> {
        let hosts = self.nodes.len();
        let (from, to) = (self.dice.below(hosts), self.dice.below(hosts));
        for _ in 0..self.dice.between(1, 3) {
            if self.datagrams.ends.get(&to).is_some_and(|end| end.recv_open.len() < connection::RECV_DEPTH) {
                self.post_datagram_recv(to)?;
            }
            if self.datagrams.ends.get(&from).is_some_and(|end| end.sends.open() < connection::SEND_DEPTH) {
                self.post_datagram(from, to)?;
            }
        }
        Ok(())
    }

    /// Something unusual, but rarely.
    fn disturb(&mut self, index: usize) -> Result<(), Violation> {
        let host = self.dice.below(self.nodes.len());
        match self.dice.below(6) {
            0 if self.kills_left > 0 => {
                self.kills_left -= 1;
                self.kill_and_restart(host)
            }
            1 if self.partitions_left > 0 => {
                self.partitions_left -= 1;
                self.cut_off(host);
                Ok(())
            }
            2 if self.resets_left > 0 => {
                self.resets_left -= 1;
                self.say(|| format!("streams of host {host} are reset"));
                self.world.reset_streams(HostId(host));
                Ok(())
            }
            2 if self.dice.chance(1, 6) => self.reconnect(index),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
