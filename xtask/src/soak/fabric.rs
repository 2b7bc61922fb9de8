//! The item `fabric`: the InfiniBand subnet loaded, checked and timed.

use std::time::{Duration, Instant};

use super::report::Row;
use crate::shell;

/// A line: its name, what cargo runs, and the words by which its figures are known.
const LINES: [(&str, &[&str], &str); 2] = [
    (
        "incast",
        &["test", "--package", "everywire-fabric", "--test", "ib", "--", "--ignored", "--nocapture"],
        " packets in ",
    ),
    (
        "hops",
        &["run", "--package", "everywire-fabric", "--example", "hops", "--", "10", "--at-least", "2"],
        " million hops/s",
    ),
];
const LIMIT: Duration = Duration::from_secs(30 * 60);

pub fn run(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| name.starts_with(n.as_str()));
    if let Some(unknown) = names.iter().find(|n| !LINES.iter().any(|l| l.0.starts_with(n.as_str()))) {
        return Err(format!("no line of the fabric begins with {unknown:?}"));
    }
    for (name, args, figures) in LINES.into_iter().filter(|line| wanted(line.0)) {
        let started = Instant::now();
        let mut cargo = shell::cargo();
        cargo.args([args[0], "--quiet", "--profile", "soak"]).args(&args[1..]);
        let done = shell::run(&mut cargo, &super::logs().join(format!("fabric-{name}.log")), LIMIT)?;
        let figures = done.output.lines().find(|l| l.contains(figures)).unwrap_or_default().to_owned();
        let failure = (!done.ok() || figures.is_empty()).then(|| done.tail(1).trim().to_owned());
        each(Row { name: name.to_owned(), seconds: started.elapsed().as_secs(), figures, failure });
    }
    Ok(())
}
