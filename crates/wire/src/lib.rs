//! The network's catalogue: every header and message as bytes, both ways.
//!
//! Each protocol has one file and each header one `struct` ("repr") with `LEN`, `parse` and `emit`. A repr keeps every bit of
//! its header, reserved ones included, so that `emit(parse(x)) == x` for every `x` that parses. Nothing here allocates on
//! the data path, opens a socket, keeps state about a peer or judges whether a well-formed message is welcome.
//! Read first: [`bth`] and [`ext_headers`] (IBTA chapter 9), then [`roce`] and [`icrc`] (annexes A16, A17), then [`cm`] (chapter 12).
//! iWARP: [`mpa`] (RFC 5044, 6581), [`ddp`] (RFC 5041), [`rdmap`] (RFC 5040, 7306).
#![forbid(unsafe_code)]

pub mod bth;
pub mod cm;
pub mod ddp;
mod error;
pub mod eth;
pub mod ext_headers;
mod field;
pub mod frame;
pub mod grh;
pub mod icrc;
pub mod ids;
pub mod ip;
pub mod ip_cm;
mod layout;
pub mod lrh;
pub mod mad;
pub mod mpa;
pub mod notice;
pub mod opcode;
pub mod perf;
pub mod rdmap;
pub mod roce;
pub mod sa;
pub mod smp;
pub mod tcp;
pub mod udp;
pub mod vcrc;

pub use bth::Bth;
pub use error::WireError;
pub use eth::MacAddr;
pub use ext_headers::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, NakCode, Reth, Syndrome, SyndromeKind,
};
pub use frame::{RoceV1Frame, UdpFrame};
pub use icrc::{HiddenFields, HiddenId, IcrcHasher, IcrcV4, IcrcV6, icrc_grh, icrc_ib, icrc_v4, icrc_v6};
pub use ids::{Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey};
pub use lrh::{Lnh, Lrh};
pub use mad::{MAD_LEN, Mad};
pub use opcode::{Opcode, Service};
pub use roce::{ROCE_UDP_PORT, RocePacket};
