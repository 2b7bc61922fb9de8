//! The socket between a fabric and an attached program: whole messages, many in one system call, never blocking.
//!
//! Read first: unix(7) on SOCK_SEQPACKET, sendmmsg(2), recvmmsg(2). A full socket is no loss: what did not go stays with the
//! caller, who tries again when the descriptor is writable. What the messages mean is `message.rs`'s affair.

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::message::{MAX_MESSAGE, PACKET};

/// Messages of one system call.
pub const BATCH: usize = 32;
/// Bytes of the send buffer that are asked for; the system's limit (wmem_max) is often lower.
const SEND_BUFFER: usize = 1 << 20;

/// The tag of packets, which lie elsewhere.
static PACKET_TAG: [u8; 1] = [PACKET];

/// One end of the socket.
pub struct Channel {
    fd: OwnedFd,
    buffers: Box<[u8]>,
    /// Two for each message that is sent: the tag, the packet.
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    lengths: [usize; BATCH],
}

// SAFETY: the raw pointers in `headers` and `vectors` are set anew by each call that uses them, within that call.
unsafe impl Send for Channel {}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Channel {
    /// Of a connected SOCK_SEQPACKET socket.
    pub fn new(fd: OwnedFd) -> Channel {
        // Less room means more system calls, no more.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER);
        // SAFETY: all-zero bytes are valid for these C structures (null pointers and lengths of zero).
        let (vector, header): (libc::iovec, libc::mmsghdr) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Channel {
            fd,
            buffers: vec![0; BATCH * MAX_MESSAGE].into(),
            vectors: vec![vector; 2 * BATCH].into(),
            headers: vec![header; BATCH].into(),
            lengths: [0; BATCH],
        }
    }

    /// Receives what is there; how many messages, which [`Channel::message`] gives until the next call.
    ///
    /// # Errors
    /// `UnexpectedEof` once the other end is closed; what the kernel says.
    pub fn receive(&mut self) -> io::Result<usize> {
        for slot in 0..BATCH {
            let buffer = &mut self.buffers[slot * MAX_MESSAGE..(slot + 1) * MAX_MESSAGE];
            self.vectors[slot] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: MAX_MESSAGE };
            self.arm(slot, slot, 1);
        }
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        let (headers, timeout) = (self.headers.as_mut_ptr(), ptr::null_mut::<libc::timespec>());
        // SAFETY: every header points at a live vector and buffer of the length it gives, owned by `self` and touched by
        // nobody else during the call.
        let count =
            unsafe { libc::syscall(libc::SYS_recvmmsg, fd, headers, BATCH as libc::c_uint, flags, timeout) };
        if count < 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                error => Err(error),
            };
        }
        let mut whole = 0;
        for slot in 0..count as usize {
            // A message has a tag at least; one that was cut short is of another protocol, and parses as nothing.
            let truncated = self.headers[slot].msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let length = self.headers[slot].msg_len as usize;
            if length == 0 && whole == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if length == 0 {
                break;
            }
            self.lengths[slot] = if truncated { 0 } else { length };
            whole += 1;
        }
        Ok(whole)
    }

    /// One of the messages that were received.
    pub fn message(&self, index: usize) -> &[u8] {
        &self.buffers[index * MAX_MESSAGE..][..self.lengths[index]]
    }

    /// Sends packets, at most [`BATCH`]; how many went.
    ///
    /// # Errors
    /// The other end is closed.
    pub fn send_packets<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        let mut count = 0;
        for packet in packets.take(BATCH) {
            self.vectors[2 * count] = vector(&PACKET_TAG);
            self.vectors[2 * count + 1] = vector(packet);
            self.arm(count, 2 * count, 2);
            count += 1;
        }
        self.send_armed(count)
    }

    /// Sends one message; false if the socket is full.
    ///
    /// # Errors
    /// The other end is closed.
    pub fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        self.vectors[0] = vector(message);
        self.arm(0, 0, 1);
        self.send_armed(1).map(|sent| sent == 1)
    }

    /// Every caller has just written the first `count` headers, of bytes that live on in its arguments.
    fn send_armed(&mut self, count: usize) -> io::Result<usize> {
        if count == 0 {
            return Ok(0);
        }
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let headers = self.headers.as_mut_ptr();
        // SAFETY: the first `count` headers point at live vectors (owned by `self`) and bytes (borrowed by the caller); the
        // kernel only reads them and writes msg_len.
        let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd, headers, count as libc::c_uint, flags) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR)) => {
                Ok(0)
            }
            error => Err(error),
        }
    }

    fn arm(&mut self, slot: usize, first: usize, vectors: usize) {
        let at = &raw mut self.vectors[first];
        let header = &mut self.headers[slot].msg_hdr;
        header.msg_name = ptr::null_mut();
        header.msg_namelen = 0;
        header.msg_iov = at;
        header.msg_iovlen = vectors as _;
        header.msg_control = ptr::null_mut();
        header.msg_controllen = 0;
        header.msg_flags = 0;
    }
}

fn vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::fabric_port::message::{MAX_PACKET, Message};

    fn pair() -> (Channel, Channel) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Channel::new(a), Channel::new(b))
    }

    #[test]
    fn packets_keep_their_bounds_and_a_full_socket_takes_no_more() {
        let (mut a, mut b) = pair();
        let packets: Vec<Vec<u8>> = (0..BATCH).map(|n| vec![n as u8; MAX_PACKET - n]).collect();
        let mut sent = 0;
        loop {
            let went = a.send_packets(packets.iter().map(Vec::as_slice)).unwrap();
            sent += went;
            if went < BATCH {
                break;
            }
        }
        assert!(!a.send(&Message::Bye.bytes()).unwrap(), "full");
        let mut received = 0;
        loop {
            let count = b.receive().unwrap();
            if count == 0 {
                break;
            }
            for index in 0..count {
                let expected = &packets[(received + index) % BATCH];
                assert_eq!(Message::parse(b.message(index)), Some(Message::Packet(expected)));
            }
            received += count;
        }
        assert_eq!(received, sent);
        assert!(a.send(&Message::Bye.bytes()).unwrap());
        drop(a);
        assert_eq!(b.receive().unwrap(), 1);
        assert_eq!(Message::parse(b.message(0)), Some(Message::Bye));
        assert_eq!(b.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
