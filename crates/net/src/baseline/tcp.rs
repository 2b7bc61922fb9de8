//! What a raw TCP stream does on this machine: the measure for iWARP.
//!
//! Between two threads on loopback, with the product's socket options and CRC32C at both ends: pieces of 16 KiB, each summed
//! by the sender and checked by the receiver, many to a system call; and a ping-pong of one small message. Both ends spin on
//! sockets that do not block, as the product does when a program polls: a thread that sleeps in the kernel would be woken by
//! every segment, and make the product look well. No queue pairs, no memory but one buffer a side, no copies.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use everywire_wire::mpa::crc32c;

use super::end::Spin;
use super::{BaselineResult, Samples};

/// Bytes under one CRC.
const PIECE: usize = 16 * 1024;
/// Bytes of a CRC.
const CRC: usize = 4;
/// Pieces to a system call.
const PIECES: usize = 16;

/// Two ends of a connection on this host, neither of which blocks.
fn pair(own: IpAddr, peer: IpAddr) -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::new(peer, 0))?;
    let out = TcpStream::connect(listener.local_addr()?)?;
    let (back, from) = listener.accept()?;
    debug_assert_eq!(own.is_ipv4(), from.is_ipv4());
    for end in [&out, &back] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((out, back))
}

/// One-way bandwidth in messages of `size` bytes.
///
/// # Errors
/// A socket failed, or a CRC was wrong.
pub fn stream(own: IpAddr, peer: IpAddr, size: usize, duration: Duration) -> io::Result<BaselineResult> {
    let (mut out, mut back) = pair(own, peer)?;
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || receive(&mut back));
        let mut burst = vec![0x5a; PIECES * (PIECE + CRC)];
        let begin = Instant::now();
        let mut sent = 0u64;
        while begin.elapsed() < duration {
            for piece in burst.chunks_exact_mut(PIECE + CRC) {
                let (payload, crc) = piece.split_at_mut(PIECE);
                crc.copy_from_slice(&crc32c(payload));
            }
            spin_write(&mut out, &burst)?;
            sent += (PIECES * PIECE) as u64;
        }
        drop(out);
        let received = receiver.join().unwrap_or_else(|_| Err(io::Error::other("the receiver panicked")))?;
        let elapsed = begin.elapsed();
        if received != sent {
            return Err(io::Error::other(format!("{sent} bytes were sent, {received} received")));
        }
        let per_s = received as f64 / elapsed.as_secs_f64();
        Ok(BaselineResult {
            gbit_per_s: per_s * 8.0 / 1e9,
            msg_per_s: per_s / size as f64,
            ..Default::default()
        })
    })
}

/// Takes and checks pieces until the end; payload bytes.
fn receive(end: &mut TcpStream) -> io::Result<u64> {
    let mut buffer = vec![0; PIECES * (PIECE + CRC)];
    let (mut have, mut received) = (0, 0);
    loop {
        let count = spin(|| end.read(&mut buffer[have..]))?;
        if count == 0 {
            return Ok(received);
        }
        have += count;
        let whole = have - have % (PIECE + CRC);
        for piece in buffer[..whole].chunks_exact(PIECE + CRC) {
            let (payload, crc) = piece.split_at(PIECE);
            if crc32c(payload) != crc {
                return Err(io::Error::other("a CRC32C is wrong"));
            }
            received += PIECE as u64;
        }
        buffer.copy_within(whole..have, 0);
        have -= whole;
    }
}

/// Round trips of `size` bytes and a CRC.
///
/// # Errors
/// A socket failed, or a CRC was wrong.
pub fn ping_pong(own: IpAddr, peer: IpAddr, size: usize, duration: Duration) -> io::Result<BaselineResult> {
    let (mut out, mut back) = pair(own, peer)?;
    std::thread::scope(|scope| {
        let mirror = scope.spawn(move || {
            let mut message = vec![0; size + CRC];
            while spin_read(&mut back, &mut message)? {
                seal(&mut message)?;
                spin_write(&mut back, &message)?;
            }
            Ok::<(), io::Error>(())
        });
        let mut message = vec![0x5a; size + CRC];
        let mut samples = Samples::default();
        let begin = Instant::now();
        let mut now = begin;
        while now - begin < duration {
            let crc = crc32c(&message[..size]);
            message[size..].copy_from_slice(&crc);
            let start = now;
            spin_write(&mut out, &message)?;
            if !spin_read(&mut out, &mut message)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            seal(&mut message)?;
            now = Instant::now();
            samples.add(now - start);
        }
        drop(out);
        mirror.join().unwrap_or_else(|_| Err(io::Error::other("the mirror panicked")))?;
        Ok(samples.result(size, now - begin, 0))
    })
}

/// Checks the CRC of what came.
fn seal(message: &mut [u8]) -> io::Result<()> {
    let (payload, crc) = message.split_at_mut(message.len() - CRC);
    let right = crc32c(payload);
    if crc != right {
        return Err(io::Error::other("a CRC32C is wrong"));
    }
    Ok(())
}

/// A call of the socket, again until it neither would block nor was interrupted.
fn spin(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut spin = Spin::default();
    loop {
        match call() {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                spin.turn(false);
            }
            done => return done,
        }
    }
}

/// Fills `into`; false at the end of the stream.
fn spin_read(end: &mut TcpStream, into: &mut [u8]) -> io::Result<bool> {
    let mut have = 0;
    while have < into.len() {
        match spin(|| end.read(&mut into[have..]))? {
            0 => return Ok(false),
            count => have += count,
        }
    }
    Ok(true)
}

/// Writes all of `bytes`.
fn spin_write(end: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match spin(|| end.write(&bytes[done..]))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_give_rates() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let time = Duration::from_millis(30);
        assert!(stream(ip, ip, 65_536, time).unwrap().gbit_per_s > 0.0);
        // More than a socket's buffers hold has to be written in parts.
        for size in [64, 16 << 20] {
            let result = ping_pong(ip, ip, size, time).unwrap();
            assert!(result.msg_per_s > 0.0 && result.p50_us > 0.0, "{size}: {result:?}");
        }
    }
}
