//! What the tools of Debian 12 printed of a small subnet, and what it says.

use super::*;

const DISCOVERED: &str = r#"#
# Initiated from node 0000000000100003 port 0000000000100004

vendid=0x0
switchguid=0x200000(200000)
Switch	8 "S-0000000000200000"		# "Switch1" base port 0 lid 2 lmc 0
[1]	"H-0000000000100000"[1](100001) 		# "Hca1" lid 1 4xSDR
[3]	"S-0000000000200001"[3]		# "Switch2" lid 3 4xSDR

switchguid=0x200001(200001)
Switch	8 "S-0000000000200001"		# "Switch2" base port 0 lid 3 lmc 0
[3]	"S-0000000000200000"[3]		# "Switch1" lid 2 4xSDR

caguid=0x100000
Ca	2 "H-0000000000100000"		# "Hca1"
[1](100001) 	"S-0000000000200000"[1]		# lid 1 lmc 0 "Switch1" lid 2 4xSDR
"#;

#[test]
fn ibnetdiscover_is_read() {
    let subnet = netdiscover(DISCOVERED).unwrap();
    let node = |guid, switch, name: &str| Node { guid, switch, name: name.into() };
    let nodes =
        [node(0x10_0000, false, "Hca1"), node(0x20_0000, true, "Switch1"), node(0x20_0001, true, "Switch2")];
    assert_eq!(subnet.nodes, nodes.into());
    let cables = [((0x10_0000, 1), (0x20_0000, 1)), ((0x20_0000, 3), (0x20_0001, 3))];
    assert_eq!(subnet.cables, cables.into());
    assert_eq!(subnet.lids, [((0x10_0000, 1), 1), ((0x20_0000, 0), 2), ((0x20_0001, 0), 3)].into());
    assert!(netdiscover("[1]\t\"H-0000000000100000\"[1](100001)").is_err());
}

const LINKS: &str = r#"0x0000000000100001 "                          Hca1"      1    1[  ] ==( 4X           2.5 Gbps Active/  LinkUp)==>  0x0000000000200000      2    1[  ] "Switch1" (Could be 12X Could be 10.0 Gbps)
0x0000000000200000 "                       Switch1"      2    1[  ] ==( 4X           2.5 Gbps Active/  LinkUp)==>  0x0000000000100001      1    1[  ] "Hca1" (Could be 12X Could be 10.0 Gbps)
0x0000000000200000 "                       Switch1"      2    4[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"#;

#[test]
fn iblinkinfo_is_read() {
    let host = Seen { guid: 0x10_0001, lid: 1, port: 1 };
    let switch = Seen { guid: 0x20_0000, lid: 2, port: 1 };
    assert_eq!(linkinfo(LINKS).unwrap(), [(host, switch)].into());
}

#[test]
fn ibhosts_is_read() {
    let text = "Ca\t: 0x0000000000100006 ports 2 \"Hca3\"\nCa\t: 0x0000000000100000 ports 2 \"Hca1\"\n";
    assert_eq!(hosts(text).unwrap(), [(0x10_0006, "Hca3".into()), (0x10_0000, "Hca1".into())].into());
}

#[test]
fn dump_fts_is_read() {
    let text = "Unicast lids [0x0-0x6] of switch DR path slid 0; dlid 0; 0,1,3 guid 0x0000000000200000 (Switch1):\n  \
                Lid  Out   Destination\n       Port     Info \n\
                0x0001 001 : (Channel Adapter portguid 0x0000000000100001: 'Hca1')\n\
                0x0002 000 : (Switch portguid 0x0000000000200000: 'Switch1')\n2 valid lids dumped \n";
    assert_eq!(tables(text).unwrap(), [(0x20_0000, [(1, 1), (2, 0)].into())].into());
}

#[test]
fn ibtracert_is_counted() {
    let text = "From ca {0x0000000000100000} portnum 1 lid 1-1 \"Hca1\"\n\
                [1] -> switch port {0x0000000000200000}[1] lid 2-2 \"Switch1\"\n\
                [5] -> switch port {0x0000000000200001}[5] lid 3-3 \"Switch2\"\n\
                [2] -> ca port {0x000000000010000a}[1] lid 6-6 \"Hca4\"\n\
                To ca {0x0000000000100009} portnum 1 lid 6-6 \"Hca4\"\n";
    assert_eq!(hops(text), 3);
}

#[test]
fn fields_of_every_tool() {
    assert_eq!(
        field("# Node info: Lid 1\nGuid:............................0x0000000000100000\n", "Guid"),
        Some("0x0000000000100000")
    );
    assert_eq!(field("NodeRecord dump:\n\t\tlid.....................5\n", "lid"), Some("5"));
    assert_eq!(field("Lid:.............................5\n\t\tLidX....1", "Lid"), Some("5"));
    assert_eq!(field("Node Description:............................Hca1", "Node Description"), Some("Hca1"));
    assert_eq!(field("LinkState:.......................Active\n", "Link"), None);
}
