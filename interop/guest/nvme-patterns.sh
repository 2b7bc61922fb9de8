# nvme-patterns.sh DISK STATUS: 512 B to 64 KiB written, read back past the page cache and compared; flush; a read past the
# end, which must end with the STATUS of that name.
set -e
disk=$1 status=$2
head -c 1048576 /dev/urandom >/tmp/pattern
for size in 512 4096 16384 65536; do
  dd if=/tmp/pattern of="$disk" bs=$size count=4 seek=8 oflag=direct status=none
  dd if="$disk" bs=$size count=4 skip=8 iflag=direct status=none | cmp -n $((size * 4)) - /tmp/pattern
done
nvme flush "$disk"
blocks=$(blockdev --getsz "$disk")
if nvme io-passthru "$disk" -o 2 -n 1 -l 4096 -r --cdw10=$((blocks + 8)) --cdw12=7 >/tmp/past 2>&1; then
  echo "a read past the end succeeded"
  exit 1
fi
cat /tmp/past
grep -iq "$status" /tmp/past || { echo "a read past the end did not end with $status"; exit 1; }
