#!/usr/bin/env bash
# What ./run does before it calls Bazel.
set -euo pipefail
run=$(readlink -f run)
failed=0
expect() { # WHAT CODE PATTERN COMMAND...
  local code=0 out
  out=$("${@:4}" 2>&1 </dev/null) || code=$?
  if [[ $code != "$2" || ! $out =~ $3 ]]; then
    echo "$1: exit $code, wanted $2 and /$3/, in: $out"
    failed=1
  fi
}

expect "no verb" 2 'demo' "$run"
expect "unknown verb" 2 'no verb frobnicate' "$run" frobnicate
expect "a function of its own is no verb" 2 'no verb need' "$run" need
expect "no such model" 2 'no model --frobnicate' env TRYST_INSTALL=0 "$run" model --frobnicate
expect "a model" 0 'with all rules: [0-9]+ states, nothing found' env TRYST_INSTALL=0 "$run" model --grant
expect "a model without a rule" 0 'without after: .*' env TRYST_INSTALL=0 "$run" model --grant after
expect "help" 0 'test \[TARGET' "$run" help
expect "--help" 0 'test \[TARGET' "$run" --help
cd /
expect "from another folder" 0 'demo' "$run" help
ln -s "$run" "$TEST_TMPDIR/link"
expect "through a link" 0 'demo' "$TEST_TMPDIR/link" help

# The list names every verb.
while read -r verb; do
  expect "help names $verb" 0 "  $verb " "$run" help
done < <(sed -n 's/^verb_\([a-z]*\)().*/\1/p' "$run" "${run%/run}"/tools/verbs/*.sh)

# A machine that lacks a package and has neither root nor sudo is told what to install.
mkdir "$TEST_TMPDIR/bin"
for tool in bash sed grep readlink dirname cat; do ln -s "$(command -v $tool)" "$TEST_TMPDIR/bin/$tool"; done
printf '#!/bin/sh\nexit 1\n' >"$TEST_TMPDIR/bin/dpkg-query"
chmod +x "$TEST_TMPDIR/bin/dpkg-query"
if ((EUID != 0)); then
  expect "no sudo" 1 'apt-get install --no-install-recommends clang-format' \
    env PATH="$TEST_TMPDIR/bin" bash "$run" format
else
  # As root it calls apt-get at once, without a question and waiting for the lock.
  ln -s /usr/bin/env "$TEST_TMPDIR/bin/env"
  # shellcheck disable=SC2016  # The stub expands it.
  printf '#!/bin/sh\necho "apt-get $*; $DEBIAN_FRONTEND"\nexit 9\n' >"$TEST_TMPDIR/bin/apt-get"
  chmod +x "$TEST_TMPDIR/bin/apt-get"
  expect "root" 9 'installing clang-format.*Timeout=300 install -y --no-install-recommends clang-format; noninteractive' \
    env PATH="$TEST_TMPDIR/bin" bash "$run" format
fi
if env TRYST_INSTALL=0 PATH="$TEST_TMPDIR/bin" bash "$run" format 2>&1 | grep -q installing; then
  echo "TRYST_INSTALL=0 installed something"
  failed=1
fi
exit $failed
