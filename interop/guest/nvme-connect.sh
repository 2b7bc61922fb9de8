# nvme-connect.sh ADDRESS NQN QUEUES [more options]: connects, waits for the disk, writes its path to /run/nvme-disk.
modprobe -a nvme_rdma
address=$1 nqn=$2 queues=$3
shift 3
before=$(ls /dev/nvme*n* 2>/dev/null)
nvme connect -t rdma -a "$address" -s 4420 -n "$nqn" --nr-io-queues="$queues" "$@" || exit 1
for i in $(seq 100); do
  for c in /sys/class/nvme/nvme*; do
    [ "$(cat "$c/subsysnqn" 2>/dev/null)" = "$nqn" ] || continue
    [ "$(cat "$c/queue_count")" = $((queues + 1)) ] || { echo "not $queues I/O queues"; exit 1; }
    for d in /dev/"${c##*/}"n*; do [ -b "$d" ] && { echo "$d" | tee /run/nvme-disk; exit 0; }; done
  done
  sleep 0.1
done
echo "no disk appeared"
nvme list-subsys
exit 1
