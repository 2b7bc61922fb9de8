//! What a socket says of a TCP connection that is not to be had, or is gone.
//!
//! Read connect(2), tcp(7) and errno(3). Errors of the system in words, for start-ups that they end and for programs. Which
//! socket it was is the driver's business.

/// Why a TCP connection or listening socket is not to be had, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Nobody listens there (ECONNREFUSED).
    #[error("the peer refused the TCP connection: nobody listens on that port")]
    Refused,
    /// TCP got no answer (ETIMEDOUT).
    #[error("TCP got no answer from the peer")]
    TimedOut,
    /// No way to the peer (EHOSTUNREACH, ENETUNREACH).
    #[error("the network reports that the peer cannot be reached")]
    Unreachable,
    /// The connection was reset (ECONNRESET, EPIPE).
    #[error("the TCP connection was reset by the peer")]
    Reset,
    /// Somebody has that address and port (EADDRINUSE).
    #[error("the TCP address and port are in use")]
    AddressInUse,
    /// Not to be bound here (EADDRNOTAVAIL, EACCES).
    #[error("the TCP address and port cannot be bound (errno {0})")]
    NotBound(i32),
    /// Anything else.
    #[error("the system answered with errno {0}")]
    System(i32),
}

impl StreamError {
    /// From the system's number.
    pub fn from_errno(errno: i32) -> StreamError {
        match errno {
            111 => StreamError::Refused,
            110 => StreamError::TimedOut,
            113 | 101 => StreamError::Unreachable,
            104 | 32 => StreamError::Reset,
            98 => StreamError::AddressInUse,
            99 | 13 => StreamError::NotBound(errno),
            errno => StreamError::System(errno),
        }
    }

    /// The system's number, positive.
    pub fn errno(self) -> i32 {
        match self {
            StreamError::Refused => 111,
            StreamError::TimedOut => 110,
            StreamError::Unreachable => 113,
            StreamError::Reset => 104,
            StreamError::AddressInUse => 98,
            StreamError::NotBound(errno) | StreamError::System(errno) => errno,
        }
    }
}
