#!/usr/bin/env bash
# suite_ofi_test.sh SUITE OURS: our plugin passes over libfabric, too.
set -u
suite=$1 ours=$2
code=0
export TRYST_NCCL_NIC=ofi:tcp
"$suite" --strict --kills=1 --named=pid "$ours" || code=1
TRYST_NCCL_THREADS=2 "$suite" --only='sizes|many_out.*|groups.*|in_flight_close|kill_.*' --kills=1 "$ours" || code=1
exit $code
