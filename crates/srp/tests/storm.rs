//! The target dies three times under two dozen initiators, which all log in again at once each time: no command fails, none is lost,
//! and every credit is back.

mod lab;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use everywire_srp::PortId;
use everywire_srp::rdma::{Initiator, InitiatorOptions};
use lab::{INITIATOR, LIMIT, Lab, options, write_and_read};

const INITIATORS: usize = 24;

#[test]
fn a_storm_of_logins() {
    let lab = Lab::new(11);
    let host = lab.host();
    let (sessions, done) = (Rc::new(RefCell::new(Vec::<Initiator>::new())), Rc::new(Cell::new(0)));
    let enough = Rc::new(Cell::new(false));
    for i in 0..INITIATORS as u64 {
        let (host, sessions, done, enough) = (host.clone(), sessions.clone(), done.clone(), enough.clone());
        lab.world.rt_outside().spawn(async move {
            let initiator = PortId::new(i, INITIATOR.guid);
            let channels = 1 + i as usize % 2;
            let io_timeout = Duration::from_secs(2);
            let options = InitiatorOptions { initiator, channels, io_timeout, ..options() };
            let session = host.connect(options).await;
            sessions.borrow_mut().push(session.clone());
            let disk = session.disk(0).await.expect("a disk");
            for round in 0.. {
                write_and_read(&disk, i * 65536, 8192, i * 1000 + round).await;
                host.rt.sleep(Duration::from_millis(100)).await;
                if enough.get() {
                    break;
                }
            }
            assert!(session.credits().iter().all(|&have| have == (128, 0)), "{:?}", session.credits());
            session.log_out().await;
            done.set(done.get() + 1);
        });
    }
    assert!(lab.world.run_until(LIMIT, || sessions.borrow().len() == INITIATORS));
    for storm in 1..=3 {
        lab.world.run_for(Duration::from_secs(2));
        lab.world.kill(lab.target_host);
        lab.target.borrow_mut().take();
        lab.world.run_for(Duration::from_secs(3));
        lab.world.restart(lab.target_host);
        lab.serve();
        let all_back = || sessions.borrow().iter().all(|session| session.reconnects() == storm);
        assert!(lab.world.run_until(LIMIT, all_back), "storm {storm}: {} channels", lab.target().channels());
    }
    enough.set(true);
    let all = || done.get() == INITIATORS;
    assert!(lab.world.run_until(LIMIT, all), "{} of {INITIATORS} are done", done.get());
    lab.world.run_for(Duration::from_secs(30));
    assert_eq!((lab.target().channels(), lab.target().data_in_use()), (0, 0));
}
