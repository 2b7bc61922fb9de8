//! OpenSM and infiniband-diags, as Debian has them, on an InfiniBand subnet of ours: `everywire fabric run --ibsim`.
//!
//! OpenSM is the subnet manager, or judges ours; every tool must say the same of the subnet as `everywire fabric show`. No
//! guest takes part and nothing needs root. Logs stay under target/interop/CASE, a folder a tool.

mod agree;
mod cases;
mod fabric;
mod lanes;
mod managers;
mod parse;
mod records;
mod routes;
mod shown;
mod tools;

use std::path::Path;
use std::time::Instant;

use super::Report;
use crate::shell;
use crate::test::{Outcome, Tally};
pub use cases::{Case, all};

/// Programs that the cases need, and the Debian package each is in.
const NEEDED: &[(&str, &str)] = &[
    ("opensm", "opensm"),
    ("ibnetdiscover", "infiniband-diags"),
    ("ibsim-run", "ibsim-utils"),
    ("ibdiagnet", "ibutils"),
    ("cc", "build-essential"),
    ("setpriv", "util-linux"),
];

/// Why this machine cannot run them, if it cannot.
pub fn cannot() -> Option<String> {
    let missing: Vec<&str> = NEEDED.iter().filter(|n| !shell::have(n.0)).map(|n| n.1).collect();
    if !missing.is_empty() {
        return Some(format!("the InfiniBand tools need the Debian packages {}", missing.join(" ")));
    }
    (!Path::new(tools::UMAD2SIM).exists()).then(|| format!("there is no {}", tools::UMAD2SIM))
}

/// The cases that `cargo xtask test` runs.
pub fn sample() -> Result<Outcome, String> {
    if let Some(why) = cannot() {
        return Ok(Outcome::LeftOut(why));
    }
    let cases: Vec<Case> = all().into_iter().filter(|c| c.sample).collect();
    let mut tally = Tally::default();
    run(&cases, &mut |report| tally.add(Tally::one(report.failure.is_none())));
    Ok(Outcome::Counted(tally))
}

/// Runs cases in their order.
pub fn run(cases: &[Case], each: &mut dyn FnMut(&Report)) {
    let program = shell::target().join("release/everywire");
    for case in cases {
        let started = Instant::now();
        let folder = super::folder().join(&case.name);
        let _ = std::fs::remove_dir_all(&folder);
        let outcome = std::fs::create_dir_all(&folder)
            .map_err(|e| format!("{}: {e}", folder.display()))
            .and_then(|()| case.run(&program, &folder));
        let seconds = started.elapsed().as_secs();
        super::print_end(&case.name, seconds, None, outcome.as_ref().err());
        each(&Report { name: case.name.clone(), seconds, packets: 0, failure: outcome.err() });
    }
}
