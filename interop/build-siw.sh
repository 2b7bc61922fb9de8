#!/bin/bash
# Build Linux's soft-iWARP module, which Debian's kernel leaves out, from Debian's own source package for the guest's
# kernel: plain.ko, crc.ko, p2p.ko and p2p-crc.ko in one directory, whose path is the only thing printed on standard output.
# siw has no parameter for either: whether it asks for MPA CRCs and whether it opens a stream peer to peer (RFC 6581 §9)
# are constants in its source, so each combination is a module of its own.
# Nothing is installed: the packages are unpacked beside. Built once per kernel and content of this file, in $EVERYWIRE_LAB,
# else ~/.cache/everywire-lab. Takes about 40 s on two cores, most of it 150 MB of download and unpacking.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
lab=${EVERYWIRE_LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/everywire-lab}
say() { echo "siw: $*" >&2; }

kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-//p' | head -1)
[ -n "$kernel" ] || { say "apt knows no linux-image-amd64: run apt-get update"; exit 1; }
key=$( (cat "$here/build-siw.sh"; echo "$kernel") | sha256sum | cut -c1-16)
out=$lab/siw-$kernel-$key
[ -e "$out/p2p-crc.ko" ] && { echo "$out"; exit 0; }
mkdir -p "$lab"
work=$(mktemp -d "$lab/building.XXXXXX")
trap 'rm -rf "$work"' EXIT

release=$(cut -d. -f1,2 <<<"$kernel")
version=$(apt-cache show --no-all-versions "linux-image-$kernel" | sed -n 's/^Version: //p')
source=linux-source-$release headers=linux-headers-$kernel
say "$source $version"
# On a machine without user _apt's right to the folder apt says so, and goes on as root.
(cd "$work" && apt-get -q download {"$source","$headers","linux-headers-${kernel%-*}-common","linux-kbuild-$release"}"=$version" >&2)
for package in "$work"/linux-{headers,kbuild}*.deb; do dpkg -x "$package" "$work/root"; done
dpkg-deb --fsys-tarfile "$work/$source"_*.deb | tar -xO "./usr/src/$source.tar.xz" |
  tar -xJ -C "$work" "$source/drivers/infiniband/sw/siw"
siw=$work/$source/drivers/infiniband/sw/siw
# The headers are made to be installed; this line is the only one that says where.
sed -i "s|/usr/src|$work/root/usr/src|" "$work/root/usr/src/$headers/Makefile"

# build NAME CONSTANT…: with these of siw_main.c's constants true. Between two builds only that file is compiled again.
build() {
  local name=$1 constant
  shift
  cp "$work/siw_main.c" "$siw/siw_main.c"
  for constant; do
    sed -i "s/^const bool $constant;/const bool $constant = true;/" "$siw/siw_main.c"
    grep -q "^const bool $constant = true;" "$siw/siw_main.c" || { say "siw_main.c has no constant $constant"; exit 1; }
  done
  make -s -j"$(nproc)" -C "$work/root/usr/src/$headers" M="$siw" CONFIG_RDMA_SIW=m modules >&2
  strip --strip-debug "$siw/siw.ko" -o "$work/out/$name.ko"
}

mkdir "$work/out"
cp "$siw/siw_main.c" "$work/siw_main.c"
build plain
build crc mpa_crc_required
build p2p peer_to_peer
build p2p-crc peer_to_peer mpa_crc_required
rm -rf "$out"
mv "$work/out" "$out"
say "ready in $SECONDS s"
echo "$out"
