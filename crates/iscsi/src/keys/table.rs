//! Every key of RFC 7143 §13 and RFC 7145 §6 as one table of rules.
//!
//! A row says how two values become one, what holds where nothing is said, in which stage and by whom the key may be sent, and
//! where it means nothing. `negotiate` reads it; nothing else knows a key's rule. Keys of CHAP are `login::chap`'s.

/// Largest value of the lengths.
const MAX_LENGTH: u32 = (1 << 24) - 1;

/// How a key's value is arrived at (RFC 7143 §6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Yes only if both say so.
    And,
    /// Yes if either says so.
    Or,
    /// The smaller number, in this range.
    Min(u32, u32),
    /// The larger number, in this range.
    Max(u32, u32),
    /// The first of the originator's list that the responder takes.
    List,
    /// Each side says its own number, in this range; 0 is allowed where the flag says.
    Number {
        /// Least.
        low: u32,
        /// Most.
        high: u32,
        /// 0 means "no limit".
        zero: bool,
    },
    /// Each side says Yes or No for itself.
    Flag,
    /// Each side says its own text.
    Text,
}

/// When a key may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In the security stage.
    Security,
    /// In either stage of the login, and not later (IO).
    Login,
    /// In the operational stage.
    Operational,
    /// In the full feature phase only.
    FullFeature,
    /// At any time.
    Any,
}

/// Who may send it first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The initiator.
    Initiator,
    /// The target.
    Target,
    /// Both.
    Both,
}

/// Where a key means nothing, and is answered so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Irrelevant {
    /// It always means something.
    Never,
    /// In a discovery session.
    Discovery,
    /// Without RDMAExtensions=Yes.
    WithoutRdma,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The key.
    pub key: Key,
    /// Its name.
    pub name: &'static str,
    /// How values become one.
    pub rule: Rule,
    /// What holds if nobody says anything; empty where nothing does.
    pub default: &'static str,
    /// When it may be sent.
    pub stage: Stage,
    /// By whom.
    pub sender: Sender,
    /// Only on the first connection of a session.
    pub leading: bool,
    /// Where it means nothing.
    pub irrelevant: Irrelevant,
}

macro_rules! table {
    ($($key:ident, $rule:expr, $default:literal, $stage:ident, $sender:ident, $leading:literal, $irrelevant:ident;)*) => {
        /// The keys.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, non_camel_case_types)]
        pub enum Key {
            $($key,)*
        }

        /// All rows, in the order of [`Key`].
        pub const TABLE: &[Row] = &[$(Row {
            key: Key::$key,
            name: stringify!($key),
            rule: $rule,
            default: $default,
            stage: Stage::$stage,
            sender: Sender::$sender,
            leading: $leading,
            irrelevant: Irrelevant::$irrelevant,
        },)*];
    };
}

const LENGTH: Rule = Rule::Number { low: 512, high: MAX_LENGTH, zero: false };

table! {
    // key, rule, default, stage, sender, leading only, irrelevant
    AuthMethod, Rule::List, "", Security, Both, false, Never;
    HeaderDigest, Rule::List, "None", Operational, Both, false, Never;
    DataDigest, Rule::List, "None", Operational, Both, false, Never;
    MaxConnections, Rule::Min(1, 65535), "1", Operational, Both, true, Discovery;
    SendTargets, Rule::Text, "", FullFeature, Initiator, false, Never;
    TargetName, Rule::Text, "", Login, Initiator, false, Never;
    InitiatorName, Rule::Text, "", Login, Initiator, false, Never;
    TargetAlias, Rule::Text, "", Any, Target, false, Never;
    InitiatorAlias, Rule::Text, "", Any, Initiator, false, Never;
    TargetAddress, Rule::Text, "", Any, Target, false, Never;
    TargetPortalGroupTag, Rule::Text, "", Login, Target, false, Never;
    InitialR2T, Rule::Or, "Yes", Operational, Both, true, Discovery;
    ImmediateData, Rule::And, "Yes", Operational, Both, true, Discovery;
    MaxRecvDataSegmentLength, LENGTH, "8192", Any, Both, false, Never;
    MaxBurstLength, Rule::Min(512, MAX_LENGTH), "262144", Operational, Both, true, Discovery;
    FirstBurstLength, Rule::Min(512, MAX_LENGTH), "65536", Operational, Both, true, Discovery;
    DefaultTime2Wait, Rule::Max(0, 3600), "2", Operational, Both, true, Never;
    DefaultTime2Retain, Rule::Min(0, 3600), "20", Operational, Both, true, Never;
    MaxOutstandingR2T, Rule::Min(1, 65535), "1", Operational, Both, true, Discovery;
    DataPDUInOrder, Rule::Or, "Yes", Operational, Both, true, Discovery;
    DataSequenceInOrder, Rule::Or, "Yes", Operational, Both, true, Discovery;
    ErrorRecoveryLevel, Rule::Min(0, 2), "0", Operational, Both, true, Never;
    SessionType, Rule::Text, "Normal", Login, Initiator, true, Never;
    TaskReporting, Rule::List, "RFC3720", Operational, Both, true, Discovery;
    // RFC 7144 §4.1.1.
    iSCSIProtocolLevel, Rule::Min(0, 31), "1", Operational, Both, true, Discovery;
    // RFC 7145 §6.
    RDMAExtensions, Rule::And, "No", Operational, Both, true, Discovery;
    TargetRecvDataSegmentLength, Rule::Min(512, MAX_LENGTH), "8192", Operational, Both, true, WithoutRdma;
    InitiatorRecvDataSegmentLength, Rule::Min(512, MAX_LENGTH), "8192", Operational, Both, true, WithoutRdma;
    MaxAHSLength, Rule::Number { low: 2, high: u32::MAX, zero: true }, "256", Operational, Both, true, WithoutRdma;
    TaggedBufferForSolicitedDataOnly, Rule::Flag, "No", Operational, Initiator, true, WithoutRdma;
    iSERHelloRequired, Rule::Flag, "No", Operational, Initiator, true, WithoutRdma;
    MaxOutstandingUnexpectedPDUs, Rule::Number { low: 2, high: u32::MAX, zero: true }, "0", Operational, Both, true, WithoutRdma;
    // RFC 3720 §A.3, obsolete since RFC 7143: markers are never used, which is what No says.
    OFMarker, Rule::And, "No", Operational, Both, false, Never;
    IFMarker, Rule::And, "No", Operational, Both, false, Never;
}

/// How many keys there are.
pub const KEYS: usize = TABLE.len();

impl Key {
    /// The key of this name.
    pub fn of(name: &str) -> Option<Key> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.key)
    }

    /// Its row.
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}
