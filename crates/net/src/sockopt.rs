//! Socket options by number: the few that neither `socket2` nor `rustix` knows, and control messages (cmsg).
//!
//! Read first: cmsg(3), udp(7) and Linux's `include/uapi/linux/udp.h`. All `unsafe` of option handling is here, so that the
//! rest of the crate deals in integers and slices. It knows nothing of RDMA.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;

/// Room for the control messages of one datagram: TOS, TTL, GRO size and the overflow
/// count, or a whole `sock_extended_err` with its offender. Each is padded to 8 bytes and has a 16-byte header.
pub(crate) const CONTROL_LEN: usize = 256;

/// Control message space of one datagram, aligned as `cmsghdr` must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; CONTROL_LEN],
}

impl Control {
    pub(crate) const EMPTY: Control = Control { bytes: [0; CONTROL_LEN] };

    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    /// Appends a message after the first `used` bytes and returns how many are used then.
    pub(crate) fn push<T: Copy>(&mut self, used: usize, level: c_int, kind: c_int, value: T) -> usize {
        let value_len = mem::size_of::<T>();
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
        let (space, len) =
            unsafe { (libc::CMSG_SPACE(value_len as u32) as usize, libc::CMSG_LEN(value_len as u32)) };
        assert!(used + space <= CONTROL_LEN, "control messages of one datagram fit {CONTROL_LEN} bytes");
        let header = libc::cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
        let at = self.bytes[used..used + space].as_mut_ptr();
        // SAFETY: `at` has room for `space` bytes, which hold a cmsghdr and a `T` behind it; both writes are unaligned-safe.
        unsafe {
            at.cast::<libc::cmsghdr>().write_unaligned(header);
            at.add(mem::size_of::<libc::cmsghdr>()).cast::<T>().write_unaligned(value);
        }
        used + space
    }

    /// The messages in the first `used` bytes, as (level, type, value).
    pub(crate) fn messages(&self, used: usize) -> Messages<'_> {
        Messages { rest: &self.bytes[..used.min(CONTROL_LEN)] }
    }
}

/// Iterates over received control messages; stops at the first that does not fit.
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        const HEADER: usize = mem::size_of::<libc::cmsghdr>();
        let header: libc::cmsghdr = read(self.rest)?;
        let len = header.cmsg_len;
        let value = self.rest.get(HEADER..len)?;
        self.rest = self.rest.get(len.next_multiple_of(8)..).unwrap_or_default();
        Some((header.cmsg_level, header.cmsg_type, value))
    }
}

/// A plain C value from the start of `bytes`, if they are enough.
pub(crate) fn read<T: Pod>(bytes: &[u8]) -> Option<T> {
    let slice = bytes.get(..mem::size_of::<T>())?;
    // SAFETY: the slice has the size of `T`, the read is unaligned-safe, and `Pod` says every bit pattern is a `T`.
    Some(unsafe { slice.as_ptr().cast::<T>().read_unaligned() })
}

/// Types for which any bytes are a valid value.
///
/// # Safety
/// Every bit pattern of the size of the type must be valid, and the type must have no drop glue.
pub(crate) unsafe trait Pod: Copy {}

// SAFETY: integers.
unsafe impl Pod for u8 {}
// SAFETY: integers.
unsafe impl Pod for u32 {}
// SAFETY: integers.
unsafe impl Pod for c_int {}
// SAFETY: a C structure of integers.
unsafe impl Pod for libc::cmsghdr {}
// SAFETY: a C structure of integers.
unsafe impl Pod for libc::sock_extended_err {}
// SAFETY: C structures of integers.
unsafe impl Pod for libc::sockaddr_in {}
// SAFETY: C structures of integers.
unsafe impl Pod for libc::sockaddr_in6 {}
// SAFETY: a C structure of integers.
unsafe impl Pod for libc::nlmsghdr {}

/// `setsockopt` with a plain value.
pub(crate) fn set<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: T) -> io::Result<()> {
    // SAFETY: the pointer is to a live `T` and the length is its size; the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `getsockopt` of an integer.
pub(crate) fn get_int(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value = MaybeUninit::<c_int>::zeroed();
    let mut len = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: value and length are live and the length is the value's size; zeroed is a valid integer if less is written.
    let (result, value) = unsafe {
        let result =
            libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), (&raw mut len).cast());
        (result, value.assume_init())
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Makes a socket drop every datagram that arrives: it is there to send, or to hold an address.
pub(crate) fn drop_all_input(fd: BorrowedFd<'_>) -> io::Result<()> {
    attach_filter(fd, &[libc::sock_filter { code: BPF_RET_K, jt: 0, jf: 0, k: 0 }])
}

/// BPF_RET | BPF_K.
pub(crate) const BPF_RET_K: u16 = 0x06;

/// Attaches a classic BPF filter.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_messages_come_back() {
        let mut control = Control::EMPTY;
        let used = control.push(0, libc::SOL_UDP, libc::UDP_SEGMENT, 4112u16);
        let used = control.push(used, libc::IPPROTO_IP, libc::IP_TOS, 3 as c_int);
        let got: Vec<_> = control.messages(used).map(|(l, t, v)| (l, t, v.to_vec())).collect();
        assert_eq!(
            got[0],
            (17, 103, 4112u16.to_ne_bytes().to_vec()),
            "cmsg_len counts the value, not the padding"
        );
        assert_eq!(got[1], (0, 1, 3i32.to_ne_bytes().to_vec()));
        assert_eq!(got.len(), 2);
    }

    #[test]
    fn a_cut_message_ends_the_iteration() {
        let mut control = Control::EMPTY;
        let used = control.push(0, 1, 2, 3u32);
        assert_eq!(control.messages(used - 8).count(), 0);
        assert_eq!(control.messages(3).count(), 0);
    }
}
