//! The project's own chores, run as `cargo xtask CHORE`.
//!
//! One module a chore; `shell` runs commands and keeps their output. Nothing here is part of the product, and
//! nothing here depends on the product's crates: what a chore needs from Everywire it gets from the program.
#![forbid(unsafe_code)]

mod interop;
mod mutants;
mod shell;
mod skips;
mod soak;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask CHORE

  tidy [--write]      the rules a compiler does not check: dependency edges, sizes, forbidden calls;
                      --write records today's sizes in xtask/ratchet.toml
  test                everything that can be checked on this machine, and what was left out and why
  interop [NAME…]     scenarios with the Linux kernel as peer, in QEMU (needs root); --list names them
  mutants [NAME…]     breaks one check at a time in a copy of the tree; the simulator, or a test, must notice
  soak [NAME…]        the long matrices; writes a dated report under docs/soak/
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let outcome = match args.first().map(String::as_str) {
        Some("tidy") => tidy::main(rest),
        Some("test") => test::main(rest),
        Some("interop") => interop::main(rest),
        Some("soak") => soak::main(rest),
        Some("mutants") => mutants::main(rest),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => Err(format!("no chore is called {other:?}\n\n{HELP}")),
        None => Err(HELP.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
