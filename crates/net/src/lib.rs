//! Drivers: a verbs device on real UDP sockets or raw Ethernet.
