//! What a configuration may say, and what is said of mistakes in it.

use super::*;

/// Every mistake is named with its line and with what would be right.
#[test]
fn values_that_cannot_be_are_refused_with_line_and_limit() {
    let nil = "nsid = 3\nuuid = \"00000000-0000-0000-0000-000000000000\"";
    let (serial, model) = ("serial = \"\"", format!("model = \"{}\"", "m".repeat(41)));
    let accent = "model = \"caf\u{e9}\"";
    for (what, with, line, words) in [
        ("hosts =", &*format!("{serial}\nhosts ="), 7, "1 to 20 printable ASCII"),
        ("hosts =", &format!("serial = \"{}\"\nhosts =", "s".repeat(21)), 7, "21 characters"),
        ("hosts =", &format!("{model}\nhosts ="), 7, "1 to 40 printable ASCII"),
        ("hosts =", &format!("{accent}\nhosts ="), 7, "1 to 40 printable ASCII"),
        ("[\"nqn.2026-11.example:host\"]", "[]", 7, "leave `hosts` out"),
        ("nsid = 3", nil, 11, "nil UUID"),
        ("nsid = 3", "nsid = -1", 10, "-1 is not in 1 to 1024"),
        ("port = 4421", "port = 65536", 4, "65536 is not in 1 to 65535"),
        ("port = 4421", "max_queue_entries = 70000", 4, "70000 is not in 32 to 16384"),
        ("port = 4421", "max_io_queues = 65536", 4, "65536 is not in 1 to 65535"),
        ("port = 4421", "in_capsule_data = 5000000000", 4, "not in 0 to 65536"),
    ] {
        let error = from(&GOOD.replace(what, with)).unwrap_err();
        assert!(error.contains(&format!("line {line}")) && error.contains(words), "{with}: {error}");
    }
}

#[test]
fn what_two_namespaces_or_options_cannot_share() {
    let uuid = "uuid = \"9b04fe4d-5424-49c3-8bce-82dcf6642f73\"";
    let second = format!("{uuid}\n[[nvme.subsystem.namespace]]\nbackend = \"ram:1MiB\"\n{uuid}");
    let error = from(&GOOD.replace("nsid = 3", &second)).unwrap_err();
    assert!(error.contains("two namespaces") && error.contains("9b04fe4d"), "{error}");
    let error = from(&GOOD.replace("ram:1MiB", "ram:1MiB,bs=4096,bs=512")).unwrap_err();
    assert!(error.contains("`bs` is given twice"), "{error}");
    let error = from(&GOOD.replace("ram:1MiB", "file:/tmp")).unwrap_err();
    assert!(error.contains("/tmp is a directory"), "{error}");
}

/// NVMe Base 2.0 §3.2.1.2: identifiers start at 1; those that are left out are the lowest free ones, in order.
#[test]
fn a_namespace_left_without_a_number_has_the_lowest_free_one() {
    let more = "nsid = 2\n[[nvme.subsystem.namespace]]\nbackend = \"ram:1MiB\"\n\
        [[nvme.subsystem.namespace]]\nbackend = \"ram:1MiB\"\n";
    let config = from(&GOOD.replace("nsid = 3", more)).unwrap();
    let given: Vec<_> = config.subsystems[0].namespaces.iter().map(|n| n.nsid).collect();
    assert_eq!(given, [Some(2), Some(1), Some(3)]);
}

