# nvme-fio-read.sh DISK write | read SECONDS: blocks of 64 KiB with their CRCs, written once and made durable; then read again
# and again, each read compared.
job="--name=verify --filename=$1 --size=64M --ioengine=libaio --direct=1 --iodepth=8 --bs=64k --verify=crc32c \
  --verify_header_seed=0 --verify_fatal=1 --group_reporting"
case $2 in
  write) exec fio $job --rw=write --do_verify=0 --end_fsync=1 ;;
  read) exec fio $job --rw=randread --time_based --runtime="$3" ;;
esac
