# Takes down what nvmet-up.sh made; the RAM disk keeps its bytes.
config=/sys/kernel/config/nvmet
bash "${0%/*}/nvmet-port.sh" down
echo 0 >"$config/subsystems/nqn.2026-01.lab:disk/namespaces/1/enable"
rmdir "$config/subsystems/nqn.2026-01.lab:disk/namespaces/1" "$config/subsystems/nqn.2026-01.lab:disk"
