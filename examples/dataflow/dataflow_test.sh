#!/usr/bin/env bash
# The graph that was cut computes what the whole graph does, over either protocol.
set -euo pipefail
program=$1
"$program" | tee "$TEST_TMPDIR/out"
grep -q 'over rdma/soft: connected' "$TEST_TMPDIR/out"
grep -q '^400 signals' "$TEST_TMPDIR/out"
"$program" --protocol=grpc
if "$program" --no-such-setting; then exit 1; fi
