# iscsi-daemon.sh: the modules and the daemon of open-iscsi, if they are not there.
modprobe -a sd_mod sg iscsi_tcp ib_iser || exit 1
mkdir -p /etc/iscsi /run/lock/iscsi
echo InitiatorName=iqn.2026-01.lab:guest >/etc/iscsi/initiatorname.iscsi
pidof iscsid >/dev/null || iscsid || exit 1
