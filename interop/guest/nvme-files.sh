# nvme-files.sh DISK: ext4 on it, a file tree copied, unmounted, mounted again and compared, then checked.
set -e
disk=$1
mkfs.ext4 -q -F -E lazy_itable_init=0 "$disk"
mkdir -p /mnt/disk
mount "$disk" /mnt/disk
cp -a /etc /usr/bin /mnt/disk/
ln -s etc /mnt/disk/link
umount /mnt/disk
mount "$disk" /mnt/disk
diff -r --no-dereference /etc /mnt/disk/etc
diff -r --no-dereference /usr/bin /mnt/disk/bin
rm -r /mnt/disk/bin
umount /mnt/disk
e2fsck -fn "$disk"
