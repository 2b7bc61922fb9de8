# nvme-reads.sh DISK fill | DISK SECONDS: nvme-fio.sh's blocks without its writes. First every 512 B get a CRC of their own, and
# are read back; then for so many seconds random reads of 512 B to 1 MiB, each compared with the CRCs.
disk=$1
common="--filename=$disk --size=32M --ioengine=libaio --direct=1 --iodepth=8 --verify=crc32c --verify_fatal=1
  --verify_interval=512 --group_reporting"
[ "$2" != fill ] || exec fio --name=fill --rw=write --bs=256k $common
exec fio --name=reads --rw=randread --norandommap --bsrange=512-1M \
  --bssplit=512/20:4k/30:16k/20:64k/15:256k/10:1M/5 --blockalign=512 --time_based --runtime="$2" --randrepeat=0 $common
