//! The door for OpenSM and infiniband-diags: ibsim's protocol, spoken by libumad2sim.

pub mod message;
