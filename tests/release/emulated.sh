#!/usr/bin/env bash
# emulated.sh WHEEL SDK PLUGIN [--tensorflow]: what is made for aarch64 on a machine of another kind, under qemu-user: the package is
# imported, two processes send to each other on each path, the tests of Python that measure no time pass, the examples in C run, NCCL's
# plug-in is loaded, and with --tensorflow (1.6 GB) TensorFlow's workers send by the bridge, cross-compiled. Python is Debian's for arm64,
# unpacked and not installed; numpy, TensorFlow and what judges the wheel are PyPI's: ./run test --emulated.
set -euo pipefail
wheel=$(readlink -f "$1") sdk=$(readlink -f "$2") plugin=$(readlink -f "$3")
with_tensorflow=${4:-}
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
passed=0 failed=0 skipped=0
check() { # WHAT COMMAND...
  if timeout 600 "${@:2}" </dev/null >"$work/log" 2>&1; then
    passed=$((passed + 1))
    echo "PASSED  aarch64: $1"
  else
    failed=$((failed + 1))
    echo "FAILED  aarch64: $1"
    tail -n 30 "$work/log"
  fi
}
skip() { # WHAT WHY
  skipped=$((skipped + 1))
  echo "SKIPPED aarch64: $1: $2"
}

# A process that Python starts as itself is emulated too.
mkdir "$work/site"
python=$work/python
printf '#!/bin/sh\nexec %s "$@"\n' "${emulator[*]} $work/arm64/usr/bin/python3.11" >"$python"
chmod +x "$python"
echo "import sys; sys.executable = '$python'" >"$work/site/sitecustomize.py"
python3 -m zipfile -e "$wheel" "$work/wheel"
export PYTHONDONTWRITEBYTECODE=1 LD_BIND_NOW=1
check_python() { check "$1" env "PYTHONPATH=$work/wheel:$work/site:$PWD/tools" "$python" "${@:2}"; }
check_python "import" -c 'import platform, tryst; assert platform.machine() == "aarch64", platform.machine(); print(tryst.__version__)'
check_python "two processes" tests/release/two_processes.py
check_python "the command line" -m tryst --help
check_python "NCCL's plug-in" -c "import ctypes; ctypes.CDLL('$plugin').ncclNetPlugin_v8"

foreign() { # PACKAGE...: those for aarch64, beside the wheel
  timeout 600 "$work/venv/bin/python" -m pip install -q --target "$work/site" --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --python-version 3.11 \
    --only-binary=:all: "$@" >"$work/log" 2>&1
}
noted=()
python3 -m venv "$work/venv"
if timeout 300 "$work/venv/bin/python" -m pip install -q auditwheel abi3audit ziglang >"$work/log" 2>&1 && foreign numpy ml_dtypes; then
  check "auditwheel" bash -c "set -o pipefail; '$work/venv/bin/python' -m auditwheel show '$wheel' | tr '\n' ' ' |
    grep -E 'platform tag: \"manylinux_2_(1[0-9]|2[0-8])_aarch64'"
  check "abi3audit" "$work/venv/bin/abi3audit" --strict "$wheel"
  echo 'int main(void) { return 0; }' >"$work/main.c"
  for library in "$work/wheel/tryst/libtryst.so.1" "$plugin"; do
    check "nothing that glibc 2.28 lacks in ${library##*/}" "$work/venv/bin/python" -m ziglang cc -target aarch64-linux-gnu.2.28 \
      "$work/main.c" "$library" -o "$work/main"
  done
  for group in Values Waiting Asyncio Plans Memory; do check_python "$group" tests/frameworks/python/test_tryst.py "$group"; done
  noted+=(numpy)
else
  skip "tests with numpy, auditwheel" "PyPI cannot be reached: $(tail -n 1 "$work/log")"
fi
if [[ $with_tensorflow == --tensorflow ]]; then
  if foreign "tensorflow==${TRYST_TENSORFLOW:-2.21.0}"; then
    export CXX=aarch64-linux-gnu-g++ TRYST_PATIENCE=60s TF_CPP_MIN_LOG_LEVEL=1
    check_python "TensorFlow's bridge" -m tryst.tensorflow.build "$work/bridge"
    TRYST_TENSORFLOW_PLUGIN=$(echo "$work"/bridge/*.so)
    export TRYST_TENSORFLOW_PLUGIN
    check_python "TensorFlow's sends and receives" tests/frameworks/tensorflow/rendezvous_test.py grpc+verbs
    noted+=(tensorflow)
  else
    skip "TensorFlow" "it cannot be had from PyPI: $(tail -n 1 "$work/log")"
  fi
fi
tar -xzf "$sdk" -C "$work"
sdk=$(echo "$work"/tryst-c-*)
for program in pull push batch; do
  aarch64-linux-gnu-gcc -std=c99 -D_POSIX_C_SOURCE=200809L -I"$sdk/include" "examples/c/$program.c" "$sdk/lib/libtryst.so.1" \
    -Wl,-rpath,"$sdk/lib" -o "$work/$program"
  check "the example $program" "${emulator[@]}" "$work/$program"
done
if ((failed == 0)); then
  note() { tests/release/tried.py note "$1" "$2" "\`./run test --emulated$3\`"; }
  note "aarch64 under qemu-user" "$(qemu-aarch64-static --version | sed -nE '1s/.*version ([0-9.]+).*/\1/p')" ""
  for package in "${noted[@]}"; do
    version=$(basename "$work/site/$package"-*.dist-info .dist-info)
    if [[ $package == tensorflow ]]; then note "$package" "${version#*-}" " --tensorflow"; else note "$package" "${version#*-}" ""; fi
  done
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
