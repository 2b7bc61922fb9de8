//! Text keys: their syntax, their rules, and how two sides come to one value.
//!
//! Read RFC 7143 §6 (text, negotiation) and §13 (the keys), RFC 7145 §6 (those of iSER). `text` is the syntax, `table` the
//! rules, `negotiate` the two roles of a negotiation, [`Params`] what came out.

mod negotiate;
mod params;
pub mod table;
#[cfg(test)]
mod tests;
pub mod text;

pub use negotiate::{KeyError, Negotiation, Offers, Phase, Side};
pub use params::{Params, TaskReporting};
pub use table::Key;
