//! windows
