//! The item `fabric`: the InfiniBand subnet loaded, checked and timed.

use std::time::{Duration, Instant};

use super::report::Row;
use crate::shell;

/// A line: its name, the profile (speed is that of the release build), what cargo runs, and the words by which its figures are
/// known.
const LINES: [(&str, &str, &[&str], &str); 2] = [
    (
        "incast",
        "soak",
        &["test", "--package", "everywire-fabric", "--test", "ib", "--", "--ignored", "--nocapture"],
        " packets in ",
    ),
    (
        "hops",
        "release",
        &["run", "--package", "everywire-fabric", "--example", "hops", "--", "10", "--at-least", "2"],
        " million hops/s",
    ),
];
const LIMIT: Duration = Duration::from_secs(30 * 60);

pub fn run(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let lines = LINES.map(|(name, profile, args, figures)| (name.to_owned(), (profile, args, figures)));
    for (name, (profile, args, figures)) in super::chosen(names, lines.into())? {
        let started = Instant::now();
        let mut cargo = shell::cargo();
        cargo.args([args[0], "--quiet", "--profile", profile]).args(&args[1..]);
        let done = shell::run(&mut cargo, &super::logs().join(format!("fabric-{name}.log")), LIMIT)?;
        let figures = done.output.lines().find(|l| l.contains(figures)).unwrap_or_default().to_owned();
        let failure = (!done.ok() || figures.is_empty()).then(|| done.tail(1).trim().to_owned());
        each(Row { name, seconds: started.elapsed().as_secs(), figures, failure });
    }
    Ok(())
}
