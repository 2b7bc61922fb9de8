//! ud
