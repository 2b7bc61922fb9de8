//! Per-peer windows and congestion control.
