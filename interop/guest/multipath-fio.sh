# multipath-fio.sh: verified I/O on the map, until /run/multipath-enough is there.
rm -f /run/multipath-enough
until [ -e /run/multipath-enough ]; do bash /lab/nvme-fio.sh "$(cat /run/multipath-disk)" 15 || exit 1; done
