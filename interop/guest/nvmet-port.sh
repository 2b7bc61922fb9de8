# nvmet-port.sh up ADDRESS | down: the port at ADDRESS:4420 that nvmet-up.sh's subsystem is reached by. Going down drops its
# connections.
set -e
config=/sys/kernel/config/nvmet
port=$config/ports/1
disk=nqn.2026-01.lab:disk
if [ "$1" = down ]; then
  rm -f "$port/subsystems/$disk"
  rmdir "$port"
  exit
fi
mkdir "$port"
echo rdma >"$port/addr_trtype"
case $2 in *:*) echo ipv6 ;; *) echo ipv4 ;; esac >"$port/addr_adrfam"
echo "$2" >"$port/addr_traddr"
echo 4420 >"$port/addr_trsvcid"
ln -s "$config/subsystems/$disk" "$port/subsystems/"
