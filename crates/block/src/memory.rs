//! How much memory this machine has, and how much of it may still be taken: proc(5) meminfo, and the limit of a container
//! (the kernel's cgroup-v2 document, "memory.max"). What cannot be read is `None`; nobody depends on it.

use std::fs;
use std::path::Path;

/// Bytes of memory that this process may use at most: the machine's, or its container's.
pub fn total() -> Option<u64> {
    let machine = meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")?;
    Some(container("memory.max").map_or(machine, |limit| limit.min(machine)))
}

/// Bytes that can be had without taking them from another program.
pub fn available() -> Option<u64> {
    let machine = meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")?;
    let left = container("memory.max").zip(container("memory.current"));
    Some(left.map_or(machine, |(limit, used)| machine.min(limit.saturating_sub(used))))
}

/// A line of meminfo, in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A number of this process's cgroup; `None` where there is none, or no limit.
fn container(file: &str) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let path = Path::new("/sys/fs/cgroup").join(group).join(file);
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       24621124 kB\nMemFree:        21000000 kB\nMemAvailable:   23000004 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(24_621_124 << 10));
        assert_eq!(meminfo(text, "MemAvailable"), Some(23_000_004 << 10));
        assert_eq!((meminfo(text, "Mem"), meminfo("MemTotal: many kB", "MemTotal")), (None, None));
    }

    #[test]
    fn this_machine_has_some() {
        let (total, available) = (total().expect("Linux"), available().expect("Linux"));
        assert!(available > 0 && available <= total, "{available} of {total}");
    }
}
