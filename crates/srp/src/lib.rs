//! SCSI RDMA Protocol, revision 16a as Linux's ib_srp and ib_srpt speak it: target and initiator.
//!
//! [`iu`] are the information units, [`credit`] the request limit, [`target`] and [`initiator`] what each end makes of them, all
//! without a queue pair; [`rdma`] binds both to one, as async Rust on [`everywire_verbs`]. [`dm`] is the device-management class
//! by which InfiniBand hosts find targets. The SCSI command set is `everywire_scsi`'s.
//! What this does not do: bidirectional commands, the revision 10 port identifiers, end-to-end data integrity.
#![forbid(unsafe_code)]

pub mod credit;
pub mod dm;
pub mod id;
pub mod initiator;
pub mod iu;
pub mod rdma;
pub mod target;

pub use id::PortId;

/// The port of SRP over RDMA/CM, as Linux's ib_srpt is set up by most distributions' documents.
pub const PORT: u16 = 5555;
