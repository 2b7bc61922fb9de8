//! Who sends to an ibsim socket: abstract names have no permissions, so the kernel has to tell whose each datagram is.
//!
//! Read first: unix(7) on SO_PASSCRED and SCM_CREDENTIALS. Clients of another user than this process's own are not listened
//! to, save root's: whoever is a subnet manager, or puts MADs on QP0, owns the fabric.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::net::SocketAddrUnix;

/// Bytes of room for a message of credentials and its header.
const CONTROL: usize = 64;

/// A datagram's sender, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its process; 0 for one that this process cannot see (another namespace of processes).
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

impl Peer {
    /// Whether it may be a client.
    pub(super) fn is_let_in(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// A datagram that has been received.
#[derive(Debug)]
pub(super) struct Datagram {
    pub length: usize,
    /// `None` if the kernel has not said: then it is nobody's.
    pub peer: Option<Peer>,
    /// Where an answer goes; `None` for sockets without an abstract name.
    pub from: Option<SocketAddrUnix>,
}

/// Has the kernel tell of senders. To be called before the socket has a name: nothing can have arrived then.
pub(super) fn ask_for_peers(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(fd, true)?)
}

/// Aligned as control messages have to be.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Receives a datagram; of a longer one than `buffer` its beginning.
///
/// # Errors
/// None is there.
pub(super) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; CONTROL]);
    // SAFETY: all-zero bytes are valid for these C structures (null pointers and lengths of zero).
    let (mut name, mut header): (libc::sockaddr_un, libc::msghdr) = unsafe { (mem::zeroed(), mem::zeroed()) };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL as _;
    // Descriptors that somebody sends along are dropped with the message: they are not received for want of room, or closed.
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points at live memory of the lengths it gives, which nobody else touches during the call.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    let Ok(length) = usize::try_from(length) else { return Err(io::Error::last_os_error()) };
    Ok(Datagram { length, peer: peer(&header), from: abstract_name(&name, header.msg_namelen as usize) })
}

/// The credentials among the control messages; descriptors among them are closed.
fn peer(header: &libc::msghdr) -> Option<Peer> {
    let mut found = None;
    // SAFETY: `header` is as recvmsg has left it, and its control buffer lives; the CMSG functions walk within that buffer,
    // data are read unaligned and only where the message's length has them.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = at.as_ref() {
            let room = message.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(at);
            match (message.cmsg_level, message.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if room >= size_of::<libc::ucred>() => {
                    let who: libc::ucred = ptr::read_unaligned(data.cast());
                    found = Some(Peer { pid: u32::try_from(who.pid).unwrap_or(0), uid: who.uid });
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..room / size_of::<libc::c_int>() {
                        let fd: libc::c_int = ptr::read_unaligned(data.cast::<libc::c_int>().add(index));
                        libc::close(fd);
                    }
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    found
}

fn abstract_name(name: &libc::sockaddr_un, length: usize) -> Option<SocketAddrUnix> {
    let path = name.sun_path.get(..length.checked_sub(mem::offset_of!(libc::sockaddr_un, sun_path))?)?;
    let bytes: Vec<u8> = path.iter().map(|byte| *byte as u8).collect();
    match bytes.split_first()? {
        (0, name) if !name.is_empty() => SocketAddrUnix::new_abstract_name(name).ok(),
        _ => None,
    }
}
