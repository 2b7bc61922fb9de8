# iscsi-login.sh ADDRESS IQN default|iser [SETTING=VALUE…]: discovers by TCP or iSER, logs in, waits for the disk, writes its path to
# /run/iscsi-disk. Settings are those of a node record.
address=$1 iqn=$2 interface=$3
shift 3
bash /lab/iscsi-daemon.sh || exit 1
case $address in *:*) portal="[$address]:3260" ;; *) portal=$address:3260 ;; esac
for i in $(seq 20); do
  found=$(timeout 60 iscsiadm -m discovery -t st -I "$interface" -p "$portal") && break
  sleep 0.3
done
echo "$found"
echo "$found" | grep -q "$iqn" || { echo "discovery did not name $iqn"; exit 1; }
# An emulated machine is slow now and then.
iscsiadm -m node -T "$iqn" -o update -n 'node.conn[0].timeo.noop_out_timeout' -v 30
for setting; do iscsiadm -m node -T "$iqn" -o update -n "${setting%%=*}" -v "${setting#*=}" || exit 1; done
timeout 90 iscsiadm -m node -T "$iqn" -p "$portal" -I "$interface" --login || exit 1
for i in $(seq 100); do
  disk=$(iscsiadm -m session -P 3 | sed -n 's/.*Attached scsi disk \(sd[a-z]*\).*State: running.*/\1/p' | head -1)
  [ -n "$disk" ] && [ -b "/dev/$disk" ] && { echo "/dev/$disk" | tee /run/iscsi-disk; exit 0; }
  sleep 0.1
done
echo "no disk appeared"
iscsiadm -m session -P 3
exit 1
