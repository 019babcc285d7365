#!/usr/bin/env bash
# python.sh WHEEL SCRIPT [ARGUMENTS]: a bench of Python's with the wheel and its peers from PyPI in a fresh virtual
# environment. torch takes gigabytes: it is there where TRYST_BENCH_PACKAGES names it.
set -euo pipefail
wheel=$(readlink -f "$1") script=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy
"$work/venv/bin/pip" install -q --no-deps "$wheel"
peers="grpcio pyzmq mpi4py ray ${TRYST_BENCH_PACKAGES:-}"
if [[ $script != */python.py ]]; then peers=""; fi
for peer in $peers; do
  "$work/venv/bin/pip" install -q "$peer" || echo "python.sh: no $peer" >&2
done
if [[ $script == */python.py || $script == */python_blocking.py ]]; then
  # NIXL asks for builds of CUDA and for torch, neither of which it needs here.
  for peer in "nixl nixl-cu12" mooncake-transfer-engine-non-cuda; do
    # shellcheck disable=SC2086  # Words.
    "$work/venv/bin/pip" install -q --no-deps $peer || echo "python.sh: no $peer" >&2
  done
fi
"$work/venv/bin/python" "$script" "${@:3}" 2> >(grep -vE '^[IW][0-9]{4} ' >&2)
