//! Feature identifiers of Set and Get Features. NVMe Base 2.0 §5.27.1.

/// Arbitration.
pub const ARBITRATION: u8 = 0x01;
/// Power Management.
pub const POWER_MANAGEMENT: u8 = 0x02;
/// Temperature Threshold.
pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
/// Error Recovery.
pub const ERROR_RECOVERY: u8 = 0x05;
/// Volatile Write Cache.
pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
/// Number of Queues.
pub const NUMBER_OF_QUEUES: u8 = 0x07;
/// Write Atomicity Normal.
pub const WRITE_ATOMICITY: u8 = 0x0a;
/// Asynchronous Event Configuration.
pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
/// Keep Alive Timer.
pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
/// I/O Command Set Profile.
pub const COMMAND_SET_PROFILE: u8 = 0x19;
/// Host Identifier.
pub const HOST_IDENTIFIER: u8 = 0x81;
/// Namespace Write Protection Config.
pub const NAMESPACE_WRITE_PROTECTION: u8 = 0x84;

/// Asynchronous Event Configuration bits 7:0: SMART critical warnings.
pub const AEC_SMART: u32 = 0xff;
/// Asynchronous Event Configuration bit 8: namespace attribute notices.
pub const AEC_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
/// Asynchronous Event Configuration bit 31: discovery log page change notices.
pub const AEC_DISCOVERY_LOG: u32 = 1 << 31;

/// Set Features dword 10 bit 31: save (SV).
pub const SAVE: u32 = 1 << 31;
/// Get Features dword 11 bit 0 and Set Features: extended (128-bit) host identifier.
pub const EXHID: u32 = 1;
