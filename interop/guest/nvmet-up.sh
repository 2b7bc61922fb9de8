# nvmet-up.sh ADDRESS: Linux's own NVMe target on ADDRESS:4420, subsystem nqn.2026-01.lab:disk on a 128 MiB RAM disk.
set -e
modprobe brd rd_nr=1 rd_size=131072
modprobe -a nvmet nvmet_rdma
config=/sys/kernel/config/nvmet
disk=$config/subsystems/nqn.2026-01.lab:disk
mkdir "$disk"
echo 1 >"$disk/attr_allow_any_host"
echo LAB01 >"$disk/attr_serial"
mkdir "$disk/namespaces/1"
echo -n /dev/ram0 >"$disk/namespaces/1/device_path"
echo 1 >"$disk/namespaces/1/enable"
bash "${0%/*}/nvmet-port.sh" up "$1"
