# tcp-reset.sh PORT: ends all TCP connections of this machine's own PORT by a reset, whoever has them; there must be some.
ss -K -H -t -n state established sport = ":$1" | grep .
