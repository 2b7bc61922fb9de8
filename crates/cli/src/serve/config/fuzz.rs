//! Fuzz target of the configuration: any text is refused with a reason, or is a configuration that holds its own rules.

use everywire_fuzz::target;

use super::*;

fn files() -> Vec<Vec<u8>> {
    let whole = r#"devices = ["rocev2:127.0.0.1", "rocev2:[::1]"]
[nvme]
port = 4421
max_queue_entries = 64
max_io_queues = 4
in_capsule_data = 4096
[[nvme.subsystem]]
nqn = "nqn.2026-11.example:one"
serial = "S1"
model = "M"
hosts = ["nqn.2026-11.example:host"]
[[nvme.subsystem.namespace]]
backend = "ram:1MiB,bs=4096"
nsid = 3
uuid = "9b04fe4d-5424-49c3-8bce-82dcf6642f73"
[[nvme.subsystem.namespace]]
backend = "null:1GiB"
[[volume]]
name = "v"
backend = "ram:1MiB"
serial = "7"
[[srp.target]]
name = "disk"
id_ext = "1"
[[srp.target.access]]
initiators = ["1:2"]
luns = { 0 = 0 }
[[srp.target.lun]]
backend = "volume:v"
[iscsi]
portals = ["127.0.0.1", "[::1]:3261"]
[[iscsi.target]]
name = "iqn.2026-11.example:disk"
alias = "a disk"
[[iscsi.target.access]]
initiators = ["iqn.2026-11.example:host"]
addresses = ["192.0.2.0/24"]
luns = { 0 = 3 }
[[iscsi.target.lun]]
backend = "ram:1MiB"
lun = 3
serial = "0001"
removable = true
"#;
    let least = "[[nvme.subsystem]]\nnqn=\"nqn.2026-11.example:a\"\n[[nvme.subsystem.namespace]]\nbackend=\"ram:1MiB\"\n";
    vec![whole.into(), least.into(), b"[nvme]\nport = 1\n".to_vec()]
}

target!(serve_config, files(), |bytes| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match parse(text, "fuzz").and_then(|file| Config::of(file, "fuzz", &Flags::default())) {
            Ok(config) => {
                assert_eq!(config.check(), Ok(()));
                assert!(
                    !(config.devices.is_empty() && config.iscsi.targets.is_empty())
                        && config.devices.iter().all(|d| DeviceSpec::parse(d).is_ok())
                );
            }
            Err(error) => assert!(error.to_string().starts_with("fuzz: "), "{error}"),
        }
    }
});
