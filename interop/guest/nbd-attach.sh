# nbd-attach.sh ADDRESS: the NBD server at ADDRESS:10809 as /dev/nbd0, by the kernel's driver, on two connections.
set -e
modprobe nbd max_part=0
nbd-client "$1" 10809 /dev/nbd0 -C 2 -b 512 -t 600
for i in $(seq 100); do [ "$(blockdev --getsize64 /dev/nbd0 2>/dev/null || echo 0)" -gt 0 ] && break; sleep 0.1; done
blockdev --getsize64 /dev/nbd0
cat /sys/block/nbd0/queue/write_cache /sys/block/nbd0/queue/fua /sys/block/nbd0/queue/discard_max_bytes
