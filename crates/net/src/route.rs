//! Routes and interfaces: which source address, interface and MTU lead to a peer.
//!
//! The kernel is asked with a throw-away UDP socket: `connect` looks the route up without sending anything, `getsockname`
//! tells the source address and IP_MTU what the path takes now, path MTU discovery included. Interfaces come from
//! getifaddrs(3) and SIOCGIFMTU.
//!
//! It does not resolve neighbours; a UDP socket leaves that to the kernel, and `raw/neighbour.rs` does it for raw Ethernet.

use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::sockopt;
use crate::udp::ROCE_V2_PORT;
use crate::udp::socket_addr;

/// The MTU assumed of an interface that cannot be found, in bytes of IP packet.
pub const DEFAULT_MTU: usize = 1500;

const IP_MTU: i32 = 14;
const IPV6_MTU: i32 = 24;

/// The way to a peer as the kernel would send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source address that the kernel takes.
    pub src: IpAddr,
    /// Interface index of a link-local source address, else 0.
    pub scope_id: u32,
    /// Largest IP packet that the path is known to take, in bytes.
    pub mtu: usize,
}

/// Asks the kernel for the route to `dst` (from `src`, if given; `scope_id` for link-local addresses).
///
/// # Errors
/// ENETUNREACH, EHOSTUNREACH and so on from the kernel; EADDRNOTAVAIL if `src` is not an address of this host.
pub fn resolve(dst: IpAddr, src: Option<IpAddr>, scope_id: u32) -> io::Result<Path> {
    let dst = with_scope(dst, ROCE_V2_PORT, scope_id);
    let socket = Socket::new(Domain::for_address(dst), Type::DGRAM, Some(Protocol::UDP))?;
    if let Some(src) = src {
        socket.bind(&SockAddr::from(with_scope(src, 0, scope_id)))?;
    }
    socket.connect(&SockAddr::from(dst))?;
    let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let (level, name) =
        if dst.is_ipv4() { (libc::IPPROTO_IP, IP_MTU) } else { (libc::IPPROTO_IPV6, IPV6_MTU) };
    let mtu = sockopt::get_int(socket.as_fd(), level, name)?;
    let scope_id = match local {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    Ok(Path { src: local.ip(), scope_id, mtu: usize::try_from(mtu).unwrap_or(DEFAULT_MTU) })
}

/// A socket address with its scope, which std's constructor from an IP leaves out.
pub fn with_scope(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope_id)),
    }
}

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name: `eth0`.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Largest IP packet that it takes, in bytes.
    pub mtu: usize,
    /// Its Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Whether it is a loopback interface.
    pub loopback: bool,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// Bits of it that name the network.
    pub prefix: u32,
    /// Index of the interface of a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

/// The interface that has `ip`, or whose network it is in for loopback networks (all of 127.0.0.0/8 is usable on `lo`).
pub fn interface_of(ip: IpAddr, scope_id: u32) -> io::Result<Option<Interface>> {
    let all = addresses()?;
    let exact =
        all.iter().find(|a| a.ip == ip && (scope_id == 0 || a.scope_id == 0 || a.scope_id == scope_id));
    let found = exact.or_else(|| {
        all.iter().find(|a| {
            a.ip.is_loopback()
                && network(a.ip, a.prefix) == network(ip, a.prefix)
                && a.ip.is_ipv4() == ip.is_ipv4()
        })
    });
    found.map(|address| interface(&address.interface)).transpose()
}

fn network(ip: IpAddr, prefix: u32) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4).checked_shr(32 - prefix.min(32)).unwrap_or(0)),
        IpAddr::V6(v6) => u128::from(v6).checked_shr(128 - prefix.min(128)).unwrap_or(0),
    }
}

/// The interface with this name.
///
/// # Errors
/// `NotFound` if there is none.
pub fn interface(name: &str) -> io::Result<Interface> {
    interface_through(&Socket::new(Domain::IPV4, Type::DGRAM, None)?, name)
}

/// The interface with this name in the network namespace of `socket`.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn interface_through(socket: &Socket, name: &str) -> io::Result<Interface> {
    let c_name =
        CString::new(name).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "interface name"))?;
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("no interface is named {name:?}"));
    if name.len() >= libc::IF_NAMESIZE {
        return Err(none());
    }
    let mut request = request_for(&c_name);
    // SAFETY: `request` is a live ifreq with a terminated name; SIOCGIFINDEX writes its integer member.
    let index = unsafe {
        match check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut request)) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Err(none()),
            other => other?,
        }
        request.ifr_ifru.ifru_ifindex
    };
    let mut request = request_for(&c_name);
    // SAFETY: as above; SIOCGIFMTU writes the integer member.
    let mtu = unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request))?;
        request.ifr_ifru.ifru_mtu
    };
    let mut request = request_for(&c_name);
    // SAFETY: as above; SIOCGIFHWADDR writes a sockaddr, whose family tells what the bytes are.
    let hardware = unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request))?;
        request.ifr_ifru.ifru_hwaddr
    };
    let mac: [u8; 6] = std::array::from_fn(|i| hardware.sa_data[i] as u8);
    let family = hardware.sa_family;
    Ok(Interface {
        name: name.to_owned(),
        index: u32::try_from(index).map_err(|_| none())?,
        mtu: usize::try_from(mtu).unwrap_or(DEFAULT_MTU),
        mac: (family == libc::ARPHRD_ETHER).then_some(mac),
        loopback: family == libc::ARPHRD_LOOPBACK,
    })
}

