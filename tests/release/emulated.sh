#!/usr/bin/env bash
# emulated.sh WHEEL SDK: the wheel and the C library for aarch64 on a machine of another kind, under qemu-user: the package is imported,
# two processes send to each other on each path, and the examples in C run. Python is Debian's for arm64, unpacked and not
# installed: ./run test --emulated.
set -euo pipefail
wheel=$(readlink -f "$1") sdk=$(readlink -f "$2")
cd "$(dirname "$(readlink -f "$0")")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mirror=${TRYST_MIRROR:-http://deb.debian.org/debian}
if ! debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 bookworm "$work/arm64" "$mirror" >"$work/log" 2>&1; then
  tail -n 3 "$work/log"
  echo "SKIPPED: no Debian for arm64 from $mirror"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
for package in "$work"/arm64/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$work/arm64"; done
emulator=(qemu-aarch64-static -L "$work/arm64")
passed=0 failed=0
check() { # WHAT COMMAND...
  if timeout 300 "${@:2}" </dev/null >"$work/log" 2>&1; then
    passed=$((passed + 1))
    echo "PASSED  aarch64: $1"
  else
    failed=$((failed + 1))
    echo "FAILED  aarch64: $1"
    tail -n 30 "$work/log"
  fi
}

python=("${emulator[@]}" "$work/arm64/usr/bin/python3.11")
python3 -m zipfile -e "$wheel" "$work/wheel"
export PYTHONPATH=$work/wheel LD_BIND_NOW=1
check "import" "${python[@]}" -c 'import platform, tryst; assert platform.machine() == "aarch64", platform.machine(); print(tryst.__version__)'
check "two processes" "${python[@]}" tests/release/two_processes.py "${python[@]}"
check "the command line" "${python[@]}" -m tryst --help
mkdir "$work/sdk"
tar -xzf "$sdk" -C "$work/sdk" --strip-components=1
for program in pull push batch; do
  aarch64-linux-gnu-gcc -std=c99 -D_POSIX_C_SOURCE=200809L -I"$work/sdk/include" "examples/c/$program.c" "$work/sdk/lib/libtryst.so.1" \
    -Wl,-rpath,"$work/sdk/lib" -o "$work/$program"
  check "the example $program" "${emulator[@]}" "$work/$program"
done
if ((failed == 0)); then
  emulated=$(qemu-aarch64-static --version | sed -nE '1s/.*version ([0-9.]+).*/\1/p')
  tests/release/tried.py note "aarch64 under qemu-user" "$emulated" "\`./run test --emulated\`"
fi
echo "$passed passed, $failed failed, 0 skipped"
((failed == 0))
