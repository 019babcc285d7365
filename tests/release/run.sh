#!/usr/bin/env bash
# run.sh [SUITE...]: makes a release once, with a key of its own, checks that its parts fit together, and tries it in other systems:
# ./run test --release.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ssh-keygen -q -t ed25519 -N '' -C '' -f "$work/key" || exit 1
if ! ./run release --once --trial --key "$work/key" || ! tests/release/check.py out/release "$work/key.pub"; then
  echo "FAILED  ./run release, or what it made"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi
code=0
tests/release/systems.sh out/release/*"$(uname -m)".whl out/release/tryst-c-*-"linux-$(uname -m)".tar.gz "$@" >"$work/log" 2>&1 || code=$?
sed '$d' "$work/log"
read -r passed _ failed _ skipped _ <<<"$(tail -n 1 "$work/log")"
echo "$((passed + 1)) passed, $failed failed, $skipped skipped"
exit "$code"
