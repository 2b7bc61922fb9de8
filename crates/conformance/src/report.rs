//! What a run found, and the matrix of several runs.

use std::collections::BTreeMap;
use std::fmt;

/// A group of cases: a row of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// What the device says about itself.
    Attributes,
    /// Reliable connections: every operation, length, shape and flag.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Datagrams.
    Ud,
    /// Many operations at once, in order.
    Pipeline,
    /// Fast registration, windows, invalidation: what they open and what not.
    Memory,
    /// What is refused at the call.
    Posting,
    /// Errors of work requests on a reliable connection.
    RcErrors,
    /// Errors of work requests on an unreliable connection.
    UcErrors,
    /// Errors of datagrams.
    UdErrors,
    /// Completion queues, shared receive queues, flushes, states.
    Queues,
    /// The connection manager.
    Connecting,
    /// Multicast groups.
    Multicast,
    /// A peer that is gone.
    Death,
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Group::Attributes => "attributes",
            Group::Rc => "RC operations",
            Group::Uc => "UC operations",
            Group::Ud => "UD operations",
            Group::Pipeline => "pipelines",
            Group::Memory => "memory operations",
            Group::Posting => "posting",
            Group::RcErrors => "RC errors",
            Group::UcErrors => "UC errors",
            Group::UdErrors => "UD errors",
            Group::Queues => "queues and states",
            Group::Connecting => "connecting",
            Group::Multicast => "multicast",
            Group::Death => "a dead peer",
        }
    }
}

/// A group's cases by how they ended.
#[derive(Clone, Debug, Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    /// Reasons, and how many cases each left out.
    excluded: BTreeMap<&'static str, usize>,
}

/// What one run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    groups: BTreeMap<Group, Tally>,
}

impl Report {
    pub(crate) fn passed(&mut self, group: Group) {
        self.groups.entry(group).or_default().passed += 1;
    }

    pub(crate) fn failed(&mut self, group: Group, case: impl fmt::Display, why: &str) {
        let line = format!("{}: {case}: {why}", group.name());
        self.groups.entry(group).or_default().failed.push(line);
    }

    pub(crate) fn excluded(&mut self, group: Group, why: &'static str) {
        *self.groups.entry(group).or_default().excluded.entry(why).or_default() += 1;
    }

    pub(crate) fn failed_in(&self, group: Group) -> usize {
        self.groups.get(&group).map_or(0, |tally| tally.failed.len())
    }

    /// How many cases passed.
    pub fn count(&self) -> usize {
        self.groups.values().map(|tally| tally.passed).sum()
    }

    /// Every case that failed, a line each.
    pub fn failures(&self) -> Vec<&str> {
        self.groups.values().flat_map(|tally| tally.failed.iter().map(String::as_str)).collect()
    }
}

/// Several runs: case groups down, runs across.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    runs: Vec<(String, Report)>,
}

impl Matrix {
    /// Adds a run under its name: the wire and the driver.
    pub fn add(&mut self, name: impl Into<String>, report: Report) {
        self.runs.push((name.into(), report));
    }

    /// Every failure of every run.
    pub fn failures(&self) -> Vec<String> {
        let lines = |(name, report): &(String, Report)| -> Vec<String> {
            report.failures().iter().map(|line| format!("{name}: {line}")).collect()
        };
        self.runs.iter().flat_map(lines).collect()
    }

    /// Prints it.
    ///
    /// # Panics
    /// If a case failed, with all that did.
    pub fn judge(&self) {
        println!("{self}");
        let failures = self.failures();
        assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: Vec<Group> = self.runs.iter().flat_map(|run| run.1.groups.keys().copied()).collect();
        groups.sort();
        groups.dedup();
        let mut notes: Vec<&'static str> = Vec::new();
        let mut cell = |tally: Option<&Tally>| {
            let Some(tally) = tally else { return String::from("-") };
            let mut text = tally.passed.to_string();
            if !tally.failed.is_empty() {
                text += &format!(", {} FAILED", tally.failed.len());
            }
            for (why, count) in &tally.excluded {
                let known = notes.iter().position(|note| note == why);
                let number = known.unwrap_or_else(|| {
                    notes.push(why);
                    notes.len() - 1
                });
                text += &format!(", {count} left out [{}]", number + 1);
            }
            text
        };
        let mut table: Vec<Vec<String>> = Vec::new();
        table.push([String::new()].into_iter().chain(self.runs.iter().map(|run| run.0.clone())).collect());
        for group in groups {
            let cells = self.runs.iter().map(|run| cell(run.1.groups.get(&group)));
            table.push([group.name().to_string()].into_iter().chain(cells).collect());
        }
        for line in &table {
            for (column, text) in line.iter().enumerate() {
                let width = table.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
                write!(f, "{text:width$}  ")?;
            }
            writeln!(f)?;
        }
        for (number, note) in notes.iter().enumerate() {
            writeln!(f, "[{}] {note}", number + 1)?;
        }
        Ok(())
    }
}
