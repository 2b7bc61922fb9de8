# srp-second.sh IDS ADDRESS: one more login of ib_srp (srp-login.sh was before), as the initiator port that IDS have; the disk's name
# goes to /run/srp-second.
ids=$1 address=$2
case $address in *:*) address="[$address]" ;; esac
before=$(ls /sys/block)
echo "$ids,dest=$address:5555" >/sys/class/infiniband_srp/srp-rxe0-1/add_target || exit 1
for i in $(seq 300); do
  for disk in /sys/block/sd*; do
    name=${disk##*/}
    echo "$before" | grep -qx "$name" && continue
    [ "$(cat "$disk/size" 2>/dev/null || echo 0)" -gt 0 ] && { echo "/dev/$name" | tee /run/srp-second; exit 0; }
  done
  sleep 0.1
done
exit 1
