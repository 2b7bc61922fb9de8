# iscsi-two.sh ADDRESS IQN default|iser [logout]: two initiators of this machine, iqn.2026-01.lab:first and :second, log in to the
# target; their disks' paths go to /run/iscsi-disks. Or both log out.
iqn=$2
bash /lab/iscsi-daemon.sh || exit 1
case $1 in *:*) portal="[$1]:3260" ;; *) portal=$1:3260 ;; esac
node() { timeout 90 iscsiadm -m node -T "$iqn" -p "$portal" "$@" || exit 1; }
if [ "$4" = logout ]; then
  for who in first second; do node -I $who --logout; done
  # Records are files; iscsiadm does not always find two of one target and portal.
  for kept in /etc/iscsi /var/lib/iscsi; do rm -rf "$kept/nodes/$iqn" "$kept"/ifaces/{first,second}; done
  exit 0
fi
transport=tcp
[ "$3" = default ] || transport=$3
for who in first second; do
  iscsiadm -m iface -I $who -o new || exit 1
  iscsiadm -m iface -I $who -o update -n iface.transport_name -v $transport || exit 1
  iscsiadm -m iface -I $who -o update -n iface.initiatorname -v iqn.2026-01.lab:$who || exit 1
done
for who in first second; do
  node -I $who -o new
  node -I $who -o update -n 'node.conn[0].timeo.noop_out_timeout' -v 30
  node -I $who --login
done
for i in $(seq 200); do
  disks=$(iscsiadm -m session -P 3 | sed -n 's/.*Attached scsi disk \(sd[a-z]*\).*State: running.*/\/dev\/\1/p')
  [ "$(echo "$disks" | grep -c dev)" = 2 ] && { echo $disks | tee /run/iscsi-disks; exit 0; }
  sleep 0.1
done
iscsiadm -m session -P 3
exit 1
