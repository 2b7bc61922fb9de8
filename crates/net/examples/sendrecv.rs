//! One process, two devices: connects by CM and sends a message.
//! `cargo run -p everywire-net --example sendrecv [ADDRESS ADDRESS]`

use everywire_net::{Host, OpenOptions, block_on};
use everywire_verbs::{
    Access, ConnParam, ConnectOptions, ListenOptions, QpInit, QpType, RecvWr, SendOp, SendWr,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut open = |default: &str| {
        let address = args.next().unwrap_or_else(|| default.to_owned());
        Host::open(&format!("rocev2:{address}"), &OpenOptions::default())
    };
    let (server, client) = (open("127.0.0.1")?, open("127.0.0.2")?);
    server.spawn_thread()?;
    client.spawn_thread()?;

    let accepting = std::thread::spawn(move || {
        let device = server.device();
        let listener =
            device.listen((device.gids()[0].ip, 7471).into(), ListenOptions::default()).expect("listen");
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(16).expect("a completion queue");
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).expect("a queue pair");
        let mr = pd.register(4096, Access::LOCAL_WRITE).expect("memory");
        qp.to_init(Access::LOCAL_WRITE).expect("INIT");
        qp.post_recv(RecvWr::new(1, [mr.sge(..)])).expect("a receive");
        block_on(async {
            let request = listener.next_request().await.expect("a request");
            println!("{} asks to connect", request.peer());
            let connection = request.accept(&qp, ConnParam::default()).await.expect("a connection");
            let mut done = Vec::new();
            cq.wait(&mut done, 1).await.expect("a completion");
            let text = mr.read_vec(0, done[0].byte_len as usize).expect("the bytes");
            println!("received {:?}", String::from_utf8_lossy(&text));
            connection.closed().await;
        });
    });

    std::thread::sleep(std::time::Duration::from_millis(50));
    let device = client.device();
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16)?;
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1".to_owned());
    block_on(async {
        let dst = (server.parse::<std::net::IpAddr>()?, 7471).into();
        let connection = device.connect(ConnectOptions::new(dst, &qp)).await?;
        qp.post_send(SendWr::new(1, SendOp::Send).with_inline(b"over any wire".to_vec()))?;
        let mut done = Vec::new();
        cq.wait(&mut done, 1).await?;
        println!("sent: {}", done[0].status.as_str());
        connection.disconnect().await;
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    accepting.join().map_err(|_| "the server panicked")?;
    Ok(())
}
