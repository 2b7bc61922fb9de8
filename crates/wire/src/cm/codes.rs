//! The codes in CM messages, each with the standard's name and what it means in words.
//!
//! Read IBTA §12.6.7.2 (reject reasons), §12.8.2.3 (APR status), §12.11.2.3 (SIDR status) first. Every code that can stand on
//! the wire has a value here, so that nothing is lost in parsing.

use std::fmt;

use crate::layout::{Field, get_bits, put_bits};

/// An enum over the codes of one field, with a variant for those that the standard does not define.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        $name:ident($repr:ty) {
            $($variant:ident = $code:literal, $text:literal, $description:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = $description] $variant,)*
            /// A code that the standard does not define. Never one of the above: use `from_code`.
            Other($repr),
        }

        impl $name {
            /// Every code that the standard defines, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The value that this code stands for.
            pub const fn from_code(code: $repr) -> $name {
                match code {
                    $($code => $name::$variant,)*
                    other => $name::Other(other),
                }
            }

            /// The code on the wire.
            pub const fn code(self) -> $repr {
                match self {
                    $($name::$variant => $code,)*
                    $name::Other(code) => code,
                }
            }

            /// The standard's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                    $name::Other(_) => "reserved code",
                }
            }

            /// What it means, in a sentence without its end.
            pub const fn description(self) -> &'static str {
                match self {
                    $($name::$variant => $description,)*
                    $name::Other(_) => "a code that the standard does not define",
                }
            }
        }

        impl fmt::Display for $name {
            /// Name and number.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({})", self.name(), self.code())
            }
        }

        impl Field for $name {
            fn get(data: &[u8], bit: usize, width: usize) -> $name {
                $name::from_code(get_bits(data, bit, width) as $repr)
            }

            fn put(&self, data: &mut [u8], bit: usize, width: usize) {
                put_bits(data, bit, width, u64::from(self.code()));
            }
        }
    };
}

codes! {
    /// Why a connection was rejected (IBTA §12.6.7.2).
    RejReason(u16) {
        NoQp = 1, "no QP available", "The peer has no queue pair left";
        NoEec = 2, "no EEC available", "The peer has no end-to-end context left (RD)";
        NoResources = 3, "no resources available", "The peer is out of some resource other than queue pairs";
        Timeout = 4, "timeout", "The peer waited too long for the next message";
        UnsupportedRequest = 5, "unsupported request", "The peer does not support this kind of request";
        InvalidCommId = 6, "invalid communication ID", "The peer does not know the communication ID";
        InvalidCommInstance = 7, "invalid communication instance", "IDs, QP or endpoint do not belong together";
        InvalidServiceId = 8, "invalid service ID", "Nobody listens on this service ID (port)";
        InvalidTransportService = 9, "invalid transport service type", "The service does not run on this transport";
        StaleConnection = 10, "stale connection", "The peer still has a connection with this queue pair; try again later";
        RdcDoesNotExist = 11, "RDC does not exist", "There is no reliable datagram channel to use (RD)";
        PrimaryGidRejected = 12, "primary remote port GID rejected", "The peer wants another GID for the path";
        PrimaryLidRejected = 13, "primary remote port LID rejected", "The peer wants another LID for the path";
        InvalidPrimarySl = 14, "invalid primary SL", "The peer does not accept the path's service level";
        InvalidPrimaryTrafficClass = 15, "invalid primary traffic class", "The peer does not accept the path's traffic class";
        InvalidPrimaryHopLimit = 16, "invalid primary hop limit", "The peer does not accept the path's hop limit";
        InvalidPrimaryPacketRate = 17, "invalid primary packet rate", "The peer does not accept the path's rate";
        AlternateGidRejected = 18, "alternate remote port GID rejected", "The peer wants another GID for the alternate path";
        AlternateLidRejected = 19, "alternate remote port LID rejected", "The peer wants another LID for the alternate path";
        InvalidAlternateSl = 20, "invalid alternate SL", "The peer does not accept the alternate path's service level";
        InvalidAlternateTrafficClass = 21, "invalid alternate traffic class", "The peer does not accept the alternate path's traffic class";
        InvalidAlternateHopLimit = 22, "invalid alternate hop limit", "The peer does not accept the alternate path's hop limit";
        InvalidAlternatePacketRate = 23, "invalid alternate packet rate", "The peer does not accept the alternate path's rate";
        PortAndCmRedirect = 24, "port and CM redirection", "The service is elsewhere, and its CM too: ask there";
        PortRedirect = 25, "port redirection", "The service is reached through another port: ask again with that";
        InvalidPathMtu = 26, "invalid path MTU", "The peer cannot take packets of this MTU";
        InsufficientResponderResources = 27, "insufficient responder resources", "The peer has not enough resources for READs and atomics";
        ConsumerReject = 28, "consumer reject", "The program at the other end refused; its private data may say why";
        RnrRetryCountReject = 29, "RNR retry count reject", "The peer does not accept the RNR retry count";
        DuplicateLocalCommId = 30, "duplicate local communication ID", "The peer already has a request with this communication ID";
        InvalidClassVersion = 31, "invalid class version", "The peer speaks another version of the CM protocol";
        InvalidFlowLabel = 32, "invalid primary flow label", "The peer does not accept the path's flow label";
        InvalidAlternateFlowLabel = 33, "invalid alternate flow label", "The peer does not accept the alternate path's flow label";
        VendorOptionNotSupported = 35, "vendor option not supported", "The peer does not know a manufacturer's option in the request";
    }
}

