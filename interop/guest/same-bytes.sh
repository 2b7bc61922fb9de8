# same-bytes.sh DISK OTHER MIB: the first MIB MiB of both, past the page cache, are the same bytes.
set -e
sync
sum() { dd if="$1" bs=1M count="$mib" iflag=direct status=none | sha256sum; }
mib=$3
one=$(sum "$1")
other=$(sum "$2")
echo "$1 $one, $2 $other"
[ "$one" = "$other" ]
