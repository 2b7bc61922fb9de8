//! What the two sides tell each other in the CM private data: the test, and where the other's buffer is.
//!
//! 40 bytes, big-endian: "EWPF", version, operation, service, latency flag, size (4), depth (4), buffer length (8), buffer
//! address (8), R_Key (4), on UD the sender's queue pair number (4). It fits the 56 bytes that a REQ leaves to its user.

use everywire_verbs::{MemoryRegion, Qpn, RKey, Remote};

use super::{Operation, Plan, Service};

const MAGIC: [u8; 4] = *b"EWPF";
const QUESTION: [u8; 4] = *b"EWPQ";
const VERSION: u8 = 1;
/// Bytes of a hello.
pub const LEN: usize = 40;

/// One side's hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The test.
    pub operation: Operation,
    /// Transport service.
    pub service: Service,
    /// Ping-pong or one at a time.
    pub latency: bool,
    /// Bytes of a message.
    pub size: u32,
    /// Messages in flight.
    pub depth: u32,
    /// Bytes of the sender's buffer.
    pub buffer_len: u64,
    /// Where the sender's buffer is.
    pub remote: Remote,
    /// On UD, the sender's queue pair; else 0.
    pub qpn: Qpn,
}

impl Hello {
    /// The hello of a side with this buffer.
    pub fn new(plan: &Plan, buffer: &MemoryRegion) -> Hello {
        Hello {
            operation: plan.operation,
            service: plan.service,
            latency: plan.latency,
            size: plan.size,
            depth: plan.depth,
            buffer_len: buffer.len() as u64,
            remote: buffer.remote(0),
            qpn: Qpn::new(0),
        }
    }

    /// As private data.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        out.extend(MAGIC);
        out.extend([VERSION, self.operation as u8, self.service as u8, u8::from(self.latency)]);
        out.extend(self.size.to_be_bytes());
        out.extend(self.depth.to_be_bytes());
        out.extend(self.buffer_len.to_be_bytes());
        out.extend(self.remote.addr.to_be_bytes());
        out.extend(self.remote.rkey.0.to_be_bytes());
        out.extend(self.qpn.get().to_be_bytes());
        out
    }

    /// From private data; the text says what is wrong.
    pub fn parse(data: &[u8]) -> Result<Hello, String> {
        let bytes: &[u8; LEN] =
            data.first_chunk().ok_or_else(|| format!("{} bytes of private data, not {LEN}", data.len()))?;
        if bytes[..4] != MAGIC {
            return Err("the peer does not speak `everywire perf`".to_owned());
        }
        if bytes[4] != VERSION {
            return Err(format!("the peer speaks version {}, this is {VERSION}", bytes[4]));
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let operation = match bytes[5] {
            1 => Operation::Write,
            2 => Operation::Read,
            3 => Operation::Send,
            4 => Operation::Atomic,
            other => return Err(format!("operation {other} is unknown")),
        };
        let service = match bytes[6] {
            1 => Service::Rc,
            2 => Service::Uc,
            3 => Service::Ud,
            other => return Err(format!("transport service {other} is unknown")),
        };
        Ok(Hello {
            operation,
            service,
            latency: bytes[7] != 0,
            size: word(8),
            depth: word(12),
            buffer_len: long(16),
            remote: Remote { addr: long(24), rkey: RKey(word(32)) },
            qpn: Qpn::new(word(36)),
        })
    }
}

/// Asks how many messages arrived at a queue pair of the server: "EWPQ" and its number (4).
pub fn question(qpn: Qpn) -> Vec<u8> {
    [QUESTION, qpn.get().to_be_bytes()].concat()
}

/// The queue pair of a [`question`]; `None` if it is none.
pub fn parse_question(data: &[u8]) -> Option<Qpn> {
    let rest = data.strip_prefix(&QUESTION)?;
    Some(Qpn::new(u32::from_be_bytes(*rest.first_chunk()?)))
}

/// The answer: "EWPQ" and the count (8).
pub fn count(messages: u64) -> Vec<u8> {
    let mut out = QUESTION.to_vec();
    out.extend(messages.to_be_bytes());
    out
}

/// The count of an answer.
pub fn parse_count(data: &[u8]) -> Option<u64> {
    let rest = data.strip_prefix(&QUESTION)?;
    Some(u64::from_be_bytes(*rest.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laid_out_as_documented() {
        let hello = Hello {
            operation: Operation::Read,
            service: Service::Rc,
            latency: true,
            size: 0x0102_0304,
            depth: 7,
            buffer_len: 9,
            remote: Remote { addr: 0x1122_3344_5566_7788, rkey: RKey(0xaabb_ccdd) },
            qpn: Qpn::new(0x12_3456),
        };
        let bytes = hello.emit();
        assert_eq!(bytes[..12], *b"EWPF\x01\x02\x01\x01\x01\x02\x03\x04");
        assert_eq!(bytes[24..36], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xaa, 0xbb, 0xcc, 0xdd]);
        assert_eq!(bytes[36..], [0, 0x12, 0x34, 0x56]);
        assert_eq!(Hello::parse(&bytes), Ok(hello));
    }

    mod fuzz {
        use super::*;

        fn hellos() -> Vec<Vec<u8>> {
            let mut hellos: Vec<Vec<u8>> = vec![question(Qpn::new(7)), count(9)];
            for (operation, service) in [(1, 1), (2, 1), (3, 3), (4, 1), (1, 2)] {
                let mut hello = b"EWPF".to_vec();
                hello.extend([VERSION, operation, service, 1]);
                hello.extend([1; LEN - 8]);
                hellos.push(hello);
            }
            hellos
        }

        everywire_fuzz::target!(perf_hello, hellos(), |bytes| {
            match Hello::parse(bytes) {
                Ok(hello) => assert_eq!(Hello::parse(&hello.emit()), Ok(hello)),
                Err(why) => assert!(!why.is_empty()),
            }
            if let Some(qpn) = parse_question(bytes) {
                assert_eq!(parse_question(&question(qpn)), Some(qpn));
            }
            if let Some(messages) = parse_count(bytes) {
                assert_eq!(count(messages), bytes[..12]);
            }
        });
    }

    #[test]
    fn strangers_are_refused() {
        assert!(Hello::parse(b"EWPF").is_err());
        assert!(Hello::parse(&[0; 56]).unwrap_err().contains("does not speak"));
    }
}