codes! {
    /// Whether a service ID could be resolved (IBTA §12.11.2.3).
    SidrStatus(u8) {
        Valid = 0, "valid", "QPN and Q_Key are those of the service";
        UnsupportedServiceId = 1, "service ID not supported", "Nobody listens on this service ID (port)";
        Rejected = 2, "rejected by service provider", "The program at the other end refused";
        NoQp = 3, "no QP available", "The peer has no queue pair for it";
        Redirect = 4, "redirect", "The service is elsewhere: ask there";
        UnsupportedVersion = 5, "unsupported version", "The peer speaks another version of the CM protocol";
    }
}

codes! {
    /// Whether an alternate path was taken (IBTA §12.8.2.3).
    AprStatus(u8) {
        Loaded = 0, "alternate path loaded", "The peer will use the path on migration";
        InvalidCommId = 1, "invalid communication ID", "The peer does not know the communication ID";
        NotSupported = 2, "alternate paths not supported", "The peer does not migrate";
        Rejected = 3, "failover port rejected", "The peer does not want this path";
        Redirect = 4, "redirect", "The peer wants a path to another port: the additional information says which";
        IsCurrent = 5, "proposed path matches current path", "The path is already the primary one";
        InvalidQpn = 6, "QPN or EECN mismatch", "The queue pair is not that of the connection";
        LidRejected = 7, "proposed alternate remote port LID rejected", "The peer wants another LID";
        GidRejected = 8, "proposed alternate remote port GID rejected", "The peer wants another GID";
        FlowLabelRejected = 9, "proposed alternate flow label rejected", "The peer does not accept the flow label";
        TrafficClassRejected = 10, "proposed alternate traffic class rejected", "The peer does not accept the traffic class";
        HopLimitRejected = 11, "proposed alternate hop limit rejected", "The peer does not accept the hop limit";
        PacketRateRejected = 12, "proposed alternate packet rate rejected", "The peer does not accept the rate";
        SlRejected = 13, "proposed alternate SL rejected", "The peer does not accept the service level";
    }
}

codes! {
    /// What became of the alternate path of a REQ (IBTA §12.6.8).
    FailoverStatus(u8) {
        Accepted = 0, "failover accepted", "The alternate path is loaded";
        NotSupported = 1, "failover not supported", "The peer does not migrate";
        Rejected = 2, "failover port rejected", "The peer did not accept the alternate path";
    }
}

codes! {
    /// The kind of connection that a REQ asks for (IBTA §12.6.5).
    TransportService(u8) {
        Rc = 0, "RC", "Reliable connection";
        Uc = 1, "UC", "Unreliable connection";
        Rd = 2, "RD", "Reliable datagram";
        Extended = 3, "extended", "As the extended transport field says: 1 is XRC";
    }
}
