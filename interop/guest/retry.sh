# retry.sh 'command': until it succeeds, at most 20 times: the other side may still be starting.
for i in $(seq 20); do timeout 60 sh -c "$1" && exit 0; sleep 0.3; done
exit 1
