//! arrivals
