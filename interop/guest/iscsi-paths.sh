# iscsi-paths.sh IQN default|iser ADDRESS…: logs in at each of these portals of one target, with the waits of a host that has several
# paths; the disks' names go to /run/paths, in the portals' order. Over TCP discovery at the first must tell of all.
# iscsi-paths.sh IQN logout: logs out of all.
iqn=$1 interface=$2
shift 2
bash /lab/iscsi-daemon.sh || exit 1
if [ "$interface" = logout ]; then
  timeout 90 iscsiadm -m node -T "$iqn" --logout || exit 1
  iscsiadm -m node -T "$iqn" -o delete
  exit
fi
portal() { case $1 in *:*) echo "[$1]:3260" ;; *) echo "$1:3260" ;; esac; }
node() { timeout 90 iscsiadm -m node -T "$iqn" -I "$interface" -p "$@" || exit 1; }
if [ "$interface" = default ]; then
  found=$(timeout 60 iscsiadm -m discovery -t st -I default -p "$(portal "$1")") || exit 1
  for address; do
    echo "$found" | grep -qF "$(portal "$address"),1 $iqn" || { echo "discovery did not tell of $address: $found"; exit 1; }
  done
else
  # iscsiadm's discovery over iSER loses login responses (interop/README.md).
  for address; do node "$(portal "$address")" -o new; done
fi
: >/run/paths
for address; do
  at=$(portal "$address")
  for setting in node.session.timeo.replacement_timeout=5 'node.conn[0].timeo.noop_out_interval=2' \
    'node.conn[0].timeo.noop_out_timeout=10'; do
    node "$at" -o update -n "${setting%=*}" -v "${setting#*=}"
  done
  node "$at" --login
  for i in $(seq 200); do
    disk=$(iscsiadm -m session -P 3 |
      awk -v at="$at," '/Persistent Portal:/ { here = index($3, at) == 1 } here && /Attached scsi disk.*running/ { print $4; exit }')
    [ -b "/dev/${disk:-none}" ] && break
    sleep 0.1
  done
  [ -b "/dev/${disk:-none}" ] || { iscsiadm -m session -P 3; echo "no disk at $at"; exit 1; }
  echo "$disk" >>/run/paths
done
cat /run/paths
