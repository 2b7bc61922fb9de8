//! What the transport asks of registered memory.
