#!/usr/bin/env bash
# TensorFlow from PyPI over this tree's wheel of tryst: ./run test --tensorflow, ./run bench tensorflow.
#
#   run.sh --venv                     TensorFlow alone: exits with 77 where it cannot be had
#   run.sh WHEEL test [NAME...]       every *_test.py here, or rendezvous_test and so on, a few minutes
#   run.sh WHEEL SCRIPT [ARGS...]     a script with that TensorFlow
#
# TRYST_TENSORFLOW=2.20.0 takes another release. TensorFlow stands in a venv beside Bazel's outputs.
set -euo pipefail
wheel=$1
if [[ $wheel != --venv ]]; then wheel=$(readlink -f "$wheel"); fi
shift
cd "$(dirname "$(readlink -f "$0")")/../../.."
release=${TRYST_TENSORFLOW:-2.21.0}
failed() {
  echo "FAILED  TensorFlow: $1"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
}

venv=${TRYST_OUTPUT_USER_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tryst}/tensorflow-$release
python=$venv/bin/python
if [[ ! -e $venv/ready ]]; then
  python3 -m venv "$venv" || failed "python3 -m venv does not work (python3-venv)"
  timeout 400 "$python" -m pip install --quiet --timeout 60 "tensorflow-cpu==$release" ||
    {
      echo "SKIPPED TensorFlow: tensorflow-cpu $release cannot be had from PyPI"
      echo "0 passed, 0 failed, 1 skipped"
      exit 77
    }
  touch "$venv/ready"
fi
if [[ $wheel == --venv ]]; then exit; fi
"$python" -m pip install --quiet --no-index --no-deps --force-reinstall "$wheel" || failed "the wheel does not install"
# Tests what users have, and no other library or plug-in that is around.
unset TRYST_LIBRARY TRYST_TENSORFLOW_PLUGIN
export PYTHONPATH=$PWD/tools TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-1} PYTHONDONTWRITEBYTECODE=1
built=$("$python" -m tryst.tensorflow.build "$venv/plugin") || failed "the plug-in does not build"
export TRYST_TENSORFLOW_PLUGIN=$built
if [[ $1 != test ]]; then exec "$python" "$@"; fi
"$python" tests/frameworks/tensorflow/lane.py "${@:2}"
tests/release/tried.py note tensorflow-cpu "$release" "\`./run test --tensorflow\`"
