#!/bin/bash
# device_bench BENCH DRIVER: two processes and the pretend GPUs, one each. The bench checks the
# bytes, the leases and the ends by itself.
set -eu
run() { timeout 60 "$1" --cuda="$2" --quick --gpus=0,1 --over=shm --spin_us=20 "${@:3}"; }
run "$1" "$2" --way=ipc --standby_us=1000000 --what=visible,views,chunks,counts,kill >"$TEST_TMPDIR/ipc"
run "$1" "$2" --way=staged --what=visible,chunks,kill >"$TEST_TMPDIR/staged"
cat "$TEST_TMPDIR/ipc" "$TEST_TMPDIR/staged"
grep -q '"views_held".*"value":8,' "$TEST_TMPDIR/ipc"
grep -q '"visible_rounds".*"value":200,' "$TEST_TMPDIR/ipc"
grep -q '"kill_orphans_released_after"' "$TEST_TMPDIR/staged"
grep -q '"chunks_rounds".*"value":40,' "$TEST_TMPDIR/ipc"
grep -q '"chunks_rounds".*"value":40,' "$TEST_TMPDIR/staged"
# For a pull that recurs the producer asks the driver once what its memory is, and makes nothing.
# (A pull may end just before or after the count.)
grep -Eq '"calls_a_pull_producer_cuPointerGetAttribute".*"value":(0[.]9[0-9]*|1([.]0[0-9]*)?),' "$TEST_TMPDIR/ipc"
if grep -E '"calls_a_pull_producer_(cuMemGetAddressRange|cuIpc|cuEventCreate|cuLaunch)' "$TEST_TMPDIR/ipc"; then exit 1; fi
