//! The rows of work requests that end in error, each with its clause and the class of error that it leads to.
//!
//! Read IBTA vol. 1 table 57 (§9.9.3, errors by class) first.

use everywire_verbs::{QpType, WcStatus};

use super::expect::Class;
use crate::transfer::Kind;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// L_Key that does not exist.
    LocalKey,
    /// The same in the second segment only.
    SecondLocalKey,
    /// L_Key of another domain.
    LocalDomain,
    /// One byte past the region.
    LocalBounds,
    /// Past the end of the address space.
    LocalWrap,
    /// A sink that may not be written.
    LocalPermission,
    /// L_Key of a region that is gone.
    LocalDead,
    /// More than 2^31 bytes.
    TooLong,
    /// 2^31 bytes in a region that is shorter.
    LongestOutside,
    /// Seven bytes for an atomic's eight.
    ShortSink,
    /// READs and atomics where none may be outstanding.
    NoReadDepth,
    /// R_Key that does not exist.
    RemoteKey,
    /// R_Key of another domain.
    RemoteDomain,
    /// One byte past the region.
    RemoteBounds,
    /// Many packets, of which only the last is past the region.
    RemoteBoundsOfMany,
    /// Past the end of the address space.
    RemoteWrap,
    /// The region does not allow it.
    RemotePermission,
    /// R_Key of a region that is gone.
    RemoteDead,
    /// The peer's queue pair does not allow it.
    QueuePairPermission,
    /// An atomic at an address that is no multiple of eight.
    Misaligned,
    /// A receive of one byte.
    ShortReceive,
    /// A receive that is one byte too short.
    ShortReceiveByOne,
    /// No receive.
    NoReceive,
    /// A receive whose own L_Key does not exist.
    ReceiveKey,
    /// SEND with Invalidate of a key that does not exist.
    InvalidatesNothing,
    /// SEND with Invalidate of a plain region.
    InvalidatesRegion,
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) wrong: Wrong,
    /// With which operations.
    pub(crate) kinds: &'static [Kind],
    pub(crate) leads_to: Class,
    /// Where the standard says so.
    pub(crate) clause: &'static str,
}

/// Every operation, once.
const ANY: &[Kind] =
    &[Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm, Kind::Read, Kind::Swap, Kind::Add];
/// Those that land in local memory.
const FETCHING: &[Kind] = &[Kind::Read, Kind::NoSwap, Kind::Add];
const ATOMIC: &[Kind] = &[Kind::Swap, Kind::NoSwap, Kind::Add];
/// Those that name the peer's memory.
const REMOTE: &[Kind] = &[Kind::Write, Kind::WriteImm, Kind::Read, Kind::Swap, Kind::NoSwap, Kind::Add];
const SENDING: &[Kind] = &[Kind::Send, Kind::SendImm];
/// Those with a length of their own.
const LONG: &[Kind] = &[Kind::Send, Kind::Write, Kind::Read];

const PROTECTION: Class = Class::Local(WcStatus::LocProtErr);

const fn row(wrong: Wrong, kinds: &'static [Kind], leads_to: Class, clause: &'static str) -> Fault {
    Fault { wrong, kinds, leads_to, clause }
}

/// All rows.
pub(crate) const ROWS: &[Fault] = &[
    row(Wrong::LocalKey, ANY, PROTECTION, "IBTA §11.6.2, local protection error"),
    row(Wrong::SecondLocalKey, LONG, PROTECTION, "IBTA §11.6.2, local protection error"),
    row(Wrong::LocalDomain, ANY, PROTECTION, "IBTA §10.2.3"),
    row(Wrong::LocalBounds, ANY, PROTECTION, "IBTA §10.6.3"),
    row(Wrong::LocalWrap, ANY, PROTECTION, "IBTA §10.6.3"),
    row(Wrong::LocalPermission, FETCHING, PROTECTION, "IBTA §10.6.3.1"),
    row(Wrong::LocalDead, LONG, PROTECTION, "IBTA §10.6.5"),
    row(Wrong::TooLong, LONG, Class::Local(WcStatus::LocLenErr), "IBTA §9.7.1"),
    row(Wrong::LongestOutside, LONG, PROTECTION, "IBTA §9.7.1"),
    row(Wrong::ShortSink, ATOMIC, Class::Local(WcStatus::LocLenErr), "IBTA §9.4.5"),
    row(Wrong::NoReadDepth, FETCHING, Class::Local(WcStatus::LocQpOpErr), "IBTA C9-88"),
    row(Wrong::RemoteKey, REMOTE, Class::Access, "IBTA §9.7.4.1.5, table 57"),
    row(Wrong::RemoteDomain, REMOTE, Class::Access, "IBTA §10.2.3, table 57"),
    row(Wrong::RemoteBounds, REMOTE, Class::Access, "IBTA §9.7.4.1.5, table 57"),
    row(Wrong::RemoteBoundsOfMany, &[Kind::Write, Kind::Read], Class::Access, "IBTA §9.7.4.1.5"),
    row(Wrong::RemoteWrap, &[Kind::Write, Kind::Read, Kind::Add], Class::Access, "IBTA §9.7.4.1.5"),
    row(Wrong::RemotePermission, REMOTE, Class::Access, "IBTA §10.6.3.1, table 57"),
    row(Wrong::RemoteDead, REMOTE, Class::Access, "IBTA §10.6.5"),
    row(Wrong::QueuePairPermission, REMOTE, Class::Unsupported, "IBTA table 57, unsupported opcode"),
    row(Wrong::Misaligned, ATOMIC, Class::Invalid, "IBTA §9.4.5, table 57"),
    row(Wrong::ShortReceive, SENDING, Class::TooLong, "IBTA C9-60, table 57"),
    row(Wrong::ShortReceiveByOne, SENDING, Class::TooLong, "IBTA C9-60, table 57"),
    row(Wrong::NoReceive, &[Kind::Send, Kind::SendImm, Kind::WriteImm], Class::NotReady, "IBTA §9.7.5.2.8"),
    row(Wrong::ReceiveKey, SENDING, Class::OwnMemory, "IBTA table 57, malformed WQE"),
    row(Wrong::InvalidatesNothing, &[Kind::SendInv], Class::Invalidate, "IBTA §10.6.5.2"),
    row(Wrong::InvalidatesRegion, &[Kind::SendInv], Class::Invalidate, "IBTA §10.6.5.2"),
];

impl Fault {
    /// The operations of a service that the row is tried with.
    pub(crate) fn kinds_on(&self, ty: QpType) -> impl Iterator<Item = Kind> {
        self.kinds.iter().copied().filter(move |kind| kind.on(ty))
    }
}
