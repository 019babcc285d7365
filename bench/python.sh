#!/usr/bin/env bash
# python.sh WHEEL [ARGUMENTS]: bench/python.py with the wheel and its peers from PyPI in a fresh virtual environment.
set -euo pipefail
wheel=$(readlink -f "$1") here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy
"$work/venv/bin/pip" install -q --no-deps "$wheel"
for peer in grpcio pyzmq mpi4py; do
  "$work/venv/bin/pip" install -q "$peer" || echo "python.sh: no $peer" >&2
done
"$work/venv/bin/python" "$here/python.py" "${@:2}" 2> >(grep -vE '^[IW][0-9]{4} ' >&2)
