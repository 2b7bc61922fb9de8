# wire.sh rxe | siw VARIANT: the RDMA device on eth0, in the place of the one that is there: soft-RoCE, or the soft-iWARP
# module of that name (/lab/siw, interop/build-siw.sh). Only one at a time: by an address rdma_cm finds either.
# Soft-RoCE's GID 0 is link-local, then IPv4 and IPv6. Soft-iWARP resolves no peer on a link that is lo.
[ ! -e /sys/class/infiniband/rxe0 ] || rdma link del rxe0 || exit 1
if [ -e /sys/module/siw ]; then
  [ ! -e /sys/class/infiniband/siw0 ] || rdma link del siw0 || exit 1
  for i in $(seq 50); do rmmod siw 2>/dev/null && break; sleep 0.2; done
  [ ! -e /sys/module/siw ] || { echo "siw is still in use"; lsmod; exit 1; }
fi
case $1 in
  rxe) modprobe -a rdma_rxe rdma_ucm ib_uverbs ib_umad; rdma link add rxe0 type rxe netdev eth0; device=rxe0 ;;
  siw)
    modprobe -a ib_core iw_cm rdma_ucm ib_uverbs libcrc32c crc32c_generic || exit 1
    insmod "/lab/siw/$2.ko" || exit 1
    rdma link add siw0 type siw netdev eth0
    device=siw0 ;;
esac
for i in $(seq 100); do ibv_devinfo -d "$device" | grep -q PORT_ACTIVE && exit 0; sleep 0.1; done
ibv_devinfo -d "$device"
exit 1
