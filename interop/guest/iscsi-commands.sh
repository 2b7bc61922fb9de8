# iscsi-commands.sh DISK: what a SCSI disk must answer, by sg3-utils; 512 B to 4 MiB written, read back past the page cache
# and compared; a read past the end, which must end with LBA out of range.
set -e
disk=$1
sg_inq "$disk"
for page in 0 0x80 0x83 0xb0 0xb1 0xb2; do sg_vpd -p $page "$disk"; done
sg_readcap --long "$disk"
sg_turs "$disk"
sg_luns "$disk"
sg_opcodes "$disk" | tail -5
sg_modes -a "$disk" >/dev/null
head -c 16777216 /dev/urandom >/tmp/pattern
for size in 512 4096 8192 8704 65536 1048576 4194304; do
  dd if=/tmp/pattern of="$disk" bs=$size count=4 seek=2 oflag=direct status=none
  dd if="$disk" bs=$size count=4 skip=2 iflag=direct status=none | cmp -n $((size * 4)) - /tmp/pattern
done
sg_sync "$disk"
sg_compare_and_write --in=/tmp/pattern --lba=0 --num=1 --xferlen=1024 "$disk" 2>&1 | grep -i miscompare
blocks=$(blockdev --getsz "$disk")
if sg_raw -r 4096 "$disk" 28 00 $(printf '%02x %02x %02x %02x' $((blocks >> 24 & 255)) $((blocks >> 16 & 255)) \
  $((blocks >> 8 & 255)) $((blocks & 255))) 00 00 08 00 >/tmp/past 2>&1; then
  echo "a read past the end succeeded"
  exit 1
fi
cat /tmp/past
grep -iq 'out of range' /tmp/past || { echo "a read past the end did not end with LBA out of range"; exit 1; }
