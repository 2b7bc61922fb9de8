# iscsi-logout.sh IQN: logs out; the disk must go, and the session with it.
disk=$(cat /run/iscsi-disk)
timeout 90 iscsiadm -m node -T "$1" --logout || exit 1
for i in $(seq 100); do [ -b "$disk" ] || break; sleep 0.1; done
[ ! -b "$disk" ] || { echo "$disk is still there"; exit 1; }
iscsiadm -m session 2>&1 | grep -q 'No active sessions' || { iscsiadm -m session; exit 1; }
iscsiadm -m node -T "$1" -o delete
