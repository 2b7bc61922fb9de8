//! One lab: a network namespace with a bridge, the host's own addresses on it, and guests on taps.
//!
//! Everything a lab starts ends with it: guests, captures and host programs are process groups killed on drop,
//! and the namespace is deleted. Several labs can run side by side. The addresses are the same in every lab:
//! the host is 192.168.77.1 and fd77::1, guest A is .11, guest B is .12.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use super::guest::Guest;
use crate::shell;

/// Which of its two addresses a machine is spoken to by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// The bridge, which has the host's addresses.
pub const BRIDGE: &str = "br0";

/// The address of machine `number` on the bridge.
pub fn address(number: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 168, 77, number).into(),
        // fd77::11 is written with the same digits as .11, so it is 0x11.
        Family::V6 => {
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number / 10 * 16 + number % 10)).into()
        }
    }
}

/// The same with its prefix's length.
fn with_prefix(number: u8, family: Family) -> String {
    let length = if family == Family::V4 { 24 } else { 64 };
    format!("{}/{length}", address(number, family))
}

/// The host's number; guests A and B are 11 and 12.
pub const HOST: u8 = 1;

/// A running lab.
pub struct Lab {
    namespace: String,
    image: PathBuf,
    /// Where logs, captures and the guests' jobs are kept.
    pub folder: PathBuf,
    /// The MTU that the bridge and the taps have now.
    pub mtu: u32,
}

impl Lab {
    /// Makes the namespace and the bridge; `image` is what `build-guest.sh` made.
    pub fn up(image: &Path, folder: &Path, mtu: u32) -> Result<Lab, String> {
        remove_left_over();
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder.join("share/jobs")).map_err(|e| format!("{}: {e}", folder.display()))?;
        copy_scripts(&folder.join("share"))?;
        let namespace = format!("everywire-{}", std::process::id());
        let lab = Lab { namespace, image: image.to_path_buf(), folder: folder.to_path_buf(), mtu };
        system(Command::new("ip").args(["netns", "add", &lab.namespace]))?;
        let mtu = mtu.to_string();
        lab.ip(&["link", "set", "lo", "up"])?;
        let bridge = ["type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0"];
        lab.ip(&[&["link", "add", BRIDGE], &bridge[..]].concat())?;
        lab.ip(&["link", "set", BRIDGE, "mtu", &mtu, "up"])?;
        lab.give_address(Family::V4)?;
        lab.give_address(Family::V6)?;
        Ok(lab)
    }

    /// Boots a guest and waits for its agent; `number` is the last part of its addresses.
    pub fn boot(&self, name: &'static str, number: u8) -> Result<Guest, String> {
        let tap = format!("tap-{name}");
        let mtu = self.mtu.to_string();
        self.ip(&["tuntap", "add", &tap, "mode", "tap"])?;
        self.ip(&["link", "set", &tap, "master", BRIDGE, "mtu", &mtu, "up"])?;
        Guest::boot(self, &self.image, name, number, &tap)
    }

    /// Changes the MTU of the bridge, of every tap, and of the guests.
    pub fn set_mtu(&mut self, guests: &[&Guest], mtu: u32) -> Result<(), String> {
        for guest in guests {
            self.ip(&["link", "set", &format!("tap-{}", guest.name), "mtu", &mtu.to_string()])?;
            guest.ok(&format!("ip link set eth0 mtu {mtu}"))?;
        }
        self.ip(&["link", "set", BRIDGE, "mtu", &mtu.to_string()])?;
        self.mtu = mtu;
        Ok(())
    }

    /// Takes a guest's cable out of the bridge; its tap stays up, and is captured on.
    pub fn pull(&self, guest: &Guest) -> Result<(), String> {
        self.ip(&["link", "set", &format!("tap-{}", guest.name), "nomaster"])
    }

    /// Puts it back.
    pub fn plug(&self, guest: &Guest) -> Result<(), String> {
        self.ip(&["link", "set", &format!("tap-{}", guest.name), "master", BRIDGE])
    }

    /// Gives the host its address of a family.
    pub fn give_address(&self, family: Family) -> Result<(), String> {
        let more = if family == Family::V4 { &[][..] } else { &["nodad"] };
        self.ip(&[&["addr", "add", &with_prefix(HOST, family), "dev", BRIDGE], more].concat())
    }

    /// Takes it away: what is sent there is not answered, and nothing says so.
    pub fn lose_address(&self, family: Family) -> Result<(), String> {
        self.ip(&["addr", "del", &with_prefix(HOST, family), "dev", BRIDGE])
    }

    /// A command that runs on the host's side of the bridge.
    pub fn host(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        // The death signal outlives exec: whatever ends the runner ends what it started.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "ip", "netns", "exec", &self.namespace]).arg(program);
        command
    }

    fn ip(&self, args: &[&str]) -> Result<(), String> {
        system(Command::new("ip").args(["-n", &self.namespace]).args(args))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).output();
    }
}

/// A host program that lives until it is stopped or dropped.
pub struct Background {
    child: Child,
    /// Its output.
    pub log: PathBuf,
}

impl Background {
    /// Starts a program with its output in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Background, String> {
        Ok(Background { child: shell::spawn(command, log)?, log: log.to_path_buf() })
    }

    /// Waits until the output holds `text`.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<(), String> {
        let end = std::time::Instant::now() + limit;
        loop {
            let output = self.output();
            if output.contains(text) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended ({status}) before it said {text:?}:\n{}", self.output()));
            }
            if std::time::Instant::now() > end {
                return Err(format!("did not say {text:?} in {limit:?}:\n{output}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends a signal to it and what it started.
    pub fn signal(&self, signal: rustix::process::Signal) {
        shell::signal_group(self.child.id(), signal);
    }

    /// Waits for its end, and gives the exit code and the output; killed, with no code, after `limit`.
    pub fn end(mut self, limit: Duration) -> (Option<i32>, String) {
        let code = self.wait(limit);
        (code, self.output())
    }

    /// Waits for its end and gives the exit code; none if it does not end in time or by a signal.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        shell::wait(&mut self.child, limit)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        shell::kill_group(&self.child);
        let _ = self.child.wait();
    }
}

/// Deletes the namespaces of runners that were killed.
fn remove_left_over() {
    let Ok(namespaces) = fs::read_dir("/run/netns") else { return };
    for name in namespaces.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(owner) = name.strip_prefix("everywire-") else { continue };
        if !Path::new("/proc").join(owner).exists() {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

fn copy_scripts(share: &Path) -> Result<(), String> {
    let from = shell::root().join("interop/guest");
    for entry in fs::read_dir(&from).map_err(|e| format!("{}: {e}", from.display()))?.flatten() {
        fs::copy(entry.path(), share.join(entry.file_name()))
            .map_err(|e| format!("{:?}: {e}", entry.path()))?;
    }
    Ok(())
}

/// Runs a short system command; its standard error is the error.
pub fn system(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|e| format!("cannot run {:?}: {e}", command.get_program()))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_show_the_same_number() {
        assert_eq!(address(11, Family::V4).to_string(), "192.168.77.11");
        assert_eq!(address(11, Family::V6).to_string(), "fd77::11");
        assert_eq!(address(1, Family::V6).to_string(), "fd77::1");
    }
}
