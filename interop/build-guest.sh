#!/bin/bash
# Build the lab's guest from Debian's own packages: vmlinux, initrd.img and rootfs.ext4 in one directory,
# whose path is the only thing printed on standard output. Needs root. The directory's name carries a hash
# of everything that goes in, so an unchanged guest is built once: $EVERYWIRE_LAB, else ~/.cache/everywire-lab.
# Takes about two minutes; what it installs in the guest is in the files packages and modules beside it.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
lab=${EVERYWIRE_LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/everywire-lab}
suite=bookworm
say() { echo "guest: $*" >&2; }
list() { sed 's/#.*//' "$here/$1" | tr -s ' \n' '\n' | sed '/^$/d'; }

kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-//p' | head -1)
[ -n "$kernel" ] || { say "apt knows no linux-image-amd64: run apt-get update"; exit 1; }
key=$( (cat "$here"/{build-guest.sh,packages,modules,guest/init}; echo "$kernel") | sha256sum | cut -c1-16)
out=$lab/guest-$kernel-$key
[ -e "$out/rootfs.ext4" ] && { echo "$out"; exit 0; }
mkdir -p "$lab"
work=$(mktemp -d "$lab/building.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The kernel package, unpacked, with its own module index.
fetch_kernel() {
  say "kernel $kernel"
  (cd "$work" && apt-get -q download "linux-image-$kernel" >&2 && dpkg -x linux-image-*.deb kernel)
  depmod -b "$work/kernel" "$kernel"
}

# The .ko files that the named modules need, in loading order.
closure() {
  local m
  for m in "$@"; do modprobe -d "$work/kernel" -S "$kernel" --show-depends "$m" || say "no module $m"; done |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

make_rootfs() {
  say "packages: $(list packages | tr '\n' ' ')"
  mmdebstrap --quiet --mode=root --variant=minbase --include="$(list packages | paste -sd,)" \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    "$suite" "$work/root" "$(debian_sources)" >&2
  local root=$work/root to=$work/root/lib/modules/$kernel ko
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/lib/modules
  mkdir -p "$to" "$root/lab" "$root/mnt"
  for ko in $(closure $(list modules)); do
    install -D -m644 "$ko" "$to/${ko#*/lib/modules/"$kernel"/}"
  done
  cp "$work/kernel/lib/modules/$kernel"/modules.{builtin,order,builtin.modinfo} "$to/"
  depmod -b "$root" "$kernel"
  install -m755 "$here/guest/init" "$root/sbin/lab-init"
  mke2fs -q -t ext4 -O ^has_journal,^metadata_csum -m 0 -d "$root" "$work/rootfs.ext4" 700M
}

# Where this machine's own apt finds Debian (a local mirror stays in use), else the public mirror.
debian_sources() {
  local f
  for f in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
    [ -s "$f" ] && { echo "$f"; return; }
  done
  echo "deb http://deb.debian.org/debian $suite main"
}

make_initrd() {
  local i=$work/initrd ko
  mkdir -p "$i"/{bin,proc,sys,dev,new,mod}
  cp "$(command -v busybox)" "$i/bin/busybox"
  for ko in $(closure virtio_pci virtio_blk ext4 crc32c_generic crc32c_intel); do
    cp "$ko" "$i/mod/" && basename "$ko" >>"$i/mod/list"
  done
  cat >"$i/init" <<'INIT'
#!/bin/busybox sh
B=/bin/busybox
$B mount -t devtmpfs dev /dev; $B mount -t proc proc /proc; $B mount -t sysfs sys /sys
while read m; do $B insmod /mod/$m || echo "insmod $m failed"; done </mod/list
i=0; while [ ! -b /dev/vda ] && [ $i -lt 200 ]; do $B usleep 50000; i=$((i+1)); done
$B mount -t ext4 -o noatime /dev/vda /new || { echo "lab-init: no root disk"; $B poweroff -f; }
for d in dev proc sys; do $B mount --move /$d /new/$d; done
exec $B switch_root /new /sbin/lab-init
INIT
  chmod 755 "$i/init"
  (cd "$i" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.img"
}

# The uncompressed kernel boots through PVH and saves seconds of decompression under emulation.
make_vmlinux() {
  local z=$work/kernel/boot/vmlinuz-$kernel at
  for at in $(grep -obUaP '\xFD7zXZ\x00' "$z" | cut -d: -f1); do
    tail -c +$((at + 1)) "$z" | xz -dc --single-stream 2>/dev/null >"$work/vmlinux" || true
    [ "$(head -c 4 "$work/vmlinux" | tail -c 3)" = ELF ] && return
  done
  cp "$z" "$work/vmlinux"
}

fetch_kernel
make_vmlinux
make_initrd
make_rootfs
mkdir -p "$work/out"
mv "$work"/{vmlinux,initrd.img,rootfs.ext4} "$work/out/"
rm -rf "$out"
mv "$work/out" "$out"
say "ready in $SECONDS s: $(du -sh "$out" | cut -f1)"
echo "$out"
