# srp-login.sh IDS ADDRESS [MODULE-OPTIONS…]: ib_srp logs in to the target IDS (id_ext=…,ioc_guid=…) at ADDRESS:5555; the disk's
# name goes to /run/srp-disk. A lost target is tried every second, for ever.
set -e
ids=$1 address=$2
shift 2
case $address in *:*) address="[$address]" ;; esac
modprobe -a sd_mod sg
[ ! -e /sys/module/ib_srp ] || modprobe -r ib_srp
modprobe ib_srp reconnect_delay=1 fast_io_fail_tmo=off dev_loss_tmo=off "$@"
before=$(ls /sys/block)
for i in $(seq 20); do
  echo "$ids,dest=$address:5555" >/sys/class/infiniband_srp/srp-rxe0-1/add_target && break
  sleep 0.3
done
for i in $(seq 300); do
  for disk in /sys/block/sd*; do
    name=${disk##*/}
    [ -e "$disk" ] || continue
    echo "$before" | grep -qx "$name" && continue
    [ "$(cat "$disk/size")" -gt 0 ] || continue
    echo "/dev/$name" >/run/srp-disk
    for f in /sys/class/scsi_host/host*/ch_count; do
      for what in ch_count cmd_sg_entries allow_ext_sg req_lim; do echo "$what $(cat "${f%/*}/$what")"; done
    done
    exit 0
  done
  sleep 0.1
done
dmesg | tail -20
exit 1
