# lio-group.sh 0|1: takes the portal group of lio-up.sh's target away, which ends its sessions, or brings it back.
echo "$1" >/sys/kernel/config/target/iscsi/iqn.2026-01.lab:disk/tpgt_1/enable
