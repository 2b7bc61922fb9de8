# Takes down what multipath-up.sh made.
kill "$(pidof multipathd)"
for i in $(seq 100); do pidof multipathd >/dev/null || break; sleep 0.1; done
multipath -F || exit 1
udevadm control --exit
rm -rf /run/udev /etc/multipath.conf /etc/multipath
