//! How a login ends, in the standard's words.
//!
//! Read RFC 7143 §11.13.5. The class says whose fault it is, the detail what it is.

macro_rules! statuses {
    ($($name:ident = $class:literal, $detail:literal, $text:literal;)*) => {
        /// Status class and detail of a login response.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum LoginStatus {
            $($name,)*
            /// A pair that the standard does not have.
            Other(u8, u8),
        }

        impl LoginStatus {
            /// From the two bytes.
            pub fn from_bytes(class: u8, detail: u8) -> LoginStatus {
                match (class, detail) {
                    $(($class, $detail) => LoginStatus::$name,)*
                    (class, detail) => LoginStatus::Other(class, detail),
                }
            }

            /// Class and detail.
            pub fn bytes(self) -> (u8, u8) {
                match self {
                    $(LoginStatus::$name => ($class, $detail),)*
                    LoginStatus::Other(class, detail) => (class, detail),
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(LoginStatus::$name => $text,)*
                    LoginStatus::Other(1, _) => "redirection of an unknown kind",
                    LoginStatus::Other(2, _) => "initiator error of an unknown kind",
                    LoginStatus::Other(3, _) => "target error of an unknown kind",
                    LoginStatus::Other(..) => "unknown status class",
                }
            }
        }
    };
}

statuses! {
    Success = 0, 0, "success";
    MovedTemporarily = 1, 1, "target moved temporarily";
    MovedPermanently = 1, 2, "target moved permanently";
    InitiatorError = 2, 0, "initiator error";
    AuthenticationFailure = 2, 1, "authentication failure";
    AuthorizationFailure = 2, 2, "authorization failure: the initiator is not allowed access to the target";
    NotFound = 2, 3, "target not found";
    TargetRemoved = 2, 4, "target removed";
    UnsupportedVersion = 2, 5, "unsupported version";
    TooManyConnections = 2, 6, "too many connections";
    MissingParameter = 2, 7, "missing parameter";
    CannotInclude = 2, 8, "cannot include this connection in the session";
    SessionType = 2, 9, "session type not supported";
    NoSession = 2, 10, "session does not exist";
    InvalidRequest = 2, 11, "invalid request type during login";
    TargetError = 3, 0, "target error";
    Unavailable = 3, 1, "service unavailable";
    OutOfResources = 3, 2, "out of resources";
}

impl LoginStatus {
    /// Whether trying again later may help (RFC 7143 §11.13.5: class 3).
    pub fn may_retry(self) -> bool {
        self.bytes().0 == 3
    }
}

impl std::fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (class, detail) = self.bytes();
        write!(f, "{} ({class:02x}{detail:02x}h)", self.text())
    }
}
