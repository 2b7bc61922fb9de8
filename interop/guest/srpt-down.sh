# Takes down what srpt-up.sh made; the RAM disk keeps its bytes.
target=/sys/kernel/config/target
guid=$(cat /sys/class/infiniband/rxe0/node_guid)
port=$target/srpt/$guid/$guid
echo 0 >"$port/enable"
for acl in "$port"/acls/*; do rm -f "$acl"/lun_0/disk; rmdir "$acl/lun_0" "$acl"; done
rm "$port/lun/lun_0/disk"
rmdir "$port/lun/lun_0" "$port" "$target/srpt/$guid" "$target/core/iblock_1/disk" "$target/core/iblock_1"
echo 0 >"$target/srpt/discovery_auth/rdma_cm_port"
rmdir "$target/srpt"
modprobe -r ib_srpt
