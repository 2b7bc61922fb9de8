//! Why a device cannot be opened, in words that say what to do.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Opening a device on this host failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device name does not have one of the known forms.
    #[error(
        "device {name:?}: {why}; devices are named rocev2:ADDRESS (rocev2:192.0.2.1, rocev2:fe80::1%eth0), \
         rocev2-raw:INTERFACE/ADDRESS, rocev1:INTERFACE/ADDRESS, iwarp:ADDRESS or ib:FABRIC/HOST/PORT[,path=N]"
    )]
    Name {
        /// The name as it was given.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The address cannot be a device's.
    #[error("a device cannot have the address {ip}: {why}")]
    Address {
        /// The address.
        ip: IpAddr,
        /// Why not.
        why: String,
    },
    /// The address belongs to no interface of this host.
    #[error("{ip} is not an address of this host ({source}); `everywire devices` lists those that are")]
    NotOurs {
        /// The address.
        ip: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody has UDP port 4791 of the address.
    #[error(
        "cannot open a device at {addr}: {owner}; one device owns an address, {}", another_address(addr.ip())
    )]
    InUse {
        /// Address and port.
        addr: SocketAddr,
        /// Who owns it, as far as this process may see.
        owner: String,
    },
    /// No free source port was found.
    #[error("cannot bind a source port of {ip} in {tries} tries between 49152 and 65535: {source}")]
    SourcePorts {
        /// The device's address.
        ip: IpAddr,
        /// How many ports were tried.
        tries: u32,
        /// What the kernel said of the last.
        source: io::Error,
    },
    /// The interface is too small for RoCE v2.
    #[error(
        "interface {interface} has MTU {mtu}; RoCE v2 needs at least 340 bytes (path MTU 256 and its headers)"
    )]
    MtuTooSmall {
        /// Name of the interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: usize,
    },
    /// The MTU asked for does not fit.
    #[error("path MTU {asked} does not fit interface {interface} with MTU {mtu}: at most {most}")]
    MtuTooLarge {
        /// The path MTU asked for, in bytes.
        asked: usize,
        /// Name of the interface.
        interface: String,
        /// MTU of the interface, in bytes.
        mtu: usize,
        /// The largest path MTU that fits, in bytes.
        most: usize,
    },
    /// Raw Ethernet needs a capability.
    #[error("raw Ethernet on {interface} needs CAP_NET_RAW ({source}); rocev2:ADDRESS needs no privilege")]
    NoRawPrivilege {
        /// Name of the interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The capture would overwrite something that is none.
    #[error("no capture is written to {path:?}: {why}")]
    NoCapture {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// The process, or the system, has no file descriptors left.
    #[error("cannot open the device: {0}")]
    Descriptors(String),
    /// The capture file cannot be written.
    #[error("cannot write the capture {path:?}: {source}")]
    Capture {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no interface of that name.
    #[error("there is no interface {name:?} on this host; `everywire devices` lists those with addresses")]
    NoInterface {
        /// The name.
        name: String,
    },
    /// The fabric has no such port, or none for programs.
    #[error("there is no device {name}: {why}")]
    NoFabricPort {
        /// The device's name.
        name: String,
        /// What there is instead.
        why: String,
    },
    /// The fabric does not run, or does not give the port away.
    #[error("cannot open {name}: {source}")]
    Fabric {
        /// The device's name.
        name: String,
        /// What the fabric or the system said.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {step} for the device at {ip}: {source}")]
    System {
        /// What was being done.
        step: &'static str,
        /// The device's address.
        ip: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

impl OpenError {
    /// A port that is not to be had: `InvalidInput` says that there is none.
    pub(crate) fn fabric(name: &str, source: io::Error) -> OpenError {
        let name = name.to_owned();
        match source.kind() {
            io::ErrorKind::InvalidInput => OpenError::NoFabricPort { name, why: source.to_string() },
            _ => OpenError::Fabric { name, source },
        }
    }

    /// An interface that cannot be asked for, or that is not there.
    pub(crate) fn interface(name: &str, ip: IpAddr, source: io::Error) -> OpenError {
        match source.kind() {
            io::ErrorKind::NotFound => OpenError::NoInterface { name: name.to_owned() },
            _ => OpenError::System { step: "find the interface", ip, source },
        }
    }

    /// The same, with the limit named if file descriptors have run out.
    pub(crate) fn with_limit(self) -> OpenError {
        let source = match &self {
            OpenError::NotOurs { source, .. }
            | OpenError::SourcePorts { source, .. }
            | OpenError::NoRawPrivilege { source, .. }
            | OpenError::Capture { source, .. }
            | OpenError::System { source, .. } => source,
            _ => return self,
        };
        out_of_descriptors(source).map_or(self, OpenError::Descriptors)
    }
}

/// The same error, with the limit named if file descriptors have run out.
pub fn with_limit(error: io::Error) -> io::Error {
    match out_of_descriptors(&error) {
        Some(text) => io::Error::new(error.kind(), text),
        None => error,
    }
}

/// Lets this process have as many descriptors as it may, for thousands of connections.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    // Without it whoever runs out of descriptors says so.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// Which limit was met, if the error is of having no file descriptors left.
fn out_of_descriptors(error: &io::Error) -> Option<String> {
    match error.raw_os_error()? {
        libc::EMFILE => Some(match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            Some(limit) => format!("this process may have only {limit} file descriptors open (ulimit -n)"),
            None => "this process has no file descriptors left (ulimit -n)".to_owned(),
        }),
        libc::ENFILE => Some("the system has no file descriptors left (sysctl fs.file-max)".to_owned()),
        _ => None,
    }
}

/// What to do about an address that is in use.
fn another_address(ip: IpAddr) -> &'static str {
    if ip.is_loopback() && ip.is_ipv4() {
        "another 127.x address is free for use"
    } else {
        "so name another with --device, or add an address to the interface"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_met_is_named() {
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        let error = OpenError::SourcePorts { ip: [127, 0, 0, 1].into(), tries: 256, source }.with_limit();
        let text = error.to_string();
        assert!(text.contains("ulimit -n") && !text.contains("256 tries"), "{text}");
        assert!(with_limit(io::Error::from_raw_os_error(libc::ENFILE)).to_string().contains("file-max"));
        assert_eq!(with_limit(io::ErrorKind::NotFound.into()).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_loopback_hint_is_for_loopback() {
        let text = |addr: &str| {
            OpenError::InUse { addr: addr.parse().unwrap(), owner: "held".to_owned() }.to_string()
        };
        assert!(text("127.0.0.1:4791").contains("another 127.x address"));
        assert!(text("192.0.2.1:4791").contains("--device") && !text("192.0.2.1:4791").contains("127.x"));
    }
}