/// The name of the interface with this index.
pub fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the IF_NAMESIZE bytes that if_indextoname asks for, and is terminated on success.
    let text = unsafe {
        if libc::if_indextoname(index, name.as_mut_ptr()).is_null() {
            return Err(io::Error::last_os_error());
        }
        CStr::from_ptr(name.as_ptr())
    };
    Ok(text.to_string_lossy().into_owned())
}

fn request_for(name: &CStr) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IF_NAMESIZE - 1).zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    request
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Every IPv4 and IPv6 address of this host's interfaces that are up.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: getifaddrs writes a list that is ours until freeifaddrs.
    check(unsafe { libc::getifaddrs(&raw mut list) })?;
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is a node of the list, which is not freed before the loop ends; its name is a C string.
        let (node, name) = unsafe { (&*at, CStr::from_ptr((*at).ifa_name)) };
        if node.ifa_flags & libc::IFF_UP as u32 != 0
            && let Some((ip, scope_id)) = address(node.ifa_addr)
        {
            let prefix = match address(node.ifa_netmask).map(|(mask, _)| mask) {
                Some(IpAddr::V4(mask)) => u32::from(mask).leading_ones(),
                Some(IpAddr::V6(mask)) => u128::from(mask).leading_ones(),
                None => 0,
            };
            let interface = name.to_string_lossy().into_owned();
            found.push(InterfaceAddress { interface, ip, prefix, scope_id });
        }
        at = node.ifa_next;
    }
    // SAFETY: the list came from getifaddrs and nothing borrows from it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn address(addr: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: getifaddrs gives sockaddrs as large as their family says; each read is of that family's type.
    unsafe {
        match i32::from((*addr).sa_family) {
            libc::AF_INET => {
                let v4 = addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some((IpAddr::V4(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes())), 0))
            }
            libc::AF_INET6 => {
                let v6 = addr.cast::<libc::sockaddr_in6>().read_unaligned();
                let (SocketAddr::V6(v6),) = (socket_addr(&v6)?,) else { return None };
                Some((IpAddr::V6(*v6.ip()), v6.scope_id()))
            }
            _ => None,
        }
    }
}

/// Bytes of IPv4 and UDP header before the payload of a datagram to `ip`.
pub fn header_overhead(ip: IpAddr) -> usize {
    match ip {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    }
}

/// Whether `ip` is an IPv6 link-local address.
pub fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_interface_source_and_mtu() {
        let lo = interface_of("127.0.0.1".parse().unwrap(), 0).unwrap().unwrap();
        assert!(lo.loopback);
        // Any address of 127.0.0.0/8 is usable though the interface lists one.
        assert_eq!(interface_of("127.9.8.7".parse().unwrap(), 0).unwrap().unwrap(), lo);
        assert_eq!(interface_name(lo.index).unwrap(), lo.name);
        let path = resolve("127.0.0.2".parse().unwrap(), None, 0).unwrap();
        assert_eq!(path.src, "127.0.0.1".parse::<IpAddr>().unwrap());
        // No IP packet is larger than 65,535 bytes, whatever the interface takes.
        assert_eq!(path.mtu, lo.mtu.min(65_535));
        let path = resolve("127.0.0.2".parse().unwrap(), Some("127.0.0.3".parse().unwrap()), 0).unwrap();
        assert_eq!(path.src, "127.0.0.3".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        // 192.0.2.0/24 is reserved for documentation (RFC 5737).
        let elsewhere = "192.0.2.77".parse().unwrap();
        assert_eq!(interface_of(elsewhere, 0).unwrap(), None);
        let error = resolve("127.0.0.1".parse().unwrap(), Some(elsewhere), 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert_eq!(interface("no-such-iface").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn every_listed_address_belongs_to_its_interface() {
        for address in addresses().unwrap() {
            let found = interface_of(address.ip, address.scope_id).unwrap().unwrap();
            assert!(found.mtu >= 68, "{address:?}: {found:?}");
        }
    }
}
