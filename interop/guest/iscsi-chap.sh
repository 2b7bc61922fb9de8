# iscsi-chap.sh ADDRESS IQN default|iser: discovery (over TCP) and logins with CHAP, one way and mutual, at a target that knows "finder", "host"
# and "disk", each with the secret NAME-secret-0123. A wrong secret, or none, must end in open-iscsi's error 24 (authorization
# failure), a target's wrong secret in its error 19 (a login that is not worth another try); neither leaves a session.
iqn=$2 interface=$3
bash /lab/iscsi-daemon.sh || exit 1
case $1 in *:*) portal="[$1]:3260" ;; *) portal=$1:3260 ;; esac
find_with() { # find_with SECRET
  iscsiadm -m discoverydb -t st -p "$portal" -I "$interface" -o delete >/dev/null 2>&1
  iscsiadm -m discoverydb -t st -p "$portal" -I "$interface" -o new >/dev/null || exit 1
  for pair in authmethod=CHAP username=finder "password=$1"; do
    iscsiadm -m discoverydb -t st -p "$portal" -o update -n "discovery.sendtargets.auth.${pair%%=*}" -v "${pair#*=}" || exit 1
  done
  timeout 90 iscsiadm -m discoverydb -t st -p "$portal" -I "$interface" --discover 2>&1
}
node() { iscsiadm -m node -T "$iqn" -p "$portal" -I "$interface" "$@"; }
auth() { for pair; do node -o update -n "node.session.auth.${pair%%=*}" -v "${pair#*=}" || exit 1; done; }
refused() { # refused CODE WHAT
  timeout 90 iscsiadm -m node -T "$iqn" -p "$portal" -I "$interface" --login >/tmp/refused 2>&1
  code=$?
  cat /tmp/refused
  [ $code = "$1" ] || { echo "$2: exit code $code, not $1"; exit 1; }
  iscsiadm -m session 2>&1 | grep -q 'No active sessions' || { echo "$2: there is a session"; exit 1; }
}
used() { # used WHAT
  timeout 90 iscsiadm -m node -T "$iqn" -p "$portal" -I "$interface" --login || { echo "$1: no login"; exit 1; }
  for i in $(seq 200); do
    disk=$(iscsiadm -m session -P 3 | sed -n 's/.*Attached scsi disk \(sd[a-z]*\).*State: running.*/\1/p')
    [ -b "/dev/${disk:-none}" ] && break
    sleep 0.1
  done
  head -c 65536 /dev/urandom >/tmp/full
  dd if=/tmp/full of="/dev/$disk" bs=64k oflag=direct status=none || exit 1
  dd if="/dev/$disk" bs=64k count=1 iflag=direct status=none | cmp - /tmp/full || exit 1
  timeout 90 iscsiadm -m node -T "$iqn" -p "$portal" -I "$interface" --logout || { echo "$1: no logout"; exit 1; }
}
if [ "$interface" = default ]; then
  find_with wrong-secret-0123 && { echo "discovery with a wrong secret succeeded"; exit 1; }
  find_with finder-secret-0123 >/tmp/found
  cat /tmp/found
  grep -q "$iqn" /tmp/found || { echo "discovery did not name $iqn"; exit 1; }
else
  # iscsiadm's discovery over iSER loses login responses (interop/README.md).
  node -o new || exit 1
fi
node -o update -n 'node.conn[0].timeo.noop_out_timeout' -v 30
node -o update -n 'node.session.initial_login_retry_max' -v 1
refused 24 "without CHAP"
auth authmethod=CHAP username=host password=wrong-secret-0123
refused 24 "a wrong secret"
auth password=host-secret-0123
used "CHAP one way"
auth username_in=disk password_in=wrong-secret-0123
refused 19 "a target with a wrong secret"
auth password_in=disk-secret-0123
used "mutual CHAP"
node -o delete
