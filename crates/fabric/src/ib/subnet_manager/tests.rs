//! Tests of the manager.
