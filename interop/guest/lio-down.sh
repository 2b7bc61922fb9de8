# Takes down what lio-up.sh made; the RAM disk keeps its bytes.
target=/sys/kernel/config/target
group=$target/iscsi/iqn.2026-01.lab:disk/tpgt_1
echo 0 >"$group/enable"
for acl in "$group"/acls/*; do rm -f "$acl"/lun_0/disk; rmdir "$acl/lun_0" "$acl"; done
rm "$group/lun/lun_0/disk"
rmdir "$group"/np/* "$group/lun/lun_0" "$group" "${group%/*}"
echo 0 >"$target/iscsi/discovery_auth/enforce_discovery_auth"
rmdir "$target/iscsi" "$target/core/iblock_2/disk" "$target/core/iblock_2"
[ ! -e /sys/module/ib_isert ] || modprobe -r ib_isert
modprobe -r iscsi_target_mod
