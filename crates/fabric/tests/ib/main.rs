//! The InfiniBand subnet from outside: brought up by MADs, loaded with packets, watched by the credit checker.

mod agents;
mod credits;
mod data;
mod keys;
mod lanes;
mod manager;
mod router;
mod traffic;
