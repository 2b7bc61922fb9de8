//! Target and initiator over real UDP sockets on loopback, each on its own thread and runtime, RAM and file backends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;

use everywire_block::BackendSpec;
use everywire_net::{Host, OpenOptions, TokioRt};
use everywire_nvmeof::Nqn;
use everywire_nvmeof::rdma::{Controller, HostIdentity, InitiatorOptions, NvmeTarget, TargetOptions};
use everywire_nvmeof::target::{Limits, NamespaceConfig, SubsystemConfig, Target};
use everywire_verbs::rt::Notify;

fn nqn() -> Nqn {
    "nqn.2026-01.lab:net".parse().expect("an NQN")
}

fn open(address: &str) -> (TokioRt, Host) {
    let runtime = TokioRt::new().expect("a runtime");
    let host = Host::open(&format!("rocev2:{address}"), &OpenOptions::default()).expect("a device");
    host.run(&runtime).expect("a driver");
    (runtime, host)
}

/// Serves `backend` until the sender is dropped; then shuts down in order.
fn serve(
    address: &'static str,
    backend: &str,
) -> (SocketAddr, mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let backend = BackendSpec::parse(backend).expect("a backend").open().expect("opens");
    let (stop, stopped) = mpsc::channel::<()>();
    let (up, ready) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (runtime, host) = open(address);
        let mut target = Target::new(Limits::default());
        let config = SubsystemConfig::new(nqn()).namespace(NamespaceConfig::new(backend));
        target.add_subsystem(&config).expect("a subsystem");
        let rt = runtime.handle();
        let target = NvmeTarget::new(rt.clone(), target, TargetOptions::default());
        let listen = SocketAddr::new(address.parse().expect("ip"), 0);
        up.send(target.listen(host.device(), listen).expect("listens")).expect("the test waits");
        runtime.block_on(async {
            while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                rt.sleep(std::time::Duration::from_millis(20)).await;
            }
            target.shutdown().await;
            assert_eq!(target.connections(), 0);
        });
    });
    (ready.recv().expect("serves"), stop, thread)
}

fn exercise(target: &'static str, host: &'static str, backend: &str) {
    let (address, stop, thread) = serve(target, backend);
    let (runtime, device) = open(host);
    let rt = runtime.handle();
    runtime.block_on(async {
        let identity = HostIdentity::from_uuid(uuid::Uuid::from_u128(7));
        let options = InitiatorOptions { io_queues: 2, queue_entries: 32, ..Default::default() };
        let controller = Controller::connect(&rt, device.device(), address, &nqn(), &identity, options).await;
        let controller = controller.unwrap_or_else(|error| panic!("{error}"));
        let disk = controller.namespace(1).expect("a namespace");
        let (done, left) = (Notify::new(), std::rc::Rc::new(std::cell::Cell::new(32u64)));
        for i in 0..32u64 {
            let (disk, done, left) = (disk.clone(), done.clone(), left.clone());
            rt.spawn(async move {
                let len = [512, 4096, 65536, 1 << 18][i as usize % 4];
                let bytes: Vec<u8> = (0..len as u64).map(|b| (b * 31 + b / 512 + i) as u8).collect();
                disk.write(i << 18, &bytes).await.unwrap_or_else(|error| panic!("{error}"));
                let back = disk.read(i << 18, len).await.unwrap_or_else(|error| panic!("{error}"));
                assert!(back == bytes, "{len} bytes at {} differ", i << 18);
                left.set(left.get() - 1);
                done.notify_one();
            });
        }
        while left.get() != 0 {
            done.notified().await;
        }
        disk.flush().await.expect("flushes");
        disk.write_zeroes(0, 1 << 18, true).await.expect("zeroes");
        assert!(disk.read(0, 1 << 18).await.expect("reads").iter().all(|&byte| byte == 0));
        controller.disconnect().await.expect("in order");
    });
    drop(stop);
    thread.join().expect("the target's thread");
}

#[test]
fn ram_over_ipv4() {
    exercise("127.77.1.1", "127.77.1.2", "ram:16MiB");
}

#[test]
fn file_over_ipv4() {
    let path: PathBuf = std::env::temp_dir().join(format!("everywire-nvmeof-{}.img", std::process::id()));
    exercise("127.77.2.1", "127.77.2.2", &format!("file:{},size=16MiB", path.display()));
    let disk = std::fs::read(&path).expect("the file");
    std::fs::remove_file(&path).expect("removes");
    // What the target shut down with is on the disk: block 3 of task 1, written as 4096 bytes at 256 KiB.
    let want: Vec<u8> = (0..4096u64).map(|b| (b * 31 + b / 512 + 1) as u8).collect();
    assert!(disk[1 << 18..(1 << 18) + 4096] == want);
}
