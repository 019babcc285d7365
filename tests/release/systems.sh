#!/usr/bin/env bash
# systems.sh WHEEL SDK PLUGIN [SUITE...]: in a bare Debian of each suite, the oldest that can be had and the newest, the examples in C are
# built and run against the archive SDK, NCCL's plug-in is loaded, and two processes send to each other by the wheel, where Python is new
# enough: ./run test --systems. The suite `this` is the machine as it is, for systems that are no Debian: the numpy, torch and jax that its
# Python has are tried, too.
set -euo pipefail
wheel=$(readlink -f "$1") sdk=$(readlink -f "$2") plugin=$(readlink -f "$3")
suites=("${@:4}")
if ((${#suites[@]} == 0)); then suites=(bullseye trixie); fi
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=tests/release/fresh_machine/bare.sh
source tests/release/fresh_machine/bare.sh
if ((EUID != 0)) && [[ ${suites[*]} != this ]]; then
  echo "SKIPPED: needs root, to chroot"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi

folder=""
finish() {
  if [[ -z $folder ]]; then return; fi
  bare_unmount "$folder"
  rm -rf --one-file-system "$folder" "$folder.log"
  folder=""
}
trap finish EXIT
passed=0 failed=0 skipped=0
inside() {
  local clean=(env -i HOME=/root PATH=/usr/bin:/bin LD_BIND_NOW=1)
  if [[ $suite == this ]]; then clean=(env LD_BIND_NOW=1); else clean=(chroot "$folder" "${clean[@]}"); fi
  timeout 120 "${clean[@]}" "$@" </dev/null
}
check() { # WHAT COMMAND...
  if inside "${@:2}" >"$folder/log" 2>&1; then
    passed=$((passed + 1))
    echo "PASSED  $suite: $1"
  else
    failed=$((failed + 1))
    echo "FAILED  $suite: $1"
    tail -n 30 "$folder/log"
  fi
}
note() { # WHAT VERSION
  if ((failed == 0)); then tests/release/tried.py note "$1" "$2" "$how"; fi
}

for suite in "${suites[@]}"; do
  folder=$(mktemp -d)
  how="\`./run test --systems $suite\`"
  # shellcheck disable=SC1091  # The machine's own.
  if [[ $suite == this ]]; then how="\`tests/release/systems.sh\` on $(. /etc/os-release && echo "$PRETTY_NAME")"; fi
  if [[ $suite != this ]] && ! bare_debian "$suite" "$folder" gcc,libc6-dev,pkg-config,python3 >"$folder.log" 2>&1; then
    echo "SKIPPED $suite: $(tail -n 1 "$folder.log")"
    skipped=$((skipped + 1))
  else
    mkdir -p "$folder/tryst/tests" "$folder/tryst/examples"
    cp -r tests/release/sdk tests/release "$folder/tryst/tests"
    cp -r examples/c "$folder/tryst/examples"
    cp "$sdk" "$folder/tryst/sdk.tar.gz"
    cp "$plugin" "$folder/tryst/libnccl-net-tryst.so"
    python3 -m zipfile -e "$wheel" "$folder/tryst/wheel"
    tryst=/tryst
    if [[ $suite == this ]]; then tryst=$folder/tryst; fi
    libc=$(inside ldd --version | sed -nE '1s/.* //p') interpreter=$(inside python3 -c 'import platform; print(platform.python_version())')
    echo "$suite: $(inside ldd --version | head -n 1), $(inside python3 --version)"
    check "the examples in C" "$tryst/tests/release/sdk/self_contained.sh" "$tryst/sdk.tar.gz"
    check "NCCL's plug-in" python3 -c "import ctypes; ctypes.CDLL('$tryst/libnccl-net-tryst.so').ncclNetPlugin_v8"
    note glibc "$libc"
    if inside python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      check "two processes by the wheel" env "PYTHONPATH=$tryst/wheel" python3 "$tryst/tests/release/two_processes.py"
      note CPython "$interpreter"
      if [[ $suite == this ]] && inside python3 -c 'import numpy'; then
        for group in Values Plans Memory Frameworks; do
          check "$group" env "PYTHONPATH=$tryst/wheel" JAX_PLATFORMS=cpu python3 tests/frameworks/python/test_tryst.py "$group"
        done
        for package in numpy torch jax; do
          if version=$(inside python3 -c "import importlib.metadata as m; print(m.version('$package'))" 2>/dev/null); then
            note "$package" "$version"
          fi
        done
      fi
    else # The wheel's other library has no Python in it.
      check "the wheel's libtryst.so.1" python3 -c "import ctypes; ctypes.CDLL('$tryst/wheel/tryst/libtryst.so.1').tryst_abi_version()"
      echo "SKIPPED $suite: two processes by the wheel, which needs Python 3.11"
      skipped=$((skipped + 1))
    fi
  fi
  finish
done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
