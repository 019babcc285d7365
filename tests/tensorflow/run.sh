#!/usr/bin/env bash
# TensorFlow from PyPI over this tree's libtryst: ./run test --tensorflow, ./run bench tensorflow.
#
#   run.sh LIBRARY test                 every *_test.py here and the example, a few minutes
#   run.sh LIBRARY SCRIPT [ARGS...]     a script with that TensorFlow
#
# TRYST_TENSORFLOW=2.20.0 takes another release. TensorFlow stands in a venv beside Bazel's outputs.
set -euo pipefail
TRYST_LIBRARY=$(readlink -f "$1")
shift
cd "$(dirname "$(readlink -f "$0")")/../.."
release=${TRYST_TENSORFLOW:-2.21.0}
skip() {
  echo "SKIPPED: TensorFlow: $*"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

venv=${TRYST_OUTPUT_USER_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tryst}/tensorflow-$release
python=$venv/bin/python
if [[ ! -e $venv/ready ]]; then
  python3 -m venv "$venv" || skip "python3 -m venv does not work (python3-venv)"
  "$python" -m pip install --quiet --timeout 60 "tensorflow-cpu==$release" ||
    skip "tensorflow-cpu $release cannot be had from PyPI"
  touch "$venv/ready"
fi
export TRYST_LIBRARY PYTHONPATH=$PWD/python:$PWD/tools TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-1}
export PYTHONDONTWRITEBYTECODE=1
if [[ $1 != test ]]; then exec "$python" "$@"; fi

"$python" -m tryst.tensorflow.build || { echo "FAILED  the plug-in does not build"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
exec "$python" tests/tensorflow/lane.py
