//! An idle device sleeps: under 1 % of a processor, with a thread or as a task, connected or not.
//!
//! In a file of its own, since the processor time of the whole process is measured.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use everywire_net::{Host, OpenOptions, TokioRt, block_on};
use everywire_verbs::{
    Access, ConnParam, ConnectOptions, Connection, Device, ListenOptions, Qp, QpInit, QpType, RecvWr, SendOp,
    SendWr,
};

const WATCH: Duration = Duration::from_secs(2);

fn loopback(n: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::V4(Ipv4Addr::new(127, 0x60 | (pid >> 8) as u8 & 0x1f, pid as u8, n))
}

fn open(n: u8) -> Host {
    Host::open(&format!("rocev2:{}", loopback(n)), &OpenOptions::default()).unwrap()
}

/// User and system time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn assert_idle(what: &str, wait: impl FnOnce()) {
    let before = processor_time();
    wait();
    let used = processor_time() - before;
    assert!(used < WATCH / 100, "{what}: {used:?} of processor time in {WATCH:?}");
}

async fn connect(server: &Device, client: &Device) -> Vec<(Qp, Connection)> {
    let listener = server.listen(SocketAddr::new(server.gids()[0].ip, 0), ListenOptions::default()).unwrap();
    let qp = |device: &Device| {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(16).unwrap();
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
        let mr = pd.register(4096, Access::LOCAL_WRITE).unwrap();
        qp.to_init(Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvWr::new(1, [mr.sge(..)])).unwrap();
        (qp, cq, mr)
    };
    let ((s, s_cq, _s_mr), (c, c_cq, _c_mr)) = (qp(server), qp(client));
    let mut connecting = std::pin::pin!(client.connect(ConnectOptions::new(listener.local_addr(), &c)));
    let accepted = async { listener.next_request().await.unwrap().accept(&s, ConnParam::default()).await };
    let mut accepted = std::pin::pin!(accepted);
    let (mut ours, mut theirs) = (None, None);
    std::future::poll_fn(|cx| {
        if ours.is_none()
            && let std::task::Poll::Ready(done) = connecting.as_mut().poll(cx)
        {
            ours = Some(done.unwrap());
        }
        if theirs.is_none()
            && let std::task::Poll::Ready(done) = accepted.as_mut().poll(cx)
        {
            theirs = Some(done.unwrap());
        }
        if ours.is_some() && theirs.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    // Something crosses, so that everything that traffic sets in motion has been.
    c.post_send(SendWr::new(2, SendOp::Send).with_inline(b"hello".to_vec())).unwrap();
    let mut done = Vec::new();
    s_cq.wait(&mut done, 1).await.unwrap();
    c_cq.wait(&mut done, 1).await.unwrap();
    vec![(s.clone(), theirs.unwrap()), (c.clone(), ours.unwrap())]
}

#[test]
fn idle_devices_sleep() {
    let (a, b) = (open(1), open(2));
    a.spawn_thread().unwrap();
    b.spawn_thread().unwrap();
    let connected = block_on(connect(a.device(), b.device()));
    std::thread::sleep(Duration::from_millis(200));
    assert_idle("threads", || std::thread::sleep(WATCH));
    drop(connected);

    let (a, b) = (open(3), open(4));
    let runtime = TokioRt::new().unwrap();
    a.run(&runtime).unwrap();
    b.run(&runtime).unwrap();
    let rt = runtime.handle();
    let connected = runtime.block_on(connect(a.device(), b.device()));
    runtime.block_on(rt.sleep(Duration::from_millis(200)));
    assert_idle("tasks", || runtime.block_on(rt.sleep(WATCH)));
    drop(connected);

    let (a, b) = (open(5), open(6));
    let connected = block_on(connect(a.device(), b.device()));
    let nap = std::thread::spawn(|| std::thread::sleep(WATCH));
    assert_idle("inline", || {
        let waker_thread = async {
            let (tx, rx) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || {
                let _ = nap.join();
                let _ = tx.send(());
            });
            let _ = rx.await;
        };
        block_on(waker_thread);
    });
    drop(connected);
}
