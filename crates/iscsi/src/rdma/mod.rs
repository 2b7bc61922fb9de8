//! iSER: iSCSI over RDMA (RFC 7145). The binding's bytes; its connections and data path belong beside them.
//!
//! Read RFC 7145 §5 (login, then RDMA), §7 (how PDUs are carried), §9 (messages), and `session::target::Action`, which is all that
//! a binding does: `Send` becomes a SEND behind [`ControlHeader`], `Allocate` registered memory, `GetData` RDMA READs from the
//! initiator's write STag, `Respond` RDMA WRITEs to its read STag and a SCSI Response (SEND with Invalidate). R2T, Data-In and
//! solicited Data-Out PDUs do not exist here, and MaxRecvDataSegmentLength gives way to the two directional keys.

mod header;

pub use header::{ControlHeader, HEADER_LEN, Header, HeaderError, Hello, HelloReply, PrivateData, Tagged};
