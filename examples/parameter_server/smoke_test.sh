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
  grep -q 'restart worker 1' out
  grep -q 'ps 1 .*goes on from its snapshot' out
  grep -q 'over shm: connected' out
  grep -q 'over rdma/soft: connected' out
  grep -q 'held-out loss' out
}

check 'workers, asynchronous'
check 'workers, synchronous' --sync
# A job that cannot run exits with an error.
if "$program" --text=/nowhere; then exit 1; fi
if "$program" --no-such-setting=1 --seconds=1; then exit 1; fi
if [[ -s demo_loss.svg ]]; then grep -q 'held out' demo_loss.svg; fi
