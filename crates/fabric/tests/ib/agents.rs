//! The agents: what a subnet manager and tools see.
