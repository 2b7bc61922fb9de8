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
        "device {name:?}: {why}; devices are named rocev2:ADDRESS (rocev2:192.0.2.1, rocev2:fe80::1%eth0) or \
         rocev2-raw:INTERFACE/ADDRESS"
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
        "cannot open a device at {addr}: {owner}; one device owns an address, another 127.x address is free for use"
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
    /// The capture file cannot be written.
    #[error("cannot write the capture {path:?}: {source}")]
    Capture {
        /// The file.
        path: PathBuf,
        /// What the system said.
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
