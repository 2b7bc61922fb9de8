# Soft-RoCE on eth0. GID 0 is link-local, then IPv4 and IPv6.
modprobe -a rdma_rxe rdma_ucm ib_uverbs ib_umad
rdma link add rxe0 type rxe netdev eth0
for i in $(seq 100); do ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE && exit 0; sleep 0.1; done
ibv_devinfo -d rxe0
exit 1
