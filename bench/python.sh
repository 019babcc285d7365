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
# NIXL asks for builds of CUDA and for torch, neither of which it needs here; Mooncake for more than its engine needs.
peers="" alone="nixl nixl-cu12 mooncake-transfer-engine-non-cuda"
case $script in
  */python.py) peers="grpcio pyzmq mpi4py ray ${TRYST_BENCH_PACKAGES:-}" ;;
  */python_blocking.py) ;;
  */kv.py) ;;
  */weights.py)
    peers="ray ${TRYST_BENCH_PACKAGES:-}"
    if [[ " ${*:3} " == *" --quick "* && " ${*:3}" != *" --peers"* ]]; then peers="" alone=""; fi
    ;;
  */weights_delta.py) peers="ml_dtypes" alone="" ;;
  *) alone="" ;;
esac
for peer in $peers; do
  "$work/venv/bin/pip" install -q "$peer" || echo "python.sh: no $peer" >&2
done
for peer in $alone; do
  "$work/venv/bin/pip" install -q --no-deps "$peer" || echo "python.sh: no $peer" >&2
done
"$work/venv/bin/python" "$script" "${@:3}" 2> >(grep -vE '^[IW][0-9]{4} ' >&2)
