#!/usr/bin/env bash
# suite_test.sh SUITE OURS PLAIN: our plugin passes over the software NIC, and so does an
# independent plugin. Each fault that is put into that one is found by the case for it.
set -u
suite=$1 ours=$2 plain=$3
code=0

export TRYST_NCCL_NIC=soft
"$suite" --strict --kills=2 --named=pid "$ours" || code=1
TRYST_NCCL_THREADS=2 "$suite" --only='sizes|large|many_out.*|groups.*|threads|in_flight_close|kill_.*' --kills=1 "$ours" || code=1
for version in 6 7 8 9 10 11; do
  "$suite" --version=$version --only='zero_bytes|small_into_large|many_out' "$ours" || code=1
done

"$suite" --kills=1 "$plain" || code=1
finds() { # FAULT CASE
  if PLAIN_TCP_FAULT=$1 "$suite" --limit=30 --kills=1 --only="$2" "$plain" >"$TEST_TMPDIR/out"; then
    echo "the fault $1 is not found by $2:"
    cat "$TEST_TMPDIR/out"
    code=1
  else
    echo "$2 finds the fault $1"
  fi
}
finds tail sizes
finds size small_into_large
finds deaf kill_sender
finds blocks never_blocks
finds early 'many_out.*|large|late_receive|sizes'
exit $code
