# nvme-zeroes.sh DISK: Write Zeroes over a pattern, by the admin tool and by the block layer, and nothing beside it.
set -e
disk=$1
head -c 65536 /dev/urandom | tr '\0' x >/tmp/full
dd if=/tmp/full of="$disk" bs=64k oflag=direct status=none
nvme write-zeroes "$disk" -n 1 -s 8 -c 7
dd if="$disk" bs=4k skip=1 count=1 iflag=direct status=none | cmp -n 4096 - /dev/zero
for skip in 0 2; do
  dd if="$disk" bs=4k skip=$skip count=1 iflag=direct status=none >/tmp/beside
  dd if=/tmp/full bs=4k skip=$skip count=1 status=none | cmp - /tmp/beside
done
blkdiscard -f --zeroout --offset 32768 --length 16384 "$disk"
dd if="$disk" bs=16k skip=2 count=1 iflag=direct status=none | cmp -n 16384 - /dev/zero
