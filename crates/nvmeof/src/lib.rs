//! NVMe over Fabrics: target and initiator.
//!
//! [`pdu`] is bytes only: capsules, SGLs, Connect, properties, Identify, log pages, status codes. [`target`] is the
//! controller: sans-IO, it takes commands and says what data to move and what to answer. [`rdma`] binds both to
//! queue pairs. Standards: NVMe Base 1.4/2.0, NVMe over Fabrics 1.1, the NVMe RDMA Transport Specification 1.0.
//! What is not here: the TCP transport, authentication, ANA, reservations, metadata and protection information.
#![forbid(unsafe_code)]

pub mod nqn;
pub mod pdu;
pub mod rdma;
mod scoped;
pub mod target;

pub use nqn::{DISCOVERY_NQN, Nqn, NqnError};
pub use pdu::status::Status;
pub use scoped::Scoped;
pub use uuid::Uuid;
