#!/usr/bin/env bash
# self_contained.sh ARCHIVE: builds and runs the examples in C against the archive of the one library that needs glibc
# alone (//:sdk_c), by pkg-config, and looks at what that library needs and exports.
set -euo pipefail
archive=$(readlink -f "$1") root=$(readlink -f "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
tar -xzf "$archive"
sdk=$(echo "$PWD"/tryst-c-*)
export PKG_CONFIG_PATH=$sdk/lib/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs tryst)"
cp "$root"/examples/c/* .
for program in pull push batch; do
  gcc -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic "$program.c" "${flags[@]}" \
    -Wl,-rpath,"$sdk/lib" -o "$program"
  readelf -d "$program" | grep -q 'NEEDED.*libtryst.so.1' || { echo "$program has another library"; exit 1; }
  timeout 60 "./$program" >log 2>&1 || { echo "$program:"; cat log; exit 1; }
done
needed=$(readelf -d "$sdk/lib/libtryst.so.1" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' | sort | tr '\n' ' ')
[ "$needed" = "ld-linux-x86-64.so.2 libc.so.6 libm.so.6 " ] || { echo "it needs $needed"; exit 1; }
if nm -D --extern-only --defined-only "$sdk/lib/libtryst.so.1" | awk '{ print $NF }' | grep -vE '^(tryst_[a-z0-9_]+@@)?TRYST_[01]$'; then
  echo "exports what is not the C interface"
  exit 1
fi
