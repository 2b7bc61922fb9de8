# srp-commands.sh DISK: INQUIRY with its pages, the opcodes, WRITE SAME with and without UNMAP, COMPARE AND WRITE, a reservation,
# and a read past the end, which must fail with its own sense.
set -e
disk=$1
sg_inq "$disk"
for page in 0x00 0x80 0x83 0x86 0xb0 0xb1 0xb2; do sg_vpd -q -p $page "$disk"; done
sg_opcodes "$disk" >/tmp/opcodes
sg_luns "$disk"
sg_turs "$disk"
sg_readcap -l "$disk"
head -c 65536 /dev/urandom | tr '\0' x >/tmp/full
dd if=/tmp/full of="$disk" bs=64k oflag=direct status=none
sg_write_same --lba=8 --num=8 --in=/dev/zero --xferlen=512 "$disk"
dd if="$disk" bs=4k skip=1 count=1 iflag=direct status=none | cmp -n 4096 - /dev/zero
sg_unmap --lba=32 --num=8 "$disk"
dd if="$disk" bs=4k skip=4 count=1 iflag=direct status=none | cmp -n 4096 - /dev/zero
sg_write_same --10 --unmap --lba=48 --num=8 --in=/dev/zero --xferlen=512 "$disk"
sg_write_same --16 --unmap --lba=64 --num=8 --in=/dev/zero --xferlen=512 "$disk"
for lba in 48 64; do
  dd if="$disk" bs=512 skip=$lba count=8 iflag=direct status=none | cmp -n 4096 - /dev/zero
  sg_get_lba_status --lba=$lba "$disk" | grep -qi deallocated
done
for skip in 0 2 3 5 7 9; do
  dd if="$disk" bs=4k skip=$skip count=1 iflag=direct status=none >/tmp/beside
  dd if=/tmp/full bs=4k skip=$skip count=1 status=none | cmp - /tmp/beside
done
dd if=/tmp/full bs=512 count=1 status=none >/tmp/caw
dd if=/tmp/full bs=512 skip=64 count=1 status=none >>/tmp/caw
sg_compare_and_write --in=/tmp/caw --lba=0 --num=1 --xferlen=1024 "$disk"
if sg_compare_and_write --in=/tmp/caw --lba=0 --num=1 --xferlen=1024 "$disk"; then echo "a second compare succeeded"; exit 1; fi
sg_persist --out --register --param-sark=abc123 "$disk"
sg_persist --in --read-keys "$disk" | grep -qi abc123
sg_persist --out --register --param-rk=abc123 "$disk"
blocks=$(blockdev --getsz "$disk")
if sg_raw -r 4096 "$disk" 28 00 7f ff ff ff 00 00 08 00 >/tmp/past 2>&1; then echo "a read past the end succeeded"; exit 1; fi
grep -qi 'out of range' /tmp/past || { cat /tmp/past; echo "$blocks blocks"; exit 1; }
