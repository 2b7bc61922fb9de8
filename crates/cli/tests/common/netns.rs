//! Network namespaces in a row, each joined to the next by a veth pair; those in the middle forward. They need CAP_NET_ADMIN;
//! without, a test says so and passes.

use std::process::Command;

/// Namespaces, gone when dropped.
pub struct Namespaces(Vec<String>);

impl Namespaces {
    /// Two, with 10.97.0.1 and 10.97.0.2 at their interfaces `eth0`.
    pub fn pair(tag: &str) -> Option<Namespaces> {
        let names = Namespaces::named(tag, 2);
        let (a, b) = (&names.0[0], &names.0[1]);
        let script = format!(
            "ip -n {a} link add eth0 type veth peer name eth0 netns {b}
             ip -n {a} addr add 10.97.0.1/24 dev eth0; ip -n {b} addr add 10.97.0.2/24 dev eth0
             ip -n {a} link set eth0 up; ip -n {b} link set eth0 up; ip -n {a} link set lo up; ip -n {b} link set lo up"
        );
        names.set_up(&script)
    }

    /// Three: the ends have 10.97.1.1 and 10.97.2.1, fd00:97:1::1 and fd00:97:2::1 at their interfaces `eth0`, and the one
    /// between is their router.
    pub fn routed(tag: &str) -> Option<Namespaces> {
        let names = Namespaces::named(tag, 3);
        let router = &names.0[1];
        let mut script = format!(
            "ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
             ip -n {router} link set lo up\n"
        );
        for (n, end) in [(1, &names.0[0]), (2, &names.0[2])] {
            script += &format!(
                "ip -n {end} link add eth0 type veth peer name eth{n} netns {router}
                 ip -n {end} addr add 10.97.{n}.1/24 dev eth0; ip -n {end} addr add fd00:97:{n}::1/64 dev eth0 nodad
                 ip -n {router} addr add 10.97.{n}.254/24 dev eth{n}
                 ip -n {router} addr add fd00:97:{n}::fe/64 dev eth{n} nodad
                 ip -n {end} link set eth0 up; ip -n {end} link set lo up; ip -n {router} link set eth{n} up
                 ip -n {end} route add default via 10.97.{n}.254; ip -n {end} -6 route add default via fd00:97:{n}::fe\n"
            );
        }
        names.set_up(&script)
    }

    fn named(tag: &str, count: usize) -> Namespaces {
        let pid = std::process::id();
        Namespaces((0..count).map(|n| format!("ewcli-{tag}{n}-{pid}")).collect())
    }

    fn set_up(self, script: &str) -> Option<Namespaces> {
        let add: String = self.0.iter().map(|name| format!("ip netns add {name}\n")).collect();
        match Command::new("sh").args(["-c", &format!("set -e\n{add}{script}")]).output() {
            Ok(output) if output.status.success() => Some(self),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                everywire_testkit::skipped(format_args!("no network namespaces here: {said}"));
                None
            }
            Err(error) => {
                everywire_testkit::skipped(format_args!("sh: {error}"));
                None
            }
        }
    }

    /// The program, in one of the namespaces.
    pub fn everywire(&self, end: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[end], env!("CARGO_BIN_EXE_everywire")]).args(args);
        command.env_remove("EVERYWIRE_LOG");
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
