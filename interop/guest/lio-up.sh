# lio-up.sh ADDRESS tcp|iser: Linux's own iSCSI target iqn.2026-01.lab:disk on ADDRESS:3260, over TCP or over iSER, a 128 MiB RAM
# disk as LUN 0. Initiator iqn.2026-01.lab:one must say CHAP name "host"; of iqn.2026-01.lab:both the target proves itself too, as
# "disk". Discovery asks for "finder". Secrets are NAME-secret-0123.
set -e
modprobe brd rd_nr=1 rd_size=131072
mkdir -p /etc/target
modprobe -a target_core_mod target_core_iblock iscsi_target_mod
[ "$2" != iser ] || modprobe ib_isert
case $1 in *:*) portal="[$1]:3260" ;; *) portal=$1:3260 ;; esac
target=/sys/kernel/config/target
disk=$target/core/iblock_2/disk
mkdir -p "$disk"
echo udev_path=/dev/ram0 >"$disk/control"
echo LABISCSI1 >"$disk/wwn/vpd_unit_serial"
echo 1 >"$disk/enable"
mkdir -p "$target/iscsi"
secret() { # secret FOLDER NAME SUFFIX
  echo -n "$2" >"$1/userid$3"
  echo -n "$2-secret-0123" >"$1/password$3"
}
secret "$target/iscsi/discovery_auth" finder ""
echo 1 >"$target/iscsi/discovery_auth/enforce_discovery_auth"
group=$target/iscsi/iqn.2026-01.lab:disk/tpgt_1
mkdir -p "$group" "$group/lun/lun_0"
ln -s "$disk" "$group/lun/lun_0/disk"
echo 1 >"$group/attrib/authentication"
for who in one both; do
  acl=$group/acls/iqn.2026-01.lab:$who
  mkdir -p "$acl/lun_0"
  ln -s "$group/lun/lun_0" "$acl/lun_0/disk"
  secret "$acl/auth" host ""
done
secret "$group/acls/iqn.2026-01.lab:both/auth" disk _mutual
mkdir "$group/np/$portal"
[ "$2" != iser ] || echo 1 >"$group/np/$portal/iser"
echo 1 >"$group/enable"
