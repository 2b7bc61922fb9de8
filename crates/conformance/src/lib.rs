//! One conformance suite for verbs, written once and run over every wire and every driver.
//!
//! A harness makes two devices that reach each other (a [`Pair`]) and hands them with a runtime to [`run`]; the cases learn
//! neither what wire is below nor who drives it. A case is a row of data times one of a few executors: `transfer` (every
//! operation × length × segments × flags × service), `fault` (every error of a work request), `posting`, `memory`, `queues`
//! and `connecting`. What wires lack and where their errors look different is the table in [`wire`], each row with its
//! clause. Expectations come from IBTA vol. 1 chapters 9–11 and RFC 5040/5041, never from the code under test.
//! [`Matrix`] prints case groups by runs. No clock, socket or thread is here.
#![forbid(unsafe_code)]

mod check;
mod connecting;
mod fault;
mod join;
mod layout;
mod link;
mod memory;
mod pair;
mod posting;
mod queues;
mod report;
mod suite;
mod transfer;
pub mod wire;

pub use pair::{End, Pair, Plan};
pub use report::{Group, Matrix, Report};
pub use suite::run;
