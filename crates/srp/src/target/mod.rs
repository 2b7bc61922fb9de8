//! The target's end without a queue pair: who may log in ([`login`]), and what one channel's information units mean
//! ([`channel`]). SRP r16a §5.

pub mod channel;
pub mod login;

pub use channel::{Channel, Fault, Received, Violation};
pub use login::{Accepted, ChannelId, Gate, Limits, Refusal, TargetPort};
