//! Two-sided messages: SEND and RECV between two devices of this process.
use everywire::prelude::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Side {
    cq: Cq,
    mr: MemoryRegion,
    qp: Qp,
}

impl Side {
    fn new(device: &Device) -> Result<Side> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let mr = pd.register(64, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
        qp.to_init(Access::LOCAL_WRITE)?;
        qp.post_recv(RecvWr::new(0, [mr.sge(..)]))?;
        Ok(Side { cq, mr, qp })
    }

    async fn receive(&self) -> Result<String> {
        let mut done = Vec::new();
        while !done.iter().any(|c: &Completion| c.wr_id == 0) {
            self.cq.wait(&mut done, 16).await?;
        }
        let received = &done[done.len() - 1];
        let text = self.mr.read_vec(0, received.byte_len as usize)?;
        self.qp.post_recv(RecvWr::new(0, [self.mr.sge(..)]))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn send(&self, text: &str) -> Result<()> {
        Ok(self.qp.post_send(SendWr::new(1, SendOp::Send).with_inline(text.as_bytes()).unsignaled())?)
    }
}

fn main() -> Result<()> {
    let (a, b) = (
        Host::open("rocev2:127.0.0.83", &OpenOptions::default())?,
        Host::open("rocev2:127.0.0.84", &OpenOptions::default())?,
    );
    let (server, client) = (Side::new(a.device())?, Side::new(b.device())?);
    block_on(async {
        let listener = a.device().listen("127.0.0.83:7471".parse()?, ListenOptions::default())?;
        let connecting = b.device().connect(ConnectOptions::new(listener.local_addr(), &client.qp));
        let accepting = listener.next_request().await?.accept(&server.qp, ConnParam::default());
        let connection = connecting.await?;
        let _serving = accepting.await?; // dropping it would disconnect
        for turn in 0..3 {
            client.send(&format!("ping {turn}"))?;
            let heard = server.receive().await?;
            server.send(&heard.replace("ping", "pong"))?;
            println!("{heard} -> {}", client.receive().await?);
        }
        connection.disconnect().await;
        Ok(())
    })
}
