# persist-keep.sh set|check DISK DISK: a registration of each and a reservation of the first that are to outlive the target (APTPL, SPC-4
# §5.13.5); and, of a target that was killed since, whether they did, and still keep the second initiator's writes out.
set -e
what=$1 one=$2 two=$3
quiet() { for i in 1 2 3 4 5; do sg_turs "$1" >/dev/null 2>&1 && return; sleep 1; done; sg_turs "$1"; }
quiet "$one"
quiet "$two"
if [ "$what" = set ]; then
  sg_persist --no-inquiry --out --register-ignore --param-sark=111 --param-aptpl "$one"
  sg_persist --no-inquiry --out --register-ignore --param-sark=222 --param-aptpl "$two"
  sg_persist --no-inquiry --out --reserve --param-rk=111 --prout-type=1 "$one"
fi
sg_persist --no-inquiry --in --read-keys "$two" >/tmp/keys
grep -q 0x111 /tmp/keys && grep -q 0x222 /tmp/keys || { cat /tmp/keys; exit 1; }
sg_persist --no-inquiry --in --read-reservation "$two" >/tmp/held
grep -q 'Key=0x111$' /tmp/held || { cat /tmp/held; exit 1; }
grep -q 'Write Exclusive' /tmp/held || { cat /tmp/held; exit 1; }
head -c 512 /dev/urandom >/tmp/block
code=0
sg_raw -s 512 -i /tmp/block "$two" 2a 00 00 00 00 00 00 00 01 00 >/tmp/said 2>&1 || code=$?
[ $code = 24 ] || { echo "a write of another ended with $code, not with a conflict"; cat /tmp/said; exit 1; }
# The host's error handling of the one may have reset what the other sees since.
quiet "$one"
sg_raw -s 512 -i /tmp/block "$one" 2a 00 00 00 00 00 00 00 01 00
[ "$what" = set ] || sg_persist --no-inquiry --out --clear --param-rk=111 "$one"
