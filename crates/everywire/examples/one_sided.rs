//! One-sided operations: the client writes into the server's memory and reads it back; the server's program does nothing.
use everywire::prelude::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn queue_pair(device: &Device, access: Access) -> Result<(Cq, MemoryRegion, Qp)> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let mr = pd.register(1 << 20, access)?;
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq))?;
    qp.to_init(access)?;
    Ok((cq, mr, qp))
}

async fn run(cq: &Cq, qp: &Qp, wr: SendWr) -> Result<()> {
    qp.post_send(wr)?;
    let mut done = Vec::new();
    cq.wait(&mut done, 1).await?;
    if done[0].status != WcStatus::Success {
        return Err(done[0].status.as_str().into());
    }
    Ok(())
}

fn main() -> Result<()> {
    let (a, b) = (
        Host::open("rocev2:127.0.0.85", &OpenOptions::default())?,
        Host::open("rocev2:127.0.0.86", &OpenOptions::default())?,
    );
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (_, exported, server) = queue_pair(a.device(), all)?;
    let (cq, mr, client) = queue_pair(b.device(), Access::LOCAL_WRITE)?;
    block_on(async {
        let listener = a.device().listen("127.0.0.85:7471".parse()?, ListenOptions::default())?;
        let connecting = b.device().connect(ConnectOptions::new(listener.local_addr(), &client));
        // Where the memory is travels as private data: address and R_Key.
        let Remote { addr, rkey } = exported.remote(0);
        let where_it_is = [addr.to_be_bytes().as_slice(), &rkey.0.to_be_bytes()].concat();
        let param = ConnParam::with_private_data(where_it_is);
        let accepting = listener.next_request().await?.accept(&server, param);
        let connection = connecting.await?;
        let _serving = accepting.await?; // dropping it would disconnect

        let told = connection.private_data();
        let remote = Remote {
            addr: u64::from_be_bytes(told[..8].try_into()?),
            rkey: RKey(u32::from_be_bytes(told[8..12].try_into()?)),
        };
        mr.write_at(0, b"written from afar")?;
        run(&cq, &client, SendWr::new(1, SendOp::Write { remote }).with_sges([mr.sge(..17)])).await?;
        println!("server's memory: {}", String::from_utf8_lossy(&exported.read_vec(0, 17)?));
        run(&cq, &client, SendWr::new(2, SendOp::Read { remote }).with_sges([mr.sge(100..117)])).await?;
        println!("read back:       {}", String::from_utf8_lossy(&mr.read_vec(100, 17)?));
        connection.disconnect().await;
        Ok(())
    })
}
