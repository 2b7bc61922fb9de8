//! `cargo xtask soak`: the long matrices, and the day's report of them, docs/soak/YYYY-MM-DD.md.
//!
//! One entry of `ITEMS` a matrix, each alone by its name. The report is written after every line of it, so that a run that is
//! broken off leaves what it saw. docs/soak/README.md says which item shows what, and what of it CI sees.

mod conformance;
mod fabric;
mod fuzz;
mod report;
mod seeds;
pub mod speed;
mod storage;

use std::time::{Duration, Instant};

use crate::interop;
use crate::mutants;
use crate::shell;
use report::{Page, Row};

/// Takes the names that follow the item's own, runs what they select (all for none), and hands over each line as it is done.
type Run = fn(&[String], &mut dyn FnMut(Row)) -> Result<(), String>;

struct Item {
    name: &'static str,
    /// What it is, for the report.
    about: &'static str,
    /// The heads of the report's first and fourth column.
    heads: [&'static str; 2],
    run: Run,
}

const ITEMS: [Item; 10] = [
    Item {
        name: "seeds",
        about: "The simulator's main workload under faults and kills, a thousand seeds a line.",
        heads: ["seeds", "work done"],
        run: seeds::roce_v2,
    },
    Item {
        name: "wires",
        about: "The same workload over the other wires.",
        heads: ["wire and seeds", "work done"],
        run: seeds::other_wires,
    },
    Item {
        name: "conformance",
        about: "The conformance suite for verbs (crates/conformance), over every wire and with every driver.",
        heads: ["runs", "cases passed"],
        run: conformance::run,
    },
    Item {
        name: "mutants",
        about: "One check broken at a time (crates/sim/mutants.toml); the simulator, or the test named there, must notice.",
        heads: ["check broken", "noticed by"],
        run: broken,
    },
    Item {
        name: "interop",
        about: "The Linux kernel as peer, and OpenSM with infiniband-diags (interop/README.md); tshark and `everywire decode` see \
                every packet of every case with the kernel.",
        heads: ["case", "packets"],
        run: kernel,
    },
    Item {
        name: "fuzz",
        about: "Every fuzz target (fuzz/README.md) on inputs that no smoke run has seen.",
        heads: ["target", "inputs"],
        run: fuzz::run,
    },
    Item {
        name: "lives",
        about: "Queue pairs, completion queues and regions come and go on three threads while a fourth drives them.",
        heads: ["lives", "work done"],
        run: lives,
    },
    Item {
        name: "fabric",
        about: "An InfiniBand fat tree of 16 hosts: 16-to-1 incast under the credit checker, and hops a second on one core.",
        heads: ["load", "work done"],
        run: fabric::run,
    },
    Item {
        name: "speed",
        about: "Each measured three times beside its baseline in the same run, release build: the best of the product over the best \
                of the baseline, then every ratio with both values.",
        heads: ["what", "values"],
        run: speed::run,
    },
    Item {
        name: "storage",
        about: "iSER on RAM disks beside tgt over TCP, NVMe over RDMA and RC READ in the same run, three times each, release \
                build: the best of the product over the best of the other, then every ratio with both values.",
        heads: ["what", "values"],
        run: storage::run,
    },
];

/// `cargo xtask soak [ITEM [NAME…]]…`: the items named, in full or only their lines that begin with a NAME; all for none.
pub fn main(args: &[String]) -> Result<(), String> {
    let wanted = select(args)?;
    let mut page = Page::open(&ITEMS.map(|i| (i.name, i.about, i.heads)))?;
    let mut failed = Vec::new();
    for (item, names) in wanted {
        println!("{}", item.name);
        let outcome = (item.run)(&names, &mut |row| {
            // The interop runner prints its own lines.
            if item.name != "interop" {
                println!("    {row}");
            }
            if row.failure.is_some() {
                failed.push(format!("{} {}", item.name, row.name));
            }
            if let Err(why) = page.add(item.name, row) {
                eprintln!("{why}");
            }
        });
        if let Err(why) = outcome {
            println!("{why}");
            failed.push(item.name.to_owned());
        }
    }
    println!("report: {}", page.path().display());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The items that the arguments name, each with the names that follow it.
fn select(args: &[String]) -> Result<Vec<(&'static Item, Vec<String>)>, String> {
    if args.is_empty() {
        return Ok(ITEMS.iter().map(|item| (item, Vec::new())).collect());
    }
    let mut wanted: Vec<(&Item, Vec<String>)> = Vec::new();
    for arg in args {
        match (ITEMS.iter().find(|item| item.name == arg), wanted.last_mut()) {
            (Some(item), _) => wanted.push((item, Vec::new())),
            (None, Some((_, names))) => names.push(arg.clone()),
            (None, None) => {
                let known = ITEMS.map(|item| item.name).join(", ");
                return Err(format!("no item of the soak is called {arg:?}; the items are: {known}"));
            }
        }
    }
    Ok(wanted)
}

/// The lines whose names begin with one of `names`; all for none.
fn chosen<T>(names: &[String], lines: Vec<(String, T)>) -> Result<Vec<(String, T)>, String> {
    if let Some(unknown) = names.iter().find(|n| !lines.iter().any(|l| l.0.starts_with(n.as_str()))) {
        return Err(format!("no line begins with {unknown:?}"));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| name.starts_with(n.as_str()));
    Ok(lines.into_iter().filter(|line| wanted(&line.0)).collect())
}

fn broken(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    mutants::run(names, &mut |end| {
        let failure = end.noticed.is_none().then(|| format!("nothing noticed: {}", end.why));
        let (name, figures) = (end.name.to_owned(), end.noticed.unwrap_or_default());
        each(Row { name, seconds: end.seconds, figures, failure });
    })
}

fn kernel(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    interop::run_named(names, &mut |end| {
        let failure = end.failure.as_deref().map(|why| why.lines().next().unwrap_or("failed").to_owned());
        let figures = if end.packets > 0 { end.packets.to_string() } else { String::new() };
        each(Row { name: end.name.clone(), seconds: end.seconds, figures, failure });
    })
}

/// Lives of a pair of queue pairs, and how long they may take.
const LIVES: &str = "1000000";
const LIVES_LIMIT: Duration = Duration::from_secs(60 * 60);

fn lives(_names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let started = Instant::now();
    let mut test = shell::cargo();
    test.args(["test", "--quiet", "--profile", "soak", "--package", "everywire-verbs", "--lib"]);
    test.args(["objects_come_and_go_while_their_packets_fly", "--", "--nocapture"]);
    test.env("EVERYWIRE_CHURN_LIVES", LIVES);
    let done = shell::run(&mut test, &logs().join("lives.log"), LIVES_LIMIT)?;
    let figures = done.output.lines().find(|l| l.contains(" lives in ")).unwrap_or_default().to_owned();
    let failure = (!done.ok() || figures.is_empty()).then(|| done.tail(1).trim().to_owned());
    each(Row { name: LIVES.to_owned(), seconds: started.elapsed().as_secs(), figures, failure });
    Ok(())
}

fn logs() -> std::path::PathBuf {
    shell::target().join("soak-logs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_the_item_before_them() {
        let chosen = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(ToString::to_string).collect();
            select(&args)
                .map(|all| all.into_iter().map(|(item, names)| (item.name, names)).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]).unwrap().len(), ITEMS.len());
        let two = chosen(&["interop", "ping", "kernel", "seeds"]).unwrap();
        assert_eq!(two, [("interop", vec!["ping".to_owned(), "kernel".to_owned()]), ("seeds", vec![])]);
        assert!(chosen(&["ping"]).unwrap_err().contains("seeds, wires, conformance, mutants, interop, fuzz"));
    }
}
