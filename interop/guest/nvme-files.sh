# nvme-files.sh DISK FOLDER…: ext4 on it, the folders copied, unmounted, mounted again and compared, then checked.
set -e
disk=$1
shift
mkfs.ext4 -q -F -E lazy_itable_init=0 "$disk"
mkdir -p /mnt/disk
mount "$disk" /mnt/disk
cp -a "$@" /mnt/disk/
umount /mnt/disk
mount "$disk" /mnt/disk
for folder; do diff -r --no-dereference "$folder" "/mnt/disk/${folder##*/}"; done
rm -r "/mnt/disk/${1##*/}"
umount /mnt/disk
e2fsck -fn "$disk"
