#!/usr/bin/env bash
# run.sh WHEEL PLUGINS: our adapters in the packages that others publish on PyPI, in a fresh virtual environment. PLUGINS has
# libplugin_TRYST.so and libtryst.so.1. The last line counts the tests. Without PyPI all counts as one skip.
set -uo pipefail
wheel=$(readlink -f "$1") plugins=$(readlink -f "$2")
root=$(dirname "$(readlink -f "$0")") root=${root%/tests/frameworks/adapters}
nixl="nixl-cu12==1.5.1" lmcache="lmcache==0.5.6"
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
install() { # PACKAGE...: without what it asks for
  timeout 300 "$python" -m pip install -q --no-deps "$@" >"$work/pip.log" 2>&1
}

python=$work/venv/bin/python
python3 -m venv "$work/venv" || exit 1
cd "$work" || exit 1
check "install the wheel" "$python" -m pip install -q --no-index --no-deps "$wheel"
if ! install numpy; then
  skip "adapters" "PyPI cannot be reached: $(tail -n 1 pip.log)"
else
  if install "$nixl"; then
    kit TRYST
    kit TRYST+soft
    # It can tell: UCX has a thread that spins.
    check "the kit finds UCX's target busy" bash -c "'$python' '$root/tests/frameworks/nixl/kit.py' --cases=idle UCX | grep '^wrong'"
  else
    skip "NIXL" "$nixl cannot be installed: $(tail -n 1 pip.log)"
  fi
  if install "$lmcache"; then
    for test in interfaces test_lmcache; do
      check "LMCache's own interface: $test" env ADAPTERS=lmcache "$python" -X faulthandler "$root/tests/frameworks/python/$test.py"
    done
  else
    skip "LMCache" "$lmcache cannot be installed: $(tail -n 1 pip.log)"
  fi
  skip "vLLM and verl" "they need torch, 2 GB of PyPI: ./run test --python has their interfaces as stubs, ADAPTERS=real asks the packages"
fi
if ((failed == 0)); then
  for package in nixl-cu12 lmcache; do
    if version=$("$python" -c "import importlib.metadata as m; print(m.version('$package'))" 2>/dev/null); then
      "$root/tests/release/tried.py" note "$package" "$version" "\`./run test --adapters\`"
    fi
  done
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0 && passed > 0))
