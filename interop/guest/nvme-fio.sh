# nvme-fio.sh DISK SECONDS [huge]: random reads and writes of 512 B to 1 MiB, every block written read back and its CRC
# compared. huge: buffers in huge pages, so that each is one segment.
if [ "$3" = huge ]; then
  echo 48 >/proc/sys/vm/nr_hugepages
  memory=--mem=shmhuge
fi
exec fio --name=verify --filename="$1" --size=64M --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --rwmixread=40 \
  --bsrange=512-1M --bssplit=512/20:4k/30:16k/20:64k/15:256k/10:1M/5 --blockalign=512 --verify=crc32c --verify_fatal=1 \
  --verify_backlog=64 --time_based --runtime="$2" --randrepeat=0 --group_reporting $memory
