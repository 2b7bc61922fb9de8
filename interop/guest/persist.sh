# persist.sh DISK DISK: one logical unit as two initiators see it: every type of persistent reservation, who may read and write under
# it (SPC-4 table 50), preemption, release and clearing, and the unit attentions of those to whom it is done.
set -e
one=$1 two=$2
head -c 512 /dev/urandom >/tmp/block
key() { if [ "$1" = "$one" ]; then echo 111; else echo 222; fi; }
out() { # out DISK ACTION [more]: PERSISTENT RESERVE OUT with the key of that initiator
  sg_persist --no-inquiry --out --"$2" --param-rk="$(key "$1")" "${@:3}" "$1" >/tmp/said 2>&1 || { cat /tmp/said; return 1; }
}
register() { sg_persist --no-inquiry --out --register-ignore --param-sark="$(key "$1")" "$1" >/dev/null; }
unregister() { out "$1" register --param-sark=0; }
quiet() { for i in 1 2 3 4; do sg_turs "$1" >/dev/null 2>&1 && return; done; sg_turs "$1"; }
told() { # told DISK WORDS: its next command must end with this unit attention
  sg_raw "$1" 00 00 00 00 00 00 >/tmp/said 2>&1 || true
  grep -qi "$2" /tmp/said || { echo "$1 was not told: $2"; cat /tmp/said; exit 1; }
}
read1() { sg_raw -r 512 "$1" 28 00 00 00 00 00 00 00 01 00; }
write1() { sg_raw -s 512 -i /tmp/block "$1" 2a 00 00 00 00 00 00 00 01 00; }
may() { "$@" >/tmp/said 2>&1 || { echo "type $type: $* was refused"; cat /tmp/said; exit 1; }; }
conflict() { # conflict COMMAND…: sg3-utils ends with 24 for RESERVATION CONFLICT
  local code=0
  "$@" >/tmp/said 2>&1 || code=$?
  [ $code = 24 ] || { echo "type $type: $* ended with $code, not with a conflict"; cat /tmp/said; exit 1; }
}
holds() { # holds DISK HOLDER: all hold an all-registrants reservation, which is shown as key 0
  local held=0
  [ $type -ge 7 ] || held=$(key "$2")
  sg_persist --no-inquiry --in --read-reservation "$1" >/tmp/said 2>&1
  grep -q "Key=0x$held\$" /tmp/said || { cat /tmp/said; exit 1; }
}
quiet "$one"
quiet "$two"
sg_persist --no-inquiry --in --report-capabilities "$one"
for type in 1 3 5 6 7 8; do
  register "$one"
  register "$two"
  sg_persist --no-inquiry --in --read-keys "$two" >/tmp/said
  grep -q 0x111 /tmp/said && grep -q 0x222 /tmp/said || { cat /tmp/said; exit 1; }
  out "$one" reserve --prout-type=$type
  may read1 "$one"
  may write1 "$one"
  if [ $type -ge 5 ]; then
    # Registered initiators have what the holder has; it is told when that ends.
    may read1 "$two"
    may write1 "$two"
    out "$one" release --prout-type=$type
    told "$two" 'reservations released'
    out "$one" reserve --prout-type=$type
    unregister "$two"
  else
    conflict sg_persist --no-inquiry --out --reserve --param-rk=222 --prout-type=$type "$two"
  fi
  holds "$two" "$one"
  case $type in
    1 | 5 | 7) may read1 "$two" ;;
    3 | 6 | 8) conflict read1 "$two" ;;
  esac
  conflict write1 "$two"
  # What is never refused: TEST UNIT READY under write exclusive, INQUIRY under all.
  may sg_inq "$two"
  register "$two"
  if [ $type -lt 7 ]; then
    # The other takes it, and its holder's registration with it.
    out "$two" preempt --param-sark=111 --prout-type=$type
    told "$one" 'registrations preempted'
    holds "$one" "$two"
    conflict write1 "$one"
    register "$one"
  fi
  out "$two" clear
  told "$one" 'reservations preempted'
  sg_persist --no-inquiry --in --read-keys "$one" >/tmp/said
  grep -q 'NO registered' /tmp/said || { echo "keys after CLEAR"; cat /tmp/said; exit 1; }
  may write1 "$one"
  may write1 "$two"
done
