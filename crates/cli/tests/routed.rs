//! A routed hop between two hosts: RoCE v2 and iWARP cross it, RoCE v1 is told why it can't (IBTA annex A16: it stays in one
//! broadcast domain). Three network namespaces; without CAP_NET_ADMIN it says so and passes.

mod common;

use common::netns::Namespaces;
use common::{Server, run_command};

#[test]
fn rocev2_and_iwarp_cross_a_router() {
    let Some(net) = Namespaces::routed("x") else { return };
    for wire in ["rocev2", "iwarp"] {
        for [near, far] in [["10.97.1.1", "10.97.2.1"], ["fd00:97:1::1", "fd00:97:2::1"]] {
            let listen = ["ping", "--listen", "--device", &format!("{wire}:{far}")];
            let _server = Server::start_command(net.everywire(2, &listen), "listening on");
            let device = format!("{wire}:{near}");
            let args = ["ping", far, "--device", &device, "-C", "4", "-S", "9000", "--json"];
            let said = run_command(net.everywire(0, &args), Vec::new()).expect(0).json();
            assert_eq!(
                (&said["turns"], &said["verified"]),
                (&4.into(), &true.into()),
                "{wire} {far}: {said}"
            );
        }
    }
}

#[test]
fn rocev1_says_why_it_does_not_cross() {
    let Some(net) = Namespaces::routed("y") else { return };
    for [near, far] in [["10.97.1.1", "10.97.2.1"], ["fd00:97:1::1", "fd00:97:2::1"]] {
        let listen = ["ping", "--listen", "--device", &format!("rocev1:eth0/{far}")];
        let _server = Server::start_command(net.everywire(2, &listen), "listening on");
        let device = format!("rocev1:eth0/{near}");
        let args = ["ping", far, "--device", &device, "-C", "1"];
        let refused = run_command(net.everywire(0, &args), Vec::new()).expect(3);
        assert!(refused.stderr.contains("RoCE v1") && refused.stderr.contains(far), "{}", refused.stderr);
        assert!(refused.stderr.contains("router"), "{}", refused.stderr);
    }
}
