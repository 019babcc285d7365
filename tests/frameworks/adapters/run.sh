#!/usr/bin/env bash
# run.sh WHEEL [nixl|lmcache|vllm ...]: our adapters in the packages that others publish on PyPI, in a fresh virtual environment; or
# in those that are named. The last line counts the tests. Without PyPI all counts as one skip.
set -uo pipefail
wheel=$(readlink -f "$1")
root=$(dirname "$(readlink -f "$0")") root=${root%/tests/frameworks/adapters}
nixl="nixl-cu12==1.5.1" lmcache="lmcache==0.5.6" vllm="vllm==0.33.0"
named=" ${*:2} "
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
skip() {
  skipped=$((skipped + 1))
  echo "SKIPPED $1: $2"
}
check() { # NAME COMMAND...
  if timeout 600 "${@:2}" </dev/null >"$work/log" 2>&1; then
    passed=$((passed + 1))
    echo "PASSED  $1"
  else
    failed=$((failed + 1))
    echo "FAILED  $1"
    tail -n 60 "$work/log"
  fi
}
kit() { # SYSTEM: each case counts.
  local what system rest died=yes
  while read -r what system rest; do
    case $what in
      right | refused) passed=$((passed + 1)) ;;
      wrong) failed=$((failed + 1)) ;;
      unknown) skip "NIXL: $rest" "it did not come to it" && continue ;;
      [0-9]*) died=no ;;
    esac
    echo "$what $system $rest"
  done < <(timeout 900 "$python" "$root/tests/frameworks/nixl/kit.py" "--plugins=$plugins" "$1" </dev/null)
  if [[ $died == yes ]]; then
    failed=$((failed + 1))
    echo "FAILED  the kit over $1 did not end"
  fi
}
own() { # CHANNEL: each of LMCache's own tests counts, over ours and over NIXL's, which shows that they can run here.
  local line
  line=$(timeout 300 "$python" -X faulthandler "$root/tests/frameworks/adapters/lmcache_own.py" "$work/sources/${lmcache/==/-}" "$1" \
    </dev/null 2>&1 | tee "$work/log" | tail -n 1)
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
    echo "LMCache's own tests of its transfer channels over $1: $line"
    if ((BASH_REMATCH[2] > 0)); then tail -n 60 "$work/log"; fi
  else
    failed=$((failed + 1))
    echo "FAILED  LMCache's own tests over $1 did not end"
    tail -n 60 "$work/log"
  fi
}
wants() { # NAME
  [[ $named == "  " || $named == *" $1 "* ]]
}
install() { # PACKAGE...: without what it asks for
  timeout 300 "$python" -m pip install -q --no-deps "$@" >"$work/pip.log" 2>&1
}
unpack() { # WHEEL: what is not a shared library
  "$python" - "$1" <<'END' >>pip.log 2>&1
import sys, sysconfig, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sysconfig.get_path("purelib"), [name for name in wheel.namelist() if not name.endswith(".so")])
END
}

python=$work/venv/bin/python
python3 -m venv "$work/venv" || exit 1
cd "$work" || exit 1
check "install the wheel" "$python" -m pip install -q --no-index --no-deps "$wheel"
plugins=$("$python" -m tryst.nixl)
if ! install numpy; then
  skip "adapters" "PyPI cannot be reached: $(tail -n 1 pip.log)"
else
  if ! wants nixl; then
    :
  elif install "$nixl"; then
    check "NIXL's virtual functions are where abi.h has them" "$python" "$root/tests/frameworks/nixl/vtable.py" \
      "$work"/venv/lib/python*/site-packages/nixl_cu12.libs/nixl/libplugin_UCX.so
    kit TRYST
    kit TRYST+soft
    # It can tell: UCX has a thread that spins.
    check "the kit finds UCX's target busy" bash -c "'$python' '$root/tests/frameworks/nixl/kit.py' --cases=idle UCX | grep '^wrong'"
  else
    skip "NIXL" "$nixl cannot be installed: $(tail -n 1 pip.log)"
  fi
  if ! wants lmcache; then
    :
  elif install "$lmcache"; then
    for test in interfaces test_lmcache; do
      check "LMCache's own interface: $test" env ADAPTERS=lmcache "$python" -X faulthandler "$root/tests/frameworks/python/$test.py"
    done
    # pip asks the sources for their name, which takes what would build them, but for torch.
    if install "setuptools>=77,<81" setuptools_scm vcs-versioning packaging wheel pytest iniconfig pluggy pygments msgspec pyzmq "${nixl/-cu12/}" &&
      NO_CUDA_EXT=1 NO_NATIVE_EXT=1 NO_GPU_EXT=1 timeout 300 "$python" -m pip download -q --no-deps --no-build-isolation --no-binary lmcache \
        -d sources "$lmcache" >pip.log 2>&1 && tar -xzf "sources/${lmcache/==/-}.tar.gz" -C sources; then
      own nixl
      own tryst
      check "LMCache's own benchmark" "$python" "$root/tests/frameworks/adapters/lmcache_bench.py" --turns=1
      tail -n 1 log
    else
      skip "LMCache's own tests" "its source package cannot be had: $(tail -n 1 pip.log)"
    fi
  else
    skip "LMCache" "$lmcache cannot be installed: $(tail -n 1 pip.log)"
  fi
  # Its shared libraries are for GPUs, and nothing here loads them.
  if ! wants vllm; then
    :
  elif timeout 300 "$python" -m pip download -q --no-deps -d wheels "$vllm" >pip.log 2>&1 && unpack wheels/vllm-*.whl &&
    timeout 300 "$python" -m pip install -q pydantic cbor2 >pip.log 2>&1; then
    for test in interfaces test_vllm_kv test_vllm; do
      check "vLLM's own interface: $test" env ADAPTERS=vllm "$python" -X faulthandler "$root/tests/frameworks/python/$test.py"
    done
    skip "vLLM's engine, verl" "they need torch, 3 GB of PyPI with CUDA's libraries: ADAPTERS=real asks them where they are installed"
  else
    skip "vLLM" "$vllm cannot be installed: $(tail -n 1 pip.log)"
  fi
fi
if ((failed == 0)); then
  for package in nixl-cu12 lmcache vllm; do
    if version=$("$python" -c "import importlib.metadata as m; print(m.version('$package'))" 2>/dev/null); then
      "$root/tests/release/tried.py" note "$package" "$version" "\`./run test --adapters\`"
    fi
  done
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0 && passed > 0))
