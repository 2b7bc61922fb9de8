//! What `everywire serve` takes when it has hosts: processor time while they are idle, memory for each of them.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{Scratch, Server, device, ip};
use everywire_net::{Host, OpenOptions, TokioRt};
use everywire_nvmeof::rdma::{Controller, HostIdentity, InitiatorOptions};
use everywire_verbs::rt::Rt;

const NQN: &str = "nqn.2026-11.example:served";
/// Hosts, each with an admin queue and one I/O queue.
const HOSTS: usize = 32;
/// Queues of all hosts are connections.
const CONNECTIONS: usize = 2 * HOSTS;
const WATCH: Duration = Duration::from_secs(3);
/// A tick of the kernel's accounting: USER_HZ is 100 on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of a process: fields 14 and 15 of proc(5)'s stat.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server runs");
    let after_name = stat.rsplit_once(')').expect("a name in parentheses").1;
    let ticks = |field: usize| -> u32 {
        after_name.split_whitespace().nth(field - 3).and_then(|text| text.parse().ok()).expect("a number")
    };
    TICK * (ticks(14) + ticks(15))
}

/// Bytes of memory that a process has touched and still holds.
fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024
}

async fn connect(rt: &Rt, host: &Host, number: u128) -> Controller {
    let address: SocketAddr = format!("{}:4420", ip(1)).parse().expect("an address");
    let identity = HostIdentity::from_uuid(uuid::Uuid::from_u128(number));
    // Idle is without commands: 33 hosts' Keep Alives, twice in the time watched, are 40 ms of a debug build.
    let keep_alive = Some(Duration::from_secs(120));
    let options = InitiatorOptions { queue_entries: 128, keep_alive, ..InitiatorOptions::default() };
    let nqn = NQN.parse().expect("an NQN");
    Controller::connect(rt, host.device(), address, &nqn, &identity, options).await.expect("connects")
}

#[test]
fn idle_hosts_cost_no_processor_and_little_memory() {
    // Without in-capsule data the receive buffers, which are not to be counted, are next to nothing.
    let scratch = Scratch::new("served");
    let config = scratch.file("target.toml");
    std::fs::write(&config, "[nvme]\nin_capsule_data = 0\n").expect("a file");
    let export = format!("{NQN}=null:16MiB");
    let server = Server::start(&["serve", &config, "--device", &device(1), "--nvme", &export]);
    let runtime = TokioRt::new().expect("a runtime");
    let host = Host::open(&device(2), &OpenOptions::default()).expect("a device");
    host.run(&runtime).expect("a driver");
    let rt = runtime.handle();
    runtime.block_on(async {
        // The first one makes what all share.
        let first = connect(&rt, &host, 1).await;
        let before = resident(server.id());
        let mut more = Vec::new();
        for number in 0..HOSTS {
            more.push(connect(&rt, &host, 2 + number as u128).await);
        }
        let each = resident(server.id()).saturating_sub(before) / CONNECTIONS;
        assert!(each < 64 << 10, "{each} bytes a connection");
        rt.sleep(Duration::from_millis(500)).await;
        let start = processor_time(server.id());
        rt.sleep(WATCH).await;
        let used = processor_time(server.id()) - start;
        assert!(used <= WATCH / 100 + TICK, "{used:?} of processor time in {WATCH:?}");
        println!("{each} bytes a connection; {used:?} of processor time in {WATCH:?}");
        for controller in more.into_iter().chain([first]) {
            controller.disconnect().await.expect("in order");
        }
    });
}

/// What a host provokes does not become as many lines of log; and none is lost silently.
#[test]
fn the_log_of_refusals_is_bounded_and_adds_up() {
    const REFUSED: usize = 60;
    let server = Server::start(&["serve", "--device", &device(3), "--nvme", &format!("{NQN}=ram:1MiB")]);
    let runtime = TokioRt::new().expect("a runtime");
    let host = Host::open(&device(4), &OpenOptions::default()).expect("a device");
    host.run(&runtime).expect("a driver");
    let rt = runtime.handle();
    let address: SocketAddr = format!("{}:4420", ip(3)).parse().expect("an address");
    let nqn = "nqn.2026-11.example:nobody".parse().expect("an NQN");
    let seconds = runtime.block_on(async {
        let start = rt.now();
        for number in 0..REFUSED {
            let identity = HostIdentity::from_uuid(uuid::Uuid::from_u128(1 + number as u128));
            let options = InitiatorOptions::default();
            let refused = Controller::connect(&rt, host.device(), address, &nqn, &identity, options).await;
            assert!(refused.is_err());
        }
        // Until the last period has ended.
        let took = rt.now() - start;
        rt.sleep(Duration::from_millis(2500)).await;
        took.as_secs_f64()
    });
    let told = server.lines_with("Connect refused").len();
    let most = 10 * (seconds.ceil() as usize + 1);
    assert!(told <= most, "{told} lines in {seconds} s");
    let left_out: usize = server
        .lines_with("more like this left out")
        .iter()
        .filter_map(|line| line.split("4420: ").nth(1)?.split(' ').next()?.parse::<usize>().ok())
        .sum();
    assert_eq!(told + left_out, REFUSED, "told and left out");
}
