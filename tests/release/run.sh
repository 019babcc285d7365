#!/usr/bin/env bash
# run.sh [--quick] [--twice] [--for=PROCESSOR ...] [SUITE...]: makes a release with a key of its own, checks that its parts fit together, and
# tries it in other systems: ./run test --release. --twice has it made twice and compared byte by byte, --quick tries no other system.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.." || exit 1
once=(--once) processors=() quick=no suites=()
for argument; do
  case $argument in
    --quick) quick=yes ;;
    --twice) once=() ;;
    --for=*) processors+=("$argument") ;;
    *) suites+=("$argument") ;;
  esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ssh-keygen -q -t ed25519 -N '' -C '' -f "$work/key" || exit 1
passed=0 failed=0 skipped=0
count() { # CODE COMMAND's log: adds its closing line, or a failure.
  local p f s
  if read -r p _ f _ s _ < <(grep -xE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$2" | tail -n 1); then
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  fi
  if (($1 != 0)) && [[ ${f:-0} == 0 ]]; then failed=$((failed + 1)); fi
  grep -vxE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$2"
}
if ! ./run release "${once[@]}" "${processors[@]}" --trial --key "$work/key"; then
  echo "FAILED  ./run release"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi
code=0
tests/release/check.py out/release "$work/key.pub" >"$work/log" 2>&1 || code=$?
count $code "$work/log"
if [[ $quick == no ]]; then
  code=0
  tar -xzf out/release/tryst-nccl-*-"linux-$(uname -m)".tar.gz -C "$work" --strip-components=1
  tests/release/systems.sh out/release/*"$(uname -m)".whl out/release/tryst-c-*-"linux-$(uname -m)".tar.gz \
    "$work/libnccl-net-tryst.so" "${suites[@]}" >"$work/log" 2>&1 || code=$?
  count $code "$work/log"
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
