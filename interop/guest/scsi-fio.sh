# scsi-fio.sh DISK SECONDS: random reads and writes of 512 B to 8 MiB, in commands as large as the host makes them; every block
# written is read back and its CRC compared.
queue=/sys/block/${1##*/}/queue
cat "$queue/max_hw_sectors_kb" >"$queue/max_sectors_kb"
exec fio --name=verify --filename="$1" --size=64M --ioengine=libaio --direct=1 --iodepth=4 --rw=randrw --rwmixread=40 \
  --bsrange=512-8M --bssplit=512/20:4k/25:16k/20:64k/15:256k/10:1M/5:8M/5 --blockalign=512 --verify=crc32c --verify_fatal=1 \
  --verify_backlog=64 --time_based --runtime="$2" --randrepeat=0 --group_reporting
