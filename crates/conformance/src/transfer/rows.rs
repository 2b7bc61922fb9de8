//! The rows of what succeeds: operation × length × segments × flags × service × where receives come from.
//!
//! Read IBTA vol. 1 table 29 (§9.2.1, operations by service) first. Every combination of short rows is there; the long
//! ones, which cost time, take the combinations of flags in turn.

use std::fmt;

use everywire_verbs::{QpType, WcOpcode, WireFeature};

use crate::layout::Shape;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// SEND with Invalidate.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap that swaps.
    Swap,
    /// Compare and swap that does not.
    NoSwap,
    /// Fetch and add.
    Add,
}

impl Kind {
    pub(crate) const ALL: [Kind; 9] = [
        Kind::Send,
        Kind::SendImm,
        Kind::SendInv,
        Kind::Write,
        Kind::WriteImm,
        Kind::Read,
        Kind::Swap,
        Kind::NoSwap,
        Kind::Add,
    ];

    /// Whether the service has it (IBTA table 29; SEND with Invalidate by §9.4.1.1).
    pub(crate) fn on(self, ty: QpType) -> bool {
        match ty {
            QpType::Rc => true,
            QpType::Uc => matches!(self, Kind::Send | Kind::SendImm | Kind::Write | Kind::WriteImm),
            QpType::Ud => matches!(self, Kind::Send | Kind::SendImm),
        }
    }

    /// What the wire must have for it.
    pub(crate) fn needs(self) -> Option<WireFeature> {
        match self {
            Kind::SendImm | Kind::WriteImm => Some(WireFeature::Immediate),
            Kind::Swap | Kind::NoSwap | Kind::Add => Some(WireFeature::Atomics),
            _ => None,
        }
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Kind::Swap | Kind::NoSwap | Kind::Add)
    }

    /// Whether bytes come back.
    pub(crate) fn fetches(self) -> bool {
        self == Kind::Read || self.is_atomic()
    }

    /// Opcode of the send completion.
    pub(crate) fn sent(self) -> WcOpcode {
        match self {
            Kind::Send | Kind::SendImm | Kind::SendInv => WcOpcode::Send,
            Kind::Write | Kind::WriteImm => WcOpcode::RdmaWrite,
            Kind::Read => WcOpcode::RdmaRead,
            Kind::Swap | Kind::NoSwap => WcOpcode::CompSwap,
            Kind::Add => WcOpcode::FetchAdd,
        }
    }
}

/// Where the bytes come from, or land in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the work request.
    Inline,
    /// In segments.
    Sges(Shape),
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) ty: QpType,
    /// Receives come from a shared queue.
    pub(crate) srq: bool,
    pub(crate) kind: Kind,
    pub(crate) length: usize,
    pub(crate) source: Source,
    /// Of the receive's segments, where there are any.
    pub(crate) receive: Shape,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
}

impl Case {
    /// An operation with nothing special about it.
    pub(crate) fn plain(kind: Kind, length: usize) -> Case {
        Case {
            ty: QpType::Rc,
            srq: false,
            kind,
            length,
            source: Source::Sges(Shape::One),
            receive: Shape::One,
            signaled: true,
            solicited: false,
            fence: false,
        }
    }

    /// Whether its bytes are in several segments.
    pub(crate) fn many(&self) -> bool {
        matches!(self.source, Source::Sges(Shape::Two | Shape::Most))
    }

    /// Receives that it uses.
    pub(crate) fn receives(&self) -> usize {
        let consumes = matches!(self.kind, Kind::Send | Kind::SendImm | Kind::SendInv | Kind::WriteImm);
        usize::from(consumes)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { ty, kind, length, source, receive, .. } = self;
        write!(f, "{} {kind:?} of {length} bytes, {source:?} into {receive:?}", ty.name())?;
        let flags = [
            (self.srq, "SRQ"),
            (!self.signaled, "unsignaled"),
            (self.solicited, "solicited"),
            (self.fence, "fence"),
        ];
        flags.iter().filter(|flag| flag.0).try_for_each(|flag| write!(f, ", {}", flag.1))
    }
}

/// Bytes a queue pair of the suite takes inline.
const INLINE: usize = 4096;

/// Lengths at the edges: of words, of packets, of 16-bit lengths, and one long message.
fn lengths(ty: QpType, mtu: usize) -> Vec<usize> {
    let mut all = vec![0, 1, 3, 4, mtu - 1, mtu];
    if ty != QpType::Ud {
        all.extend([mtu + 1, 2 * mtu, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 20]);
    }
    all
}

/// All rows of a service. Of those that differ in flags only, every `thin`-th is kept.
pub(crate) fn cases(ty: QpType, srq: bool, mtu: usize, thin: usize) -> Vec<Case> {
    let mut rows = Vec::new();
    let mut turn: usize = 0;
    for kind in Kind::ALL.into_iter().filter(|kind| kind.on(ty)) {
        let lengths = if kind.is_atomic() { vec![8] } else { lengths(ty, mtu) };
        for length in lengths {
            for source in sources(kind, length) {
                let short = length <= 2 * mtu;
                let all_flags = if short { 0..8 } else { turn..turn + 1 };
                for flags in all_flags.filter(|flags| !short || (flags + turn).is_multiple_of(thin)) {
                    let on = |bit: usize| flags >> bit & 1 == 1;
                    let (signaled, solicited, fence) = (!on(0), on(1), on(2));
                    let receive = Shape::ALL[(turn + flags) % Shape::ALL.len()];
                    rows.push(Case { ty, srq, kind, length, source, receive, signaled, solicited, fence });
                }
                turn += 1;
            }
        }
    }
    rows
}

fn sources(kind: Kind, length: usize) -> Vec<Source> {
    let mut all: Vec<Source> = Shape::ALL.into_iter().map(Source::Sges).collect();
    if length == 0 {
        all.push(Source::Sges(Shape::None));
    }
    if !kind.fetches() && length <= INLINE {
        all.push(Source::Inline);
    }
    all
}
