//! What the connection manager counts.
//!
//! Everything a peer can do wrong, and everything dropped for a limit, is a number here and never a crash.

/// Counts since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// MADs handed in.
    pub received: u64,
    /// MADs handed out, retransmissions included.
    pub sent: u64,
    /// MADs sent again because no answer came.
    pub retransmitted: u64,
    /// MADs that do not parse, or whose fields contradict the standard.
    pub malformed: u64,
    /// MADs of another class, version or method.
    pub foreign: u64,
    /// Repeated messages that were answered again.
    pub duplicates: u64,
    /// Messages that mean nothing in the connection's state.
    pub unexpected: u64,
    /// Messages for a connection that is not here.
    pub stray: u64,
    /// Messages for a connection here, but not from its peer.
    pub wrong_source: u64,
    /// REQs whose path names other addresses than they came from and went to.
    pub wrong_gid: u64,
    /// REQs and SIDR_REQs for a service nobody listens on.
    pub no_listener: u64,
    /// REQs and SIDR_REQs refused because the listener's backlog was full.
    pub backlog_full: u64,
    /// REQs refused because a table was full.
    pub table_full: u64,
    /// REQs refused because the peer's queue pair was still connected here.
    pub stale: u64,
    /// Attempts and disconnects that timed out.
    pub timed_out: u64,
    /// Time-waits cut short because there were too many.
    pub timewait_early: u64,
    /// Answers dropped because nobody drained the queue.
    pub queue_full: u64,
    /// Requests that we rejected, on the program's behalf or our own.
    pub rejected: u64,
}
