//! The engine against the standard's rules, and against MADs captured from Linux.

mod captures;
mod connect;
mod disconnect;
mod harness;
mod hostile;
mod lifetime;
mod sidr;
