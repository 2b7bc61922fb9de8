//! A simulated InfiniBand subnet: channel adapters, switches and links with lanes and credits, bit for bit.
//!
//! Read first: [`Subnet`] (what to call), then [`link_layer`] and [`credits`] (why nothing is ever dropped for want of a
//! buffer), [`forward`] (switches), [`router`] (from one subnet into another) and [`agent`] (who answers subnet and performance management). Packets are LRH to VCRC,
//! as on the wire. Routes come from a subnet manager, of ours or another's: a subnet without one carries only management.
#![allow(rustdoc::private_intra_doc_links)]

mod agent;
mod arbiter;
mod audit;
mod build;
mod capture;
pub mod config;
mod counters;
pub mod credits;
mod events;
mod forward;
mod hca;
mod link_layer;
mod link_state;
pub mod mad_packet;
mod node;
mod packet;
mod port;
mod port_zero;
mod router;
mod subnet;
pub mod subnet_manager;
pub mod topology;

pub use agent::{Violation, WrongKey};
pub use audit::CreditFault;
pub use capture::{PcapTap, Tap, erf_record};
pub use config::{
    HcaConfig, LinkId, LinkParams, NodeId, PortId, PrefixRoute, RouterConfig, Speed, SubnetOptions,
    SwitchConfig, TopologyError, VcrcCheck, Width,
};
pub use counters::Counters;
pub use hca::{Credit, IbPort, Refusal, Refused, SEND_QUEUE};
pub use router::RouterCounters;
pub use subnet::{Event, Subnet};
