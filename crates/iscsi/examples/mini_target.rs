//! The smallest whole target: a disk of a handful of commands in memory, on a TCP port, until it is killed.
//!
//! `cargo run -p everywire-iscsi --example mini_target -- 127.0.0.1:3260`, then `iscsi-ls -s iscsi://127.0.0.1`.

#[path = "../tests/lab/disk.rs"]
mod disk;

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use everywire_iscsi::target::{Node, Portal, Target, TargetOptions};
use everywire_iscsi::tcp::ByteStream;
use everywire_net::TokioRt;
use tokio::net::{TcpListener, TcpStream};

struct Socket(TcpStream);

impl ByteStream for Socket {
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3260".to_owned()).parse()?;
    let runtime = TokioRt::new()?;
    let rt = runtime.handle();
    let target = Target::new(rt.clone(), TargetOptions::default())?;
    target.add_node(Node::new("iqn.2026-11.example:mini".parse()?, Rc::new(disk::MiniDisk::default())))?;
    target.add_portal(Portal { address, group: 1, rdma: false });
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, peer) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (local, target) = (stream.local_addr()?, target.clone());
            rt.spawn(async move { target.serve_tcp(Socket(stream), peer, local).await });
        }
    })
}
