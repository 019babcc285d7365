#!/usr/bin/env bash
# The bytes arrive over either protocol, and a run that cannot start exits with an error.
set -euo pipefail
program=$1
"$program" | tee "$TEST_TMPDIR/out"
grep -q 'over rdma/soft: connected' "$TEST_TMPDIR/out"
[[ $(grep -c 'all equal' "$TEST_TMPDIR/out") == 3 ]]
"$program" --protocol=grpc | tee "$TEST_TMPDIR/out"
grep -q 'over grpc/stream: connected' "$TEST_TMPDIR/out"
[[ $(grep -c 'all equal' "$TEST_TMPDIR/out") == 3 ]]
if "$program" --no-such-setting; then exit 1; fi
