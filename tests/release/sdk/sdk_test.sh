#!/usr/bin/env bash
# Unpacks the archive in another place, and builds and runs programs against it: with CMake in C and
# C++, and with pkg-config. Also checks what the library exports.
set -euo pipefail
archive=$PWD/$1
root=$PWD
sources=$PWD/tests/release/sdk
# shellcheck source=tests/release/sdk/declared.sh
source "$sources/declared.sh"
cd "$TEST_TMPDIR"

tar -xzf "$archive"
sdk=$(echo "$PWD"/tryst-*)
library=$sdk/lib/libtryst.so.0

mkdir consumer
cp -L "$sources"/CMakeLists.txt "$sources"/consumer.c "$sources"/consumer.cc consumer/
cmake -S consumer -B build -DCMAKE_PREFIX_PATH="$sdk" >log 2>&1 || { cat log; exit 1; }
cmake --build build >log 2>&1 || { cat log; exit 1; }
build/consumer_c
build/consumer_cxx

export PKG_CONFIG_PATH=$sdk/lib/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs tryst)"
gcc -std=c99 -Wall -Wextra -Werror -pedantic consumer/consumer.c "${flags[@]}" \
  -Wl,-rpath,"$sdk/lib" -o by_pkg_config
./by_pkg_config
read -ra flags <<<"$(pkg-config --cflags tryst-cxx)"
g++ "${flags[@]}" -Wall -Wextra -Werror -fsyntax-only consumer/consumer.cc

# The archive has no headers about how tensors travel, and each header that it has can be included
# alone.
rooms=$(ls "$sdk/include/tryst")
[ "$rooms" = "$(printf 'base\nrendezvous\nserver')" ] || { echo "include/tryst has $rooms"; exit 1; }
(cd "$sdk/include/tryst" && find . -name '*.h' -printf '#include "%P"\n') | sort >all_headers.cc
sort -r all_headers.cc >backwards.cc
for order in all_headers backwards; do
  g++ "${flags[@]}" -Wall -Wextra -Werror -fsyntax-only "$order.cc"
done

# The programs in the documents can be built and run from the archive, which has every header that
# they name.
mkdir documents
"$sources/documents.py" "$sdk/include/tryst" documents "$root"/README.md "$root"/docs/SDK.md \
  "$root"/docs/ARCHITECTURE.md "$root"/docs/examples/embedding.md
cp -L "$root"/examples/embedding/embedding.cc documents/
g++ "${flags[@]}" -Wall -Wextra -Werror -fsyntax-only "$root"/examples/embedding/two_processes.cc  # docs/tutorials/embedding.md
read -ra link <<<"$(pkg-config --libs tryst-cxx absl_synchronization)"
for program in documents/*.cc; do
  g++ "${flags[@]}" -Wall -Wextra -Werror "$program" "${link[@]}" -Wl,-rpath,"$sdk/lib" -o a.out
  ./a.out >log 2>&1 || { echo "$program:"; cat log; exit 1; }
done
read -ra flags <<<"$(pkg-config --cflags --libs tryst)"
for program in documents/*.c; do
  gcc -std=c99 -Wall -Wextra -Werror "$program" "${flags[@]}" -Wl,-rpath,"$sdk/lib" -o a.out
  ./a.out >log 2>&1 || { echo "$program:"; cat log; exit 1; }
done

# The examples in C need one header and one library.
cp -L "$root"/examples/c/* .
for program in pull push batch; do
  gcc -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic "$program.c" "${flags[@]}" \
    -Wl,-rpath,"$sdk/lib" -o a.out
  ./a.out >log 2>&1 || { echo "$program:"; cat log; exit 1; }
done

exports_what_is_declared "$library" "$sdk/include"
# What was ever declared within this version stays, with its types and numbers. A new line in
# abi_v0.txt is an addition; a changed one needs a new TRYST_ABI_VERSION.
gcc -x c -fsyntax-only -aux-info aux "$sdk/include/tryst_v1.h"
for header in tryst:0 tryst_v1:1; do
  name=${header%:*}
  {
    sed -nE "s|^/\* .*/$name\.h:[0-9]+:[A-Z]+ \*/ extern ||p" aux
    grep -oE 'TRYST_[A-Z0-9_]+ = [0-9]+' "$sdk/include/$name.h"
  } | LC_ALL=C sort >abi
  diff "$sources/abi_v${header#*:}.txt" abi
done
# The library exports no symbol of another library. If it did, two copies of that library in one
# program would mix.
if nm -DC --defined-only "$library" | grep -E ' [TDBVW] ' |
  grep -vE ' (tryst_|tryst::|vtable for tryst::|type.*info( name)? for tryst::|(non-)?virtual thunk to tryst::|guard variable for tryst::)'; then
  exit 1
fi
readelf -d "$library" | grep -q 'SONAME.*libtryst.so.0'
