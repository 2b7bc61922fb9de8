# srpt-up.sh INITIATOR: Linux's own SRP target on port 5555, a 128 MiB RAM disk as LUN 0. Prints id_ext:ioc_guid. The ACL is by
# the target's own address too: 6.1's ib_srpt looks there for logins by RDMA/CM.
set -e
modprobe brd rd_nr=1 rd_size=131072
mkdir -p /etc/target
modprobe -a target_core_mod target_core_iblock ib_srpt
guid=$(tr -d : </sys/class/infiniband/rxe0/node_guid)
target=/sys/kernel/config/target
mkdir -p "$target/core/iblock_1/disk"
echo udev_path=/dev/ram0 >"$target/core/iblock_1/disk/control"
echo LABSRP1 >"$target/core/iblock_1/disk/wwn/vpd_unit_serial"
echo 1 >"$target/core/iblock_1/disk/enable"
mkdir -p "$target/srpt"
echo 5555 >"$target/srpt/discovery_auth/rdma_cm_port"
port=$target/srpt/$(cat /sys/class/infiniband/rxe0/node_guid)
mkdir -p "$port/$(cat /sys/class/infiniband/rxe0/node_guid)"
port=$port/$(cat /sys/class/infiniband/rxe0/node_guid)
mkdir "$port/lun/lun_0"
ln -s "$target/core/iblock_1/disk" "$port/lun/lun_0/disk"
for address; do
  mkdir -p "$port/acls/$address/lun_0"
  ln -s "$port/lun/lun_0" "$port/acls/$address/lun_0/disk"
done
echo 1 >"$port/enable"
echo "$guid:$guid"
