#!/usr/bin/env bash
# Small jobs of real processes learn in both modes. A worker and a parameter server are killed
# meanwhile. Each job must end well, must have learnt, and must have said what happened.
set -euo pipefail
program=$PWD/$1
cd "$TEST_TMPDIR"

check() { # SAYS FLAG...
  local says=$1
  shift
  "$program" --workers=3 --seconds=5 --kill-worker=1.5 --kill-ps=3 "$@" | tee out
  grep -q "$says" out
  grep -q 'we start worker 1 again' out
  grep -q 'worker 1 is back at work with all its peers' out
  grep -q 'ps 1: goes on from its snapshot' out
  grep -qE '^worker 0 +ps 0, ps 1 +shared memory +same host, proved' out
  grep -qE '^worker 1 +ps 0, ps 1 +RDMA, software NIC +started without shared memory' out
  grep -qE '^worker 2 +ps 0, ps 1 +gRPC +started with gRPC alone' out
  grep -q 'It learnt' out
  grep -q '^Next:' out
}

check 'asynchronous'
# Each connection is one row of the table, and only --verbose says more of it.
if grep -q 'measured:' out || (($(wc -l <out) > 45)); then exit 1; fi
check 'synchronous' --sync --verbose
grep -q 'over shm: connected' out
grep -q 'over rdma/soft: connected' out
grep -q 'process [0-9]* at 127.0.0.1:' out
# A job that cannot run exits with an error.
if "$program" --text=/nowhere; then exit 1; fi
if "$program" --no-such-setting=1 --seconds=1; then exit 1; fi
if [[ -s demo_loss.svg ]]; then grep -q 'held out' demo_loss.svg; fi
