//! Codes in PDUs, with the standard's words: reject reasons, task management functions and their results, logout, async events.
//!
//! Read RFC 7143 §11.5, §11.6, §11.9, §11.14, §11.15 and §11.17. A code that the standard does not have parses to `None`.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal, $text:literal;)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $code,)*
        }

        impl $name {
            /// From its code.
            pub fn from_code(code: u8) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// Its code.
            pub fn code(self) -> u8 {
                self as u8
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($name::$variant => $text,)*
                })
            }
        }
    )*};
}

codes! {
    /// Why a PDU is rejected (§11.17.1).
    RejectReason {
        DataDigest = 0x02, "data digest error";
        Snack = 0x03, "SNACK reject";
        Protocol = 0x04, "protocol error";
        NotSupported = 0x05, "command not supported";
        TooManyImmediate = 0x06, "too many immediate commands";
        TaskInProgress = 0x07, "task in progress";
        InvalidDataAck = 0x08, "invalid data ACK";
        InvalidField = 0x09, "invalid PDU field";
        LongOperation = 0x0a, "long operation reject: out of resources for a Target Transfer Tag";
        WaitingForLogout = 0x0c, "waiting for logout";
    }
    /// Task management functions (§11.5.1).
    TaskFunction {
        AbortTask = 1, "ABORT TASK";
        AbortTaskSet = 2, "ABORT TASK SET";
        ClearAca = 3, "CLEAR ACA";
        ClearTaskSet = 4, "CLEAR TASK SET";
        LunReset = 5, "LOGICAL UNIT RESET";
        WarmReset = 6, "TARGET WARM RESET";
        ColdReset = 7, "TARGET COLD RESET";
        Reassign = 8, "TASK REASSIGN";
    }
    /// Their results (§11.6.1).
    TaskResult {
        Complete = 0, "function complete";
        NoTask = 1, "task does not exist";
        NoLun = 2, "LUN does not exist";
        StillAllegiant = 3, "task still allegiant";
        NoReassignment = 4, "task allegiance reassignment not supported";
        NotSupported = 5, "task management function not supported";
        Unauthorized = 6, "function authorization failed";
        Rejected = 255, "function rejected";
    }
    /// Why to log out (§11.14.1).
    LogoutReason {
        CloseSession = 0, "close the session";
        CloseConnection = 1, "close the connection";
        Recovery = 2, "remove the connection for recovery";
    }
    /// How a logout went (§11.15.1).
    LogoutResult {
        Closed = 0, "connection or session closed successfully";
        NoConnection = 1, "CID not found";
        NoRecovery = 2, "connection recovery is not supported";
        Failed = 3, "cleanup failed";
    }
    /// What a target tells on its own account (§11.9.1).
    AsyncEvent {
        Scsi = 0, "SCSI asynchronous event";
        LogoutRequest = 1, "target requests logout";
        DroppingConnection = 2, "target will drop the connection";
        DroppingSession = 3, "target will drop all connections of the session";
        Negotiate = 4, "target requests parameter negotiation";
        TaskTermination = 5, "all active tasks of the LUN were terminated";
        Vendor = 255, "vendor-specific";
    }
}
