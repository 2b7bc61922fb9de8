//! Connect, say a word, disconnect, a hundred thousand times: nothing may pile up, neither objects nor memory, and the last connection is
//! made as fast as the first (cases RX-12).

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use everywire_sim::{HostConfig, HostId, World};
use everywire_verbs::{
    Access, ConnParam, ConnectOptions, Cq, Device, ListenOptions, Listener, MemoryRegion, Pd, QpInit, QpType,
    RecvWr, SendOp, SendWr, Usage, WcStatus,
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Time-waits, and everything else that is allowed to linger, are over after so many cycles.
const WARM_UP: usize = 5_000;
/// Bytes that the heap may differ by between two moments at which the same objects live.
const SLACK: usize = 256 << 10;
/// Virtual time between two cycles.
const PAUSE: Duration = Duration::from_millis(20);

/// One end: a device with everything that outlives a connection.
struct Side {
    device: Device,
    pd: Pd,
    cq: Cq,
    region: MemoryRegion,
}

impl Side {
    fn new(world: &World, host: HostId) -> Side {
        let device = world.device(host);
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(16).unwrap();
        let region = pd.register(64, Access::LOCAL_WRITE).unwrap();
        Side { device, pd, cq, region }
    }

    /// What lives on the device and in its connection manager.
    fn footprint(&self) -> (Usage, usize) {
        (self.device.usage(), self.device.cm_footprint())
    }
}

/// The server: takes one connection after the other, receives a word and waits for the end.
async fn serve(side: Rc<Side>, listener: Listener) {
    while let Ok(request) = listener.next_request().await {
        let qp = side.pd.create_qp(&QpInit::new(QpType::Rc, &side.cq)).unwrap();
        qp.to_init(Access::empty()).unwrap();
        qp.post_recv(RecvWr::new(1, [side.region.sge(..)])).unwrap();
        let connection = request.accept(&qp, ConnParam::default()).await.expect("accepting");
        let mut done = Vec::new();
        side.cq.wait(&mut done, 1).await.unwrap();
        assert_eq!((done[0].status, done[0].byte_len), (WcStatus::Success, 4));
        connection.closed().await;
    }
}

async fn cycle(side: Rc<Side>, address: SocketAddr) {
    let qp = side.pd.create_qp(&QpInit::new(QpType::Rc, &side.cq)).unwrap();
    let connection = side.device.connect(ConnectOptions::new(address, &qp)).await.expect("connecting");
    qp.post_send(SendWr::new(7, SendOp::Send).with_inline(*b"word")).unwrap();
    let mut done = Vec::new();
    side.cq.wait(&mut done, 1).await.unwrap();
    assert_eq!((done[0].wr_id, done[0].status), (7, WcStatus::Success));
    connection.disconnect().await;
}

#[test]
fn connections_come_and_go_without_a_trace() {
    let cycles = std::env::var("EVERYWIRE_CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let world = World::new(1);
    let [client, server] = ["10.0.0.1", "10.0.0.2"].map(|ip| {
        let host = world.add_host(HostConfig::new(ip.parse().unwrap()));
        (host, Rc::new(Side::new(&world, host)))
    });
    let address: SocketAddr = "10.0.0.2:4420".parse().unwrap();
    let listener = server.1.device.listen(address, ListenOptions::default()).unwrap();
    drop(world.rt(server.0).spawn(serve(server.1.clone(), listener)));
    let mut steady = None;
    let mut times = Vec::new();
    for n in 0..cycles {
        let started = world.elapsed();
        world.block_on(Duration::from_secs(10), cycle(client.1.clone(), address)).expect("a cycle ends");
        times.push(world.elapsed() - started);
        world.run_for(PAUSE);
        if n == WARM_UP {
            steady = Some((client.1.footprint(), server.1.footprint(), ALLOCATOR.current_usage()));
            times = Vec::with_capacity(cycles); // so that the list itself does not count as growth
        }
    }
    let Some((client_before, server_before, bytes_before)) = steady else { return };
    // The list of times was made after the reading.
    let bytes = ALLOCATOR.current_usage().saturating_sub(times.capacity() * size_of::<Duration>());
    assert_eq!(client.1.footprint(), client_before);
    assert_eq!(server.1.footprint(), server_before);
    assert!(
        bytes < bytes_before + SLACK,
        "{bytes_before} bytes after {WARM_UP} cycles, {bytes} after {cycles}"
    );
    let (first, last) = (times[0], times[times.len() - 1]);
    assert_eq!(first, last, "the virtual time that a connection takes");
}
