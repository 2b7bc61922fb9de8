//! Network namespaces for tests that need a real link: two, with a veth pair between them.
//! They need CAP_SYS_ADMIN; without, the tests that use them say so and are skipped.

use std::process::Command;

/// Two namespaces with a veth pair between them, gone when dropped.
pub(crate) struct Pair {
    names: [String; 2],
}

impl Pair {
    /// One with this MTU; `None`, with a word why, where there can be none. Addresses: 10.99.0.1 and .2, fd99::1 and ::2,
    /// fe80::1 and ::2.
    pub(crate) fn new(tag: &str, mtu: u32) -> Option<Pair> {
        let pid = std::process::id();
        let names = [format!("ew{tag}a{pid}"), format!("ew{tag}b{pid}")];
        let (a, b) = (&names[0], &names[1]);
        let script = format!("set -e; ip netns add {a}; ip netns add {b}; {}", link(a, b, mtu));
        let pair = Pair { names: names.clone() };
        match Command::new("sh").args(["-c", &script]).output() {
            Ok(output) if output.status.success() => Some(pair),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                everywire_testkit::skipped(format_args!("no network namespaces here: {said}"));
                None
            }
            Err(error) => {
                everywire_testkit::skipped(format_args!("sh: {error}"));
                None
            }
        }
    }

    /// Makes the veth pair anew, once it was deleted: with the same names and addresses.
    pub(crate) fn link_again(&self, mtu: u32) {
        let script = format!("set -e; {}", link(&self.names[0], &self.names[1], mtu));
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
    }

    /// What ip(8) shows in a namespace.
    pub(crate) fn shows(&self, end: usize, command: &str) -> String {
        let output = Command::new("ip").args(["-n", &self.names[end]]).args(command.split(' ')).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    /// Runs ip(8) in a namespace.
    pub(crate) fn ip(&self, end: usize, command: &str) {
        let status = Command::new("ip").args(["-n", &self.names[end]]).args(command.split(' ')).status();
        assert!(status.unwrap().success(), "ip {command}");
    }

    /// Moves this thread into a namespace.
    pub(crate) fn enter(&self, end: usize) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.names[end])).unwrap();
        rustix::thread::move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&file),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )
        .unwrap();
    }
}

/// Shell commands that make the veth pair between two namespaces.
fn link(a: &str, b: &str, mtu: u32) -> String {
    format!(
        "ip -n {a} link add eth0 type veth peer name eth0 netns {b}
         ip -n {a} link set eth0 addrgenmode none; ip -n {b} link set eth0 addrgenmode none
         ip -n {a} addr add 10.99.0.1/24 dev eth0; ip -n {b} addr add 10.99.0.2/24 dev eth0
         ip -n {a} addr add fd99::1/64 dev eth0 nodad; ip -n {b} addr add fd99::2/64 dev eth0 nodad
         ip -n {a} addr add fe80::1/64 dev eth0 nodad; ip -n {b} addr add fe80::2/64 dev eth0 nodad
         ip -n {a} link set eth0 mtu {mtu} up; ip -n {b} link set eth0 mtu {mtu} up
         ip -n {a} link set lo up; ip -n {b} link set lo up"
    )
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}
