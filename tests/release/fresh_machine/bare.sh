# shellcheck shell=bash
# Sourced: a bare Debian in a folder, to chroot into. Needs root, debootstrap, and a Debian mirror: this machine's, or TRYST_MIRROR.
# Nothing of this machine's is mounted there.

bare_debian() { # SUITE FOLDER [PACKAGE,...]
  local suite=$1 folder=$2 mirror
  mirror=${TRYST_MIRROR:-$(sed -nE 's/^(URIs:|deb (\[[^]]*\] )?)\s*(https?:[^ ]*debian\/?)( .*)?$/\3/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)}
  mirror=${mirror:-http://deb.debian.org/debian}
  chmod 755 "$folder" # For apt's own user.
  echo "=== a bare Debian ($suite) from $mirror"
  debootstrap --variant=minbase ${3:+"--include=$3"} "$suite" "$folder" "$mirror" | tail -n 1 || return
  mount -t proc proc "$folder/proc"
  mount -t devpts devpts "$folder/dev/pts"
  mkdir -p "$folder/dev/shm"
  mount -t tmpfs tmpfs "$folder/dev/shm"
  # The installers of Debian write this file; debootstrap does not.
  printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' >"$folder/etc/hosts"
}

bare_unmount() { # FOLDER
  local mount
  for mount in dev/shm dev/pts proc; do
    if mountpoint -q "$1/$mount"; then umount "$1/$mount"; fi
  done
}
