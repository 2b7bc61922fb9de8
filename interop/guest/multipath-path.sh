# multipath-path.sh DISK failed|active: waits until multipath shows this path so. While it is failed, I/O must go on by the other, and the
# kernel must complain of this path only.
disk=$1 state=$2
other=$(grep -vx "$disk" /run/paths)
done_by() { awk '{ print $1 + $5 }' "/sys/block/$1/stat"; }
shown=
SECONDS=0
until echo "$shown" | grep -q " $disk .* $state "; do
  [ $SECONDS -lt 240 ] || { echo "$disk does not become $state"; multipath -ll; exit 1; }
  sleep 0.5
  shown=$(multipath -ll)
done
echo "$shown"
echo "$shown" | grep -q " $other .* active ready *running" || { echo "$other is not active"; exit 1; }
if [ "$state" = failed ]; then
  before=$(done_by "$other")
  until [ "$(done_by "$other")" -gt $((before + 50)) ]; do
    [ $SECONDS -lt 240 ] || { echo "no I/O by $other"; exit 1; }
    sleep 0.2
  done
fi
number=$(cat "/sys/block/$other/dev")
dmesg | tac | sed '/lab: a path goes/q' | grep -E "error, dev $other,|\[$other\].*(FAILED|timing out)|Failing path $number\." &&
  { echo "the kernel complains of $other, not of $disk"; exit 1; }
exit 0
