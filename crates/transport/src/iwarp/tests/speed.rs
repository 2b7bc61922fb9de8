//! What a small message costs in the queue pairs alone, in memory: no socket, no driver, no locks.
//!
//! `cargo test -p everywire-transport --release iwarp::tests::speed -- --ignored --nocapture`

use super::*;

/// A ping-pong of SENDs of 64 bytes: every message is posted, made an FPDU with CRC, told written, taken in and completed.
#[test]
#[ignore = "a measurement"]
fn ping_pong_in_memory() {
    const ROUNDS: u32 = 200_000;
    let mut bench = Bench::new(Setup::default());
    let (now, mut burst, mut bytes) = (bench.now, StreamBurst::new(), Vec::new());
    let mut spent = [std::time::Duration::ZERO; 4];
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let (from, to) = ((round % 2) as usize, (1 - round % 2) as usize);
        let start = Instant::now();
        bench.nodes[to].recv(1, 0, 64);
        let node = &mut bench.nodes[from];
        let sge = node.sge(0, 64);
        node.send(SendWr::new(2, SendOp::Send).with_sges([sge]));
        let posted = Instant::now();
        assert!(node.qp.poll_transmit(&mut node.env, now, &mut burst));
        let built = Instant::now();
        bytes.clear();
        burst.copy_to(0, &mut bytes);
        bench.deliver(to, &bytes);
        let taken = Instant::now();
        bench.event(from, StreamEvent::Written(bytes.len()));
        bench.nodes[from].env.sends.clear();
        bench.nodes[to].env.recvs.clear();
        let done = Instant::now();
        for (sum, part) in spent.iter_mut().zip([posted - start, built - posted, taken - built, done - taken])
        {
            *sum += part;
        }
    }
    let each = |total: std::time::Duration| total.as_nanos() / u128::from(ROUNDS);
    let [post, build, take, complete] = spent.map(each);
    println!(
        "a message: {} ns; post {post}, build {build}, take {take}, complete {complete}",
        each(begun.elapsed())
    );
}

/// The CRC of such a message, and of a long segment.
#[test]
#[ignore = "a measurement"]
fn crc_of_a_message() {
    for len in [20, 84, 1460, 16 * 1024] {
        let bytes = pattern(len, 1);
        let rounds = 20_000_000 / (len as u32 + 100);
        let begun = Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(crc32c(std::hint::black_box(&bytes)));
        }
        println!("CRC of {len} bytes: {} ns", begun.elapsed().as_nanos() / u128::from(rounds));
    }
}
