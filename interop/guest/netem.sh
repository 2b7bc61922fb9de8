# netem.sh on|off: 1 % loss and reordering on eth0, both ways (what comes in passes through ifb0).
tc qdisc del dev eth0 root 2>/dev/null
tc qdisc del dev eth0 ingress 2>/dev/null
[ "$1" = on ] || exit 0
set -e
modprobe -a ifb sch_netem sch_ingress act_mirred cls_matchall
ip link show ifb0 >/dev/null 2>&1 || ip link add ifb0 type ifb
ip link set ifb0 mtu "$(cat /sys/class/net/eth0/mtu)" up
tc qdisc replace dev ifb0 root netem limit 10000 delay 2ms reorder 99% 50% loss 1%
tc qdisc replace dev eth0 root netem limit 10000 delay 2ms reorder 99% 50% loss 1%
tc qdisc add dev eth0 ingress
tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0
