//! Communication management: the messages by which queue pairs find each other.
//!
//! Read IBTA §12.6 first (message contents) and §12.9 (who sends which when). [`CmMad`] is a MAD header and one
//! [`CmMessage`]; the eleven message structs are tables in [`messages`], every bit of the 232 bytes after the header
//! accounted for. What RDMA CM puts first into the private data is in [`crate::ip_cm`]. No connection state here.

mod codes;
pub mod messages;

use crate::WireError;
use crate::mad::{Mad, MadHeader, class, method};

pub use codes::{AprStatus, FailoverStatus, RejReason, SidrStatus, TransportService};
pub use messages::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, ReqPath, Rtu, SidrRep, SidrReq};

/// Version of the CM class.
pub const CLASS_VERSION: u8 = 2;

/// Bytes of every CM message after the MAD header.
pub const MESSAGE_LEN: usize = 232;

/// What the "message MRAed" and "message REJected" fields name (IBTA §12.6.6, §12.6.7).
pub mod about {
    /// A connection request.
    pub const REQ: u8 = 0;
    /// A connection reply.
    pub const REP: u8 = 1;
    /// In an MRA a LAP; in a REJ no particular message.
    pub const OTHER: u8 = 2;
}

macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident = $attribute:literal, $text:literal;)*) => {
        /// A CM message of any kind.
        // All kinds fill the same 232 bytes, so none is worth a box.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum CmMessage {
            $($(#[$meta])* $name($name),)*
        }

        impl CmMessage {
            /// The MAD attribute that says which message it is (IBTA §12.6.1).
            pub const fn attribute_id(&self) -> u16 {
                match self {
                    $(CmMessage::$name(_) => $attribute,)*
                }
            }

            /// The standard's abbreviation.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(CmMessage::$name(_) => $text,)*
                }
            }

            /// The message that an attribute names, from the bytes after the MAD header.
            fn parse(attribute_id: u16, data: &[u8]) -> Result<CmMessage, WireError> {
                match attribute_id {
                    $($attribute => $name::parse(data).map(CmMessage::$name),)*
                    other => Err(WireError::Invalid { what: "CM attribute", value: u64::from(other) }),
                }
            }

            fn emit(&self, data: &mut [u8]) {
                match self {
                    $(CmMessage::$name(m) => m.emit(data),)*
                }
            }
        }

        $(impl From<$name> for CmMessage {
            fn from(m: $name) -> CmMessage {
                CmMessage::$name(m)
            }
        })*
    };
}

messages! {
    /// Request for communication.
    Req = 0x10, "REQ";
    /// Message receipt acknowledgement.
    Mra = 0x11, "MRA";
    /// Reject.
    Rej = 0x12, "REJ";
    /// Reply to a request.
    Rep = 0x13, "REP";
    /// Ready to use.
    Rtu = 0x14, "RTU";
    /// Request to disconnect.
    Dreq = 0x15, "DREQ";
    /// Reply to it.
    Drep = 0x16, "DREP";
    /// Service ID resolution request.
    SidrReq = 0x17, "SIDR_REQ";
    /// Service ID resolution response.
    SidrRep = 0x18, "SIDR_REP";
    /// Load alternate path.
    Lap = 0x19, "LAP";
    /// Alternate path response.
    Apr = 0x1a, "APR";
}

/// A MAD of the CM class: its header and its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CmMad {
    /// MAD header; its attribute says which message follows.
    pub header: MadHeader,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// A message under the header that the standard wants for it (IBTA §12.6.1).
    pub fn new(transaction_id: u64, message: impl Into<CmMessage>) -> CmMad {
        let message = message.into();
        let header = MadHeader {
            base_version: 1,
            mgmt_class: class::COM_MGT,
            class_version: CLASS_VERSION,
            method: method::SEND,
            transaction_id,
            attribute_id: message.attribute_id(),
            ..MadHeader::default()
        };
        CmMad { header, message }
    }

    /// Takes a MAD apart.
    ///
    /// Errors: not of the CM class, not a SEND (the class also answers ClassPortInfo, which is no message), an attribute that
    /// is no message. Versions are not judged here: a peer with another class version is owed a REJ.
    pub fn parse(mad: &Mad) -> Result<CmMad, WireError> {
        let header = MadHeader::parse(mad)?;
        if header.mgmt_class != class::COM_MGT {
            return Err(WireError::Invalid { what: "MAD class", value: u64::from(header.mgmt_class) });
        }
        if header.method != method::SEND {
            return Err(WireError::Invalid { what: "CM method", value: u64::from(header.method) });
        }
        let message = CmMessage::parse(header.attribute_id, &mad[MadHeader::LEN..])?;
        Ok(CmMad { header, message })
    }

    /// The MAD. The attribute is written as the message's own.
    pub fn emit(&self) -> Mad {
        let mut mad = [0; crate::mad::MAD_LEN];
        MadHeader { attribute_id: self.message.attribute_id(), ..self.header }.emit(&mut mad);
        self.message.emit(&mut mad[MadHeader::LEN..]);
        mad
    }
}

#[cfg(test)]
mod tests;
