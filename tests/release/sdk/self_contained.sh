#!/usr/bin/env bash
# self_contained.sh ARCHIVE: builds and runs the examples in C against the archive of the one library that needs glibc
# alone (//:sdk_c), by pkg-config, and looks at what that library needs and exports.
set -euo pipefail
archive=$(readlink -f "$1") root=$(readlink -f "$(dirname "$0")/../../..")
# shellcheck source=tests/release/sdk/declared.sh
source "$root/tests/release/sdk/declared.sh"
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
library=$sdk/lib/libtryst.so.1
needed=$(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' | grep -vE '^(ld-linux-[a-z0-9-]+\.so\.[12]|lib(c|m)\.so\.6|lib(pthread|dl|rt)\.so\.[0-2])$') || true
[ -z "$needed" ] || { echo "it needs what is not glibc's: $needed"; exit 1; }
newest=$(readelf -V "$library" | grep -oE 'GLIBC_[0-9.]+' | sort -V | tail -n 1)
[ "$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ] || { echo "it needs $newest"; exit 1; }
exports_what_is_declared "$library" "$sdk/include"
if nm -D --extern-only --defined-only "$library" | awk '{ print $NF }' | grep -vE '^((tryst_[a-z0-9_]+@@)?TRYST_[01]|(_Z9TrystMainiPPc@@)?TRYST_PYTHON)$'; then
  echo "exports what is not the C interface"
  exit 1
fi