fn from(text: &str) -> Result<Config, String> {
    let dir = std::env::temp_dir().join(format!(
        "everywire-config-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("t.toml");
    std::fs::write(&path, text).unwrap();
    let result = Config::resolve(Some(&path), &Flags::default()).map_err(|e| e.to_string());
    std::fs::remove_dir_all(&dir).unwrap();
    result
}

const GOOD: &str = r#"
devices = ["rocev2:127.0.0.1"]
[nvme]
port = 4421
[[nvme.subsystem]]
nqn = "nqn.2026-11.example:one"
hosts = ["nqn.2026-11.example:host"]
[[nvme.subsystem.namespace]]
backend = "ram:1MiB"
nsid = 3
"#;

#[test]
fn a_whole_file() {
    let config = from(GOOD).unwrap();
    assert_eq!((config.nvme_port, config.devices.len()), (4421, 1));
    assert_eq!(config.subsystems[0].namespaces[0].nsid, Some(3));
    assert_eq!(config.subsystems[0].hosts.as_ref().unwrap().len(), 1);
}

#[test]
fn a_typo_is_named_with_its_line() {
    let error = from(&GOOD.replace("backend =", "bakend =")).unwrap_err();
    assert!(error.contains("line 9") && error.contains("bakend") && error.contains("backend"), "{error}");
}

#[test]
fn parts_refuse_what_is_theirs() {
    for (what, with, word) in [
        ("nqn.2026-11.example:one", "one", "one"),
        ("ram:1MiB", "rom:1MiB", "ram:SIZE"),
        ("rocev2:127.0.0.1", "127.0.0.1", "rocev2:127.0.0.1"),
    ] {
        let error = from(&GOOD.replace(what, with)).unwrap_err();
        assert!(error.contains(word), "{with}: {error}");
    }
}

#[test]
fn flags_alone_are_enough() {
    let exports = ["nqn.2026-11.example:a=ram:1MiB".to_owned(), "nqn.2026-11.example:a=null:1GiB".to_owned()];
    let config = Config::resolve(None, &Flags { exports: &exports, ..Flags::default() }).unwrap();
    assert_eq!(config.subsystems.len(), 1);
    assert_eq!(config.subsystems[0].namespaces.len(), 2);
    assert_eq!(config.devices, [DEFAULT_DEVICE]);
}

#[test]
fn nothing_to_serve_is_a_mistake() {
    assert!(Config::resolve(None, &Flags::default()).unwrap_err().to_string().contains("nothing to serve"));
}

#[test]
fn what_the_target_would_refuse_is_found_before() {
    for (what, with, word) in [
        ("nsid = 3", "nsid = 0", "namespace identifier 0"),
        ("port = 4421", "port = 0", "port"),
        ("port = 4421", "in_capsule_data = 100", "multiple of 16"),
        ("port = 4421", "max_io_queues = 0", "at least one"),
        ("port = 4421", "max_queue_entries = 31", "at least 32"),
        (
            "port = 4421",
            "max_queue_entries = 20000",
            "20000 is more than a queue of a device has work requests, 16384",
        ),
        ("ram:1MiB", "file:/nonexistent/disk", "/nonexistent/disk does not exist"),
        ("nqn.2026-11.example:one", "nqn.2014-08.org.nvmexpress.discovery", "discovery"),
    ] {
        let error = from(&GOOD.replace(what, with)).unwrap_err();
        assert!(error.contains(word), "{with}: {error}");
    }
}

#[test]
fn devices_that_clash_are_named() {
    let exports = ["nqn.2026-11.example:a=ram:1MiB".to_owned()];
    let with = |devices: [&str; 2]| {
        let devices = devices.map(str::to_owned);
        let flags = Flags { devices: &devices, exports: &exports, ..Flags::default() };
        Config::resolve(None, &flags).map_err(|error| error.to_string())
    };
    let error = with(["rocev1:lo/127.0.0.1", "rocev2-raw:lo/127.0.0.1"]).unwrap_err();
    assert!(error.contains("rocev1:lo/127.0.0.1 and rocev2-raw:lo/127.0.0.1"), "{error}");
    assert!(with(["rocev2:127.0.0.1", "rocev2:[::1]"]).is_ok());
    assert!(with(["rocev2:127.0.0.1", "iwarp:127.0.0.1"]).is_ok(), "UDP and TCP ports are apart");
}

/// One volume for everybody, and the mistakes with it.
#[test]
fn volumes_are_named_once_and_used() {
    let whole = r#"
[[volume]]
name = "disk"
backend = "ram:1MiB"
[[nvme.subsystem]]
nqn = "nqn.2026-11.example:one"
[[nvme.subsystem.namespace]]
backend = "volume:disk"
[[iscsi.target]]
name = "iqn.2026-11.example:one"
[[iscsi.target.lun]]
backend = "volume:disk"
[[srp.target]]
name = "one"
[[srp.target.lun]]
backend = "volume:disk"
"#;
    let config = from(whole).unwrap();
    assert_eq!((config.volumes.len(), config.backends().count()), (1, 1));
    let second = "[[volume]]\nname = \"disk\"\nbackend = \"ram:1MiB\"\n[[nvme";
    for (what, with, words) in [
        ("name = \"disk\"", "name = \"\"", "1 to 64 bytes"),
        ("[[nvme", second, "described twice"),
        ("name = \"disk\"", "name = \"other\"", "volume other is served by nobody"),
        ("[[srp.target.lun]]\n", "[[srp.target.lun]]\nremovable = true\n", "are the volume's"),
        ("ram:1MiB\"\n", "ram:1MiB\"\nserial = \"0123456789abc\"\n", "1 to 12 characters"),
        ("ram:1MiB", "volume:disk", "ram:SIZE"),
    ] {
        let error = from(&whole.replacen(what, with, 1)).unwrap_err();
        assert!(error.contains(words), "{with}: {error}");
    }
    let error =
        from(&whole.replace("[[volume]]\nname = \"disk\"\nbackend = \"ram:1MiB\"\n", "")).unwrap_err();
    assert!(error.contains("there is no volume disk"), "{error}");
}

#[test]
fn rules_name_what_is_there() {
    let whole = r#"
[[iscsi.target]]
name = "iqn.2026-11.example:one"
[[iscsi.target.access]]
initiators = ["iqn.2026-11.example:host"]
addresses = ["192.0.2.0/24"]
luns = { 0 = 3 }
[[iscsi.target.lun]]
backend = "ram:1MiB"
lun = 3
[[srp.target]]
name = "one"
[[srp.target.access]]
initiators = ["1:2"]
[[srp.target.lun]]
backend = "ram:1MiB"
"#;
    let config = from(whole).unwrap();
    let rule = &config.iscsi.targets[0].access[0];
    assert_eq!((rule.luns.as_ref().unwrap()[&0], rule.addresses.len(), rule.deny), (3, 1, false));
    assert_eq!(config.srp.targets[0].initiators.as_ref().unwrap().len(), 1);
    for (what, with, words) in [
        ("0 = 3", "0 = 4", "there is no LUN 4"),
        ("0 = 3", "x = 3", "0 to 16383"),
        ("{ 0 = 3 }", "{}", "without any"),
        ("192.0.2.0/24", "192.0.2.0/33", "prefix of 0 to 32"),
        ("initiators = [\"1:2\"]", "initiators = []", "no initiator is named"),
        ("initiators = [\"1:2\"]", "initiators = [\"1:2\"]\ndeny = true", "those not named are denied"),
        ("initiators = [\"1:2\"]", "initiators = [\"1:2\", \"1:2\"]", "named twice"),
        ("name = \"one\"\n", "name = \"one\"\ninitiators = [\"1:2\"]\n", "give one"),
        (
            "one\"\n",
            "one\"\nchap = [{ name = \"u\", secret_file = \"/nonexistent/s\" }]\n",
            "cannot read /nonexistent/s",
        ),
        (
            "one\"\n",
            "one\"\nchap_target = { name = \"u\", secret_file = \"/nonexistent/s\" }\n",
            "give `chap` too",
        ),
    ] {
        let error = from(&whole.replacen(what, with, 1)).unwrap_err();
        assert!(error.contains(words), "{with}: {error}");
    }
}

/// iSCSI that is told no portal goes over RDMA; one that is told a portal needs no device.
#[test]
fn iscsi_listens_somewhere() {
    let (exports, tcp) = (["iqn.2026-11.example:a=ram:1MiB".to_owned()], ["127.0.0.1".to_owned()]);
    let with = |tcp: &[String]| {
        let flags = Flags { iscsi: &exports, tcp, ..Flags::default() };
        Config::resolve(None, &flags).map_err(|e| e.to_string()).unwrap().devices
    };
    assert_eq!(with(&[]), [DEFAULT_DEVICE]);
    assert!(with(&tcp).is_empty());
}
