#!/usr/bin/env bash
# bench/check.sh PROGRAM INSTRUCTIONS [bench/host.py's flags]: counts that may not grow, and times,
# which say as much of the machine as of us and so are only reported. PROGRAM is //bench/peers:tryst,
# INSTRUCTIONS //bench:instructions.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$1 instructions=$2
shift 2

./host.py --quick --json "$work/new.json" --tryst "$program" "$@" >"$work/table"
./compare.py "$work/new.json" history.jsonl | sed '$d' || true
echo "times are reported; what follows decides"
../tests/tidy/build_costs.py --check ../docs/COSTS.md
./instructions.py "$instructions" --check
