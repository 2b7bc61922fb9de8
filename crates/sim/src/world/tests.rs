//! A world by itself: time, kill and restart, capture. What devices do to each other is the workload's affair.

use std::sync::{Arc, Mutex};

use super::*;

fn two_hosts(seed: u64) -> (World, HostId, HostId) {
    let world = World::new(seed);
    let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| world.add_host(HostConfig::new(ip.parse().unwrap())));
    (world, a, b)
}

#[test]
fn time_passes_only_in_the_world() {
    let (world, a, _) = two_hosts(1);
    let rt = world.rt(a);
    let started = Instant::now();
    let slept = world.block_on(Duration::from_secs(100_000), async move {
        rt.sleep(Duration::from_secs(86_400)).await;
        rt.now()
    });
    assert_eq!(slept.unwrap(), world.now());
    assert_eq!(world.elapsed(), Duration::from_secs(86_400));
    assert!(started.elapsed() < Duration::from_secs(10));
    world.run_for(Duration::from_nanos(7));
    assert_eq!(world.elapsed().subsec_nanos(), 7);
}

#[test]
fn a_future_that_waits_for_nothing_is_told_apart_from_one_that_is_late() {
    let (world, a, _) = two_hosts(1);
    let never = world.block_on(Duration::from_secs(5), std::future::pending::<()>());
    assert!(matches!(never, Err(Stalled::Idle { .. })));
    let rt = world.rt(a);
    let late = world.block_on(Duration::from_secs(5), async move { rt.sleep(Duration::from_secs(6)).await });
    assert_eq!(late, Err(Stalled::TimedOut { limit: Duration::from_secs(5) }));
}

#[test]
fn a_killed_host_takes_its_tasks_along_and_comes_back_as_another() {
    let (world, a, b) = two_hosts(1);
    let alive = Rc::new(());
    for host in [a, b] {
        let (rt, alive) = (world.rt(host), alive.clone());
        drop(world.rt(host).spawn(async move {
            let _alive = alive;
            rt.sleep(Duration::from_secs(1_000)).await;
        }));
    }
    world.run_for(Duration::from_secs(1));
    assert_eq!(Rc::strong_count(&alive), 3);
    let (before, entropy) = (world.device(a), world.rt(a).entropy());
    world.kill(a);
    assert!(!world.is_up(a));
    assert_eq!(Rc::strong_count(&alive), 2);
    world.restart(a);
    assert!(!world.device(a).same(&before));
    assert_ne!(world.rt(a).entropy(), entropy);
    world.run_for(Duration::from_secs(2_000));
    assert_eq!(Rc::strong_count(&alive), 1);
}

/// A sink whose content can be looked at afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_begins_with_a_section_header_and_names_its_hosts() {
    let (world, ..) = two_hosts(1);
    let sink = Shared::default();
    world.capture(Box::new(sink.clone())).unwrap();
    world.end_capture().unwrap();
    let bytes = sink.0.lock().unwrap();
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]); // the pcapng draft, §4.1
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("host-10.0.0.1") && text.contains("host-10.0.0.2"));
}
