//! NVMe over Fabrics, both ends: a target with a RAM namespace, and an initiator that writes and reads a block.
use everywire::block::parse_spec;
use everywire::nvme::rdma::{
    Controller, HostIdentity, InitiatorOptions, NvmeTarget, TargetOptions, discover,
};
use everywire::nvme::target::{Limits, NamespaceConfig, SubsystemConfig, Target};
use everywire::nvme::{Nqn, Uuid};
use everywire::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = OpenOptions::default();
    let (a, b) = (Host::open("rocev2:127.0.0.87", &options)?, Host::open("rocev2:127.0.0.88", &options)?);
    let runtime = TokioRt::new()?;
    a.run(&runtime)?;
    b.run(&runtime)?;
    let rt = runtime.handle();
    runtime.block_on(async {
        let nqn: Nqn = "nqn.2026-11.org.example:disk".parse()?;
        let mut target = Target::new(Limits::default());
        let disk = NamespaceConfig::new(parse_spec("ram:64MiB")?);
        target.add_subsystem(&SubsystemConfig::new(nqn.clone()).namespace(disk))?;
        let target = NvmeTarget::new(rt.clone(), target, TargetOptions::default());
        let address = target.listen(a.device(), "127.0.0.87:4420".parse()?)?;

        let host = HostIdentity::from_uuid(Uuid::from_u128(1));
        for entry in discover(&rt, b.device(), address, &host).await? {
            println!("found {}", Nqn::from_field(&entry.subnqn)?);
        }
        let controller =
            Controller::connect(&rt, b.device(), address, &nqn, &host, InitiatorOptions::default()).await?;
        let disk = controller.namespace(1)?;
        println!("{} blocks of {} bytes", disk.info().blocks, disk.info().block_size);
        let block = vec![0x5a; disk.info().block_size as usize];
        disk.write(0, &block).await?;
        assert_eq!(disk.read(0, block.len()).await?, block);
        println!("one block written, read back and compared");
        controller.disconnect().await?;
        target.shutdown().await;
        Ok(())
    })
}
