//! Who owns a UDP or TCP address that cannot be bound, in words.
//!
//! Read first: proc(5) on /proc/net/udp, /proc/net/tcp and /proc/PID/fd; facts on several processes on one host: only sockets of one user
//! can share an address, so another user is simply told who has it.
//!
//! It changes nothing and never fails: what cannot be found out is left out of the sentence.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;

/// One bound socket of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    ip: IpAddr,
    port: u16,
    uid: u32,
    inode: u64,
}

/// A sentence on who holds `wanted`: the process if it can be seen, else the user, else the kernel.
pub fn describe(wanted: SocketAddr) -> String {
    let Some(owner) = found_in(["udp", "udp6"], |_| true, |socket| conflicts(socket, wanted)) else {
        return format!("UDP {wanted} is in use, but no socket on it is listed");
    };
    let what = if owner.ip.is_unspecified() {
        format!("every address of this host at UDP port {} is held", owner.port)
    } else {
        format!("UDP {} is held", SocketAddr::new(owner.ip, owner.port))
    };
    if owner.inode == 0 {
        return format!(
            "{what} by the kernel itself: most likely its soft-RoCE (rdma_rxe), see `rdma link show`; remove that link, \
             or give Everywire an address of another network namespace"
        );
    }
    match process_with(owner.inode) {
        Some((pid, _)) if pid == std::process::id() => {
            format!("{what} by this very process {pid}, for another device of its own")
        }
        process => format!("{what} by {}", holder(process, owner.uid)),
    }
}

/// A sentence on who listens at a TCP address that cannot be listened at.
pub fn describe_tcp(wanted: SocketAddr) -> String {
    // Connections stay on the port of their listener, and keep nobody from listening.
    let listens = |line: &str| line.split_ascii_whitespace().nth(3) == Some(TCP_LISTEN);
    let holds = |socket: &Bound| {
        conflicts(socket, wanted) || wanted.ip().is_unspecified() && socket.port == wanted.port()
    };
    match found_in(["tcp", "tcp6"], listens, holds) {
        Some(owner) => {
            let (at, who) =
                (SocketAddr::new(owner.ip, owner.port), holder(process_with(owner.inode), owner.uid));
            format!("TCP {at} is held by {who}; give another port")
        }
        None => format!("TCP {wanted} is in use, but nobody is listed who listens there; give another port"),
    }
}

/// The process that holds a socket, as far as it can be seen.
fn holder(process: Option<(u32, String)>, uid: u32) -> String {
    match process {
        Some((pid, _)) if pid == std::process::id() => format!("this very process {pid}"),
        Some((pid, name)) => format!("process {pid} ({name}) of user {uid}"),
        None if uid != own_uid() => format!("a process of user {uid}, which we may not look into"),
        None => format!("a process of user {uid} that we cannot see"),
    }
}

/// How often a socket that must be there is looked for.
const LOOKS: usize = 5;

/// The state of a TCP socket that listens, as /proc/net/tcp writes it.
const TCP_LISTEN: &str = "0A";

/// The first socket like that which the wanted lines of these tables tell of, in this thread's network namespace. The kernel
/// writes a table in pieces, and misses sockets while others come and go: what is not found is looked for again.
fn found_in(
    tables: [&str; 2],
    wanted: impl Fn(&str) -> bool,
    is_it: impl Fn(&Bound) -> bool,
) -> Option<Bound> {
    let look = || {
        let read = |table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).ok();
        let texts = tables.into_iter().filter_map(read);
        texts.into_iter().find_map(|text| {
            text.lines()
                .skip(1)
                .filter(|line| wanted(line))
                .filter_map(parse_line)
                .find(|socket| is_it(socket))
        })
    };
    (0..LOOKS).find_map(|_| look())
}

fn conflicts(socket: &Bound, wanted: SocketAddr) -> bool {
    // A dual-stack wildcard socket holds the port in IPv4 too.
    let covers =
        socket.ip == wanted.ip() || (socket.ip.is_unspecified() && (socket.ip.is_ipv6() || wanted.is_ipv4()));
    socket.port == wanted.port() && covers
}

fn parse_line(line: &str) -> Option<Bound> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (ip, port) = fields.next()?.split_once(':')?;
    let mut fields = fields.skip(5);
    let uid = fields.next()?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Bound { ip: parse_ip(ip)?, port: u16::from_str_radix(port, 16).ok()?, uid, inode })
}

/// The kernel prints addresses as native-endian 32-bit words.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let mut octets = [0; 16];
            for (i, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(i * 8)?);
            }
            Some(IpAddr::V6(Ipv6Addr::from(octets)))
        }
        _ => None,
    }
}

fn process_with(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        if files
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()))
        {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim_end().to_owned()));
        }
    }
    None
}

fn own_uid() -> u32 {
    fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn names_this_process_as_the_owner() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let text = describe(socket.local_addr().unwrap());
        assert!(text.contains("another device of its own"), "{text}");
    }

    #[test]
    fn names_another_process_as_the_owner() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let input = std::process::Stdio::from(std::os::fd::OwnedFd::from(socket));
        let mut child = std::process::Command::new("sleep").arg("60").stdin(input).spawn().unwrap();
        let text = describe(address);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(text.contains(&format!("process {}", child.id())), "{text}");
    }

    #[test]
    fn names_who_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for wanted in [address, (Ipv4Addr::UNSPECIFIED, address.port()).into()] {
            let text = describe_tcp(wanted);
            assert!(text.contains(&format!("TCP {address} is held by this very process")), "{text}");
        }
    }

    #[test]
    fn a_wildcard_owner_is_called_every_address() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let text = describe(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        assert!(text.starts_with("every address of this host"), "{text}");
    }

    #[test]
    fn lines_of_the_kernel_parse() {
        // Lines as Linux 6 prints them on a little-endian machine.
        let v4 = "  612: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 24680 2 0 0";
        let bound = parse_line(v4).unwrap();
        assert_eq!(
            (bound.ip, bound.port, bound.uid, bound.inode),
            ([127, 0, 0, 1].into(), 4791, 1000, 24680)
        );
        let v6 = "  612: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 \
                  00000000:00000000 00:00000000 00000000     0        0 0 2 0 0";
        let bound = parse_line(v6).unwrap();
        assert_eq!((bound.ip, bound.inode), (IpAddr::V6(Ipv6Addr::LOCALHOST), 0));
    }
}
