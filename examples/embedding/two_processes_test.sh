#!/usr/bin/env bash
# The consumer gets the tensor of another process, and the producer ends when it is told to.
set -euo pipefail
program=$1
mkfifo "$TEST_TMPDIR/keys"
common=(--listen=127.0.0.1:0 --insecure --open_cluster)
"$program" --job=producer "${common[@]}" <"$TEST_TMPDIR/keys" >"$TEST_TMPDIR/producer" &
producer=$!
exec 3>"$TEST_TMPDIR/keys"
until where=$(grep '^/job:producer.*@' "$TEST_TMPDIR/producer"); do
  kill -0 "$producer"
  sleep 0.05
done
"$program" --job=consumer --join="$where" "${common[@]}" | tee "$TEST_TMPDIR/consumer"
echo >&3
wait "$producer"
grep -q '^1048576 floats, the last one is 1.04858e+06' "$TEST_TMPDIR/consumer"
