# multipath-up.sh: dm-multipath on the disks that /run/paths names. They must come out as one map with all of them active, with ALUA for
# hardware handler and for the priority of each path (50: active/optimized). The map's device goes to /run/multipath-disk.
set -e
modprobe -a dm_multipath dm_service_time scsi_dh_alua
/lib/systemd/systemd-udevd --daemon 2>/dev/null
udevadm trigger --subsystem-match=block --action=add
udevadm settle -t 60
cat >/etc/multipath.conf <<X
defaults {
  find_multipaths no
  user_friendly_names yes
  path_grouping_policy group_by_prio
  polling_interval 1
  max_polling_interval 2
}
blacklist {
  devnode "^(vd|ram|nbd|loop)"
}
X
for disk in $(cat /run/paths); do
  # How soon a host gives a silent path up, and its error handling with it (that of iSCSI has no such limit, and needs none).
  echo 15 >"/sys/block/$disk/device/timeout"
  unit=$(basename "$(readlink "/sys/block/$disk/device")")
  echo 5 >"/sys/class/scsi_host/host${unit%%:*}/eh_deadline" || true
done
multipathd -d -s -v3 >/tmp/multipathd.log 2>&1 &
for i in $(seq 200); do
  shown=$(multipath -ll)
  active=0
  for disk in $(cat /run/paths); do
    ! echo "$shown" | grep -q " $disk .*active ready *running" || active=$((active + 1))
  done
  [ $active != "$(wc -l </run/paths)" ] || break
  sleep 0.2
done
echo "$shown"
[ $active = "$(wc -l </run/paths)" ] || { echo "not every path is active"; exit 1; }
[ "$(echo "$shown" | grep -c ' dm-')" = 1 ] || { echo "not one map"; exit 1; }
echo "$shown" | grep -q "hwhandler='1 alua'" || { echo "no hardware handler of ALUA"; exit 1; }
[ "$(echo "$shown" | grep -c "policy=.*prio=50")" = 1 ] || { echo "not one group of active/optimized paths"; exit 1; }
for disk in $(cat /run/paths); do
  grep "$disk: prio = " /tmp/multipathd.log | tail -1 | grep "prio = alua" || { echo "the priority of $disk is not ALUA's"; exit 1; }
done
echo "/dev/$(echo "$shown" | sed -n '1s/.* \(dm-[0-9]*\) .*/\1/p')" | tee /run/multipath-disk
