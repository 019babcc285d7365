#!/bin/bash
# device_spans BENCH DRIVER: two processes and the pretend GPUs. The bench checks the bytes by itself.
set -eu
run() { timeout 100 "$1" --cuda="$2" --quick "${@:3}"; }
run "$1" "$2" --gpus=0,1 >"$TEST_TMPDIR/ipc"
run "$1" "$2" --gpus=0,1 --staged --shm=off >"$TEST_TMPDIR/staged"
run "$1" no-such-driver.so >"$TEST_TMPDIR/skipped"
cat "$TEST_TMPDIR"/*
for way in ipc staged; do
  [ "$(grep -c '"gathered_us_a_span"' "$TEST_TMPDIR/$way")" = 5 ]
  grep -q '"fetch_box_into_a_gpu"' "$TEST_TMPDIR/$way"
done
grep -q '^skipped: ' "$TEST_TMPDIR/skipped"
