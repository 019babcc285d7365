#!/usr/bin/env bash
# tools/bazel decides where warnings are errors. Tried with a bazel that prints its arguments, and a
# g++ of any version.
set -euo pipefail
wrapper=$PWD/tools/bazel
cd "$TEST_TMPDIR"
mkdir bin
# shellcheck disable=SC2016  # The stubs expand it.
printf '#!/bin/sh\necho "$@"\n' >bin/bazel-real
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "$AGE"\n' >bin/g++
chmod +x bin/*
failed=0
expect() { # WHAT WANTED VARIABLES...
  local said
  said=$(env -u TRYST_WERROR -u CXX PATH="$TEST_TMPDIR/bin:$PATH" BAZEL_REAL=bazel-real "${@:3}" "$wrapper" build //a)
  if [[ $said != "$2" ]]; then
    echo "$1: wanted '$2', got '$said'"
    failed=1
  fi
}
strict="--bazelrc=$(dirname "$wrapper")/werror.bazelrc build //a"
expect "a newer compiler" "build //a" AGE=14
expect "an older compiler" "build //a" AGE=11
expect "no compiler" "build //a" CXX=none-here
expect "whoever asks for it" "$strict" AGE=14 TRYST_WERROR=1
expect "whoever does not want it" "build //a" AGE=12 TRYST_WERROR=0
# shellcheck disable=SC1091
if [[ $(. /etc/os-release && echo "$ID $VERSION_ID") == "debian 12" ]]; then
  expect "CI's machine" "$strict" AGE=12
else
  expect "CI's compiler on another system" "build //a" AGE=12
fi
[[ $(BAZEL_REAL="$PWD/bin/bazel-real" TRYST_WERROR=1 "$wrapper" --version) == --version ]] || failed=1
grep -q '^build --per_file_copt=.*@-Werror$' "$(dirname "$wrapper")/werror.bazelrc" || failed=1
exit $failed
