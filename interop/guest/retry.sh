# retry.sh 'command' [SECONDS]: until it succeeds, at most 20 times of at most so many seconds (60): the other side may still
# be starting. rping's client never ends when siw tells it that nobody listens yet.
for i in $(seq 20); do timeout "${2:-60}" sh -c "$1" && exit 0; sleep 0.3; done
exit 1
