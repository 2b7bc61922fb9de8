//! RDMA on every wire, in user space: the facade for Rust programs.
//!
//! One crate to depend on. [`verbs`] is the API that programs use; [`net`] puts a device on this machine's network;
//! [`nvme`] is NVMe over Fabrics on both ends, over the [`block`] backends; [`wire`] is every header as bytes.
//!
//! The examples in `crates/everywire/examples` are whole programs, each run by `cargo run -p everywire --example NAME`: `ping`
//! (SEND and RECV), `one_sided` (WRITE and READ) and `nvme_read` (an NVMe target and an initiator).
//!
//! A server and a client, each on its own address, as two processes or, as here, as two devices of one:
//!
//! ```
//! use everywire::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = (Host::open("rocev2:127.0.0.81", &OpenOptions::default())?, Host::open("rocev2:127.0.0.82", &OpenOptions::default())?);
//! let server = Side::new(a.device())?;
//! let client = Side::new(b.device())?;
//! block_on(async {
//!     let listener = a.device().listen("127.0.0.81:7471".parse()?, ListenOptions::default())?;
//!     let connecting = b.device().connect(ConnectOptions::new(listener.local_addr(), &client.qp));
//!     let request = listener.next_request().await?;
//!     server.qp.post_recv(RecvWr::new(1, [server.mr.sge(..)]))?;
//!     let accepting = request.accept(&server.qp, ConnParam::default());
//!     let connection = connecting.await?;
//!     let _serving = accepting.await?; // dropping it would disconnect
//!
//!     client.qp.post_send(SendWr::new(2, SendOp::Send).with_inline(*b"hello"))?;
//!     let mut done = Vec::new();
//!     server.cq.wait(&mut done, 1).await?;
//!     assert_eq!((done[0].status, done[0].byte_len), (WcStatus::Success, 5));
//!     assert_eq!(server.mr.read_vec(0, 5)?, b"hello");
//!     connection.disconnect().await;
//!     Ok(())
//! })
//! # }
//!
//! struct Side { cq: Cq, mr: MemoryRegion, qp: Qp }
//!
//! impl Side {
//!     fn new(device: &Device) -> Result<Side, VerbsError> {
//!         let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//!         let mr = pd.register(4096, Access::LOCAL_WRITE)?;
//!         let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
//!         qp.to_init(Access::LOCAL_WRITE)?; // from here on receives can be posted
//!         Ok(Side { cq, mr, qp })
//!     }
//! }
//! ```
#![forbid(unsafe_code)]

/// Every header and message as bytes, both ways.
pub mod wire {
    #[doc(inline)]
    pub use everywire_wire::*;
}

/// The safe verbs API and the driving contract.
pub mod verbs {
    #[doc(inline)]
    pub use everywire_verbs::*;
}

/// Devices on real sockets, the runtime, and the raw baselines.
pub mod net {
    #[doc(inline)]
    pub use everywire_net::*;
}

/// Block backends: sparse RAM, file, null.
pub mod block {
    #[doc(inline)]
    pub use everywire_block::*;
}

/// NVMe over Fabrics: target and initiator.
pub mod nvme {
    #[doc(inline)]
    pub use everywire_nvmeof::*;
}

/// What most programs need.
pub mod prelude {
    pub use everywire_net::{Host, OpenOptions, TokioRt, block_on};
    pub use everywire_verbs::{
        Access, CmError, Completion, ConnParam, ConnectOptions, Connection, Cq, Device, ListenOptions,
        Listener, MemoryRegion, Pd, Qp, QpInit, QpType, RKey, RecvWr, Remote, SendOp, SendWr, VerbsError,
        WcStatus,
    };
}
