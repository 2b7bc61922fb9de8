//! The engine against the standard's rules and against captured MADs.
