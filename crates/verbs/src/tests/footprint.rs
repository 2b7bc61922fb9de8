//! footprint
