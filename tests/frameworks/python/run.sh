#!/usr/bin/env bash
# run.sh WHEEL BIN [--with=PACKAGES]: tests the wheel file in a fresh virtual environment, started
# in an unrelated folder, and tests the C library beside the gRPC and Protobuf of PyPI. BIN is
# Bazel's bin folder. jax, ray and uvloop are installed unless --with= says otherwise; --with=torch takes
# long. The adapters to others' programs run over stubs.py. The last line counts the tests. Without PyPI the script counts a skip and runs only what
# needs no package.
set -uo pipefail
wheel=$(readlink -f "$1") bin=$(readlink -f "$2")
library=$bin/server/c/libtryst.so.1
here=$(dirname "$(readlink -f "$0")")
root=${here%/tests/frameworks/python}
extra="jax ray uvloop"
if [[ ${3:-} == --with=* ]]; then extra=${3#--with=}; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
check() { # NAME COMMAND...
  if timeout 600 "${@:2}" </dev/null >"$work/log" 2>&1; then
    passed=$((passed + 1))
    echo "PASSED  $1"
    grep -E '^[0-9]+ (rounds|programs|gradients|tasks)|^import tryst|tensors each way|following tag|^[0-9]+ MiB|^device fetches|skipped=[0-9]|instructions an array|^[0-9]+ of [0-9]+ answers|^(rolling|barrier): the loop' "$work/log"
  else
    failed=$((failed + 1))
    echo "FAILED  $1"
    tail -n 60 "$work/log"
  fi
}
skip() {
  skipped=$((skipped + 1))
  echo "SKIPPED $1: $2"
}

python=$work/venv/bin/python
python3 -m venv "$work/venv" || exit 1
cd "$work" || exit 1
check "install the wheel alone" "$python" -m pip install -q --no-index --no-deps "$wheel"
check "import" "$python" -c 'import tryst; print(tryst.__version__)'
size=$(stat -c %s "$wheel")
check "the wheel has 9.5 MB at most" test "$size" -le 9500000
check "two processes" "$python" "$root/tests/release/two_processes.py"
check "the examples in C from their archive" "$root/tests/release/sdk/self_contained.sh" "$bin/sdk_c.tar.gz"
if timeout 300 "$python" -m pip install -q -r "$root/python/requirements.txt" auditwheel abi3audit ziglang >pip.log 2>&1; then
  # It names the oldest tag that the wheel could have.
  check "auditwheel" bash -c "set -o pipefail; '$python' -m auditwheel show '$wheel' | tr '\n' ' ' | grep -E 'platform tag: \"manylinux_2_(1[0-9]|2[0-8])_'"
  # Zig knows which symbol of glibc 2.28 was in which of its libraries; its linker refuses a library that finds one nowhere.
  echo 'int main(void) { return 0; }' >main.c
  check "nothing that glibc 2.28 lacks" "$python" -m ziglang cc -target "$(uname -m)-linux-gnu.2.28" main.c "$library" -o main
  check "abi3audit" "$work/venv/bin/abi3audit" --strict "$wheel"
  for package in $extra; do
    if ! timeout 300 "$python" -m pip install -q "$package" >pip.log 2>&1; then
      skip "tests with $package" "it cannot be installed: $(tail -n 1 pip.log)"
    fi
  done
  for group in Values Waiting Asyncio Plans Memory Frameworks Devices Settings Processes Documentation; do
    check "$group" "$python" -X faulthandler "$here/test_tryst.py" "$group"
  done
  check "selections, groups and regions" "$python" -X faulthandler "$here/test_selections.py"
  check "LMCache's transfer channel over stubs, a peer killed" "$python" -X faulthandler "$here/test_lmcache.py"
  check "weights" "$python" -X faulthandler "$here/test_weights.py"
  if "$python" -c "import torch" 2>pip.log; then
    check "weights of torch" "$python" -X faulthandler "$here/test_torch_weights.py"
  else
    check "boxes of torch's placements" "$python" "$here/test_torch_weights.py" Boxes
    skip "weights of torch" "no torch"
  fi
  check "vLLM's KV connector over stubs, an engine killed" "$python" -X faulthandler "$here/test_vllm_kv.py"
  check "vLLM's engines over stubs, processes killed" "$python" -X faulthandler "$here/test_vllm.py"
  check "weights between four processes" "$python" "$root/bench/weights.py" --quick
  check "what has changed of weights" "$python" "$root/bench/weights_delta.py" --quick
  check "the interfaces of vLLM, verl and LMCache, as stubs" "$python" "$here/interfaces.py"
  check "verl's checkpoint engine over stubs, an actor killed" "$python" -X faulthandler "$here/test_verl.py"
  if command -v valgrind >/dev/null; then
    check "instructions an array" "$python" "$root/bench/python_counts.py" --check
  else
    skip "instructions an array" "no valgrind"
  fi
  check "the programs of the documents" "$python" "$here/documents.py" "$root/README.md" "$root/python/README.md"
  check "the programs of the tutorials" "$python" "$here/tutorials.py"
  check "the tour" "$python" "$root/examples/python/page.py" "$root/examples/python/tour.py" "$work/tour.md"
  check "gradients by hand" "$python" "$root/examples/weights/model.py"
  check "trainers and engines, some killed" "$python" "$root/examples/weights/train.py" --seconds=10 --svg="$work/weights.svg"
  mkdir driver
  ln -s "$bin/tests/doubles/cuda/libfake_cuda.so" driver/libcuda.so.1
  check "device tensors over a pretend driver" env LD_LIBRARY_PATH="$work/driver" "$python" "$here/test_cuda.py"
  for order in "tryst grpcio" "grpcio tryst" "global:grpcio tryst" "global:tryst grpcio"; do
    # shellcheck disable=SC2086  # Words.
    check "one process: $order" "$python" "$here/coexist.py" "$library" $order
  done
  check "parameter server, a worker killed" "$python" -m tryst demo --turns 30
  if "$python" -c "import ray" 2>pip.log; then
    check "Ray's actors, one killed" "$python" "$here/test_ray.py"
    check "parameter server of Ray's actors" "$python" "$root/examples/ray/parameter_server.py" --rounds 3
  else
    skip "parameter server of Ray's actors" "no ray"
  fi
else
  tail -n 2 pip.log
  skip "tests with numpy, grpcio, auditwheel" "PyPI cannot be reached"
fi
if ((failed == 0)); then
  note() { "$root/tests/release/tried.py" note "$1" "$2" "\`./run test --python\`"; }
  note CPython "$("$python" -c 'import platform; print(platform.python_version())')"
  for package in numpy ml_dtypes grpcio protobuf jax ray torch uvloop auditwheel abi3audit ziglang; do
    if version=$("$python" -c "import importlib.metadata as m; print(m.version('$package'))" 2>/dev/null); then note "$package" "$version"; fi
  done
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0 && passed > 0))
