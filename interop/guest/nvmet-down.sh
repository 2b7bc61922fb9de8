# Takes down what nvmet-up.sh made; the RAM disk keeps its bytes.
config=/sys/kernel/config/nvmet
rm -f "$config"/ports/1/subsystems/*
rmdir "$config/ports/1"
echo 0 >"$config/subsystems/nqn.2026-01.lab:disk/namespaces/1/enable"
rmdir "$config/subsystems/nqn.2026-01.lab:disk/namespaces/1" "$config/subsystems/nqn.2026-01.lab:disk"
