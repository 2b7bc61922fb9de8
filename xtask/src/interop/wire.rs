//! What a case's messages travel on, and with it the guest's RDMA device: soft-RoCE, or soft-iWARP in one of the variants
//! that interop/build-siw.sh makes, which Linux has as constants of the module and not as parameters.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::shell;

/// A wire, as the guest's device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Linux's rxe.
    RoceV2,
    /// Linux's siw.
    Iwarp(Siw),
    /// TCP itself, of iSCSI; the guest has soft-RoCE beside it.
    Tcp,
}

/// What a siw module asks of its peers, and our device of it. All modules do what a peer asks of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Siw {
    /// No CRC, no peer-to-peer connection.
    Plain,
    /// A CRC in every FPDU (RFC 5044 §7.1).
    Crc,
    /// Peer-to-peer connections (RFC 6581 §9).
    P2p,
    /// Both.
    P2pCrc,
    /// The plain module, and our device as it comes, which offers a CRC.
    Offered,
    /// `P2p` with the other RTR.
    P2pRead,
    /// `P2pCrc` with the other RTR.
    P2pCrcWrite,
}

/// One of them: its name in a case's, the module's file without `.ko`, and our device's options beside it.
type Row = (&'static str, &'static str, &'static str);

impl Siw {
    /// Every module, with what is off in it off on the wire and what is on in it on whoever connects.
    pub const ALL: [Siw; 4] = [Siw::Plain, Siw::Crc, Siw::P2p, Siw::P2pCrc];

    /// What our device asks of a module that does not.
    pub const ASKED: [Siw; 3] = [Siw::Offered, Siw::P2pRead, Siw::P2pCrcWrite];

    fn row(self) -> Row {
        match self {
            Siw::Plain => ("", "plain", ",crc=off"),
            Siw::Crc => ("crc-", "crc", ""),
            Siw::P2p => ("p2p-", "p2p", ",crc=off,rtr=write"),
            Siw::P2pCrc => ("p2p-crc-", "p2p-crc", ",rtr=read"),
            Siw::Offered => ("offered-", "plain", ""),
            Siw::P2pRead => ("p2p-read-", "p2p", ",crc=off,rtr=read"),
            Siw::P2pCrcWrite => ("p2p-crc-write-", "p2p-crc", ",rtr=write"),
        }
    }

    /// Whether FPDUs have CRCs.
    pub fn with_crc(self) -> bool {
        matches!(self, Siw::Crc | Siw::P2pCrc | Siw::Offered | Siw::P2pCrcWrite)
    }

    /// Whether it opens connections peer to peer.
    pub fn peer_to_peer(self) -> bool {
        !matches!(self, Siw::Plain | Siw::Crc | Siw::Offered)
    }

    /// What names of cases have of it.
    pub fn prefix(self) -> &'static str {
        self.row().0
    }

    /// The module's file name, without `.ko`.
    pub fn module(self) -> &'static str {
        self.row().1
    }

    fn ours(self) -> &'static str {
        self.row().2
    }
}

impl Wire {
    /// The job that gives a guest this wire's device, in the place of the one it has.
    pub fn up(self) -> String {
        match self {
            Wire::RoceV2 | Wire::Tcp => "bash /lab/wire.sh rxe".into(),
            Wire::Iwarp(siw) => format!("bash /lab/wire.sh siw {}", siw.module()),
        }
    }

    /// Our device on it at that address, as `--device` names it.
    pub fn device(self, address: std::net::IpAddr) -> String {
        match self {
            Wire::RoceV2 | Wire::Tcp => format!("rocev2:{address}"),
            Wire::Iwarp(siw) => format!("iwarp:{address}{}", siw.ours()),
        }
    }

    /// What to capture of it. Guests and host speak no TCP but iWARP, and NBD.
    pub fn filter(self) -> &'static str {
        match self {
            Wire::RoceV2 => "udp port 4791",
            Wire::Tcp => "tcp port 3260",
            Wire::Iwarp(_) => "tcp and not port 10809",
        }
    }
}

/// Builds the siw modules, or finds them built, and gives their folder; `log` takes what the build says.
pub fn build_siw(log: &Path) -> Result<PathBuf, String> {
    let script = shell::root().join("interop/build-siw.sh");
    let done = shell::run(&mut Command::new(script), log, Duration::from_secs(15 * 60))?;
    if !done.ok() {
        return Err(format!("siw does not build:\n{}", done.tail(30)));
    }
    Ok(PathBuf::from(done.output.lines().last().unwrap_or_default().trim()))
}
