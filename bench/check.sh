#!/usr/bin/env bash
# bench/check.sh PROGRAM [bench/host.py's flags]: the quick bench against the history. What
# seems slower is measured once more, and is slower if it seems so again. PROGRAM is
# //bench/peers:tryst.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

measure() { # NAME PROGRAM FLAGS...: leaves the verdict and the names of what is slower.
  ./host.py --quick --json "$work/new.json" --tryst "${@:2}" >"$work/table"
  ./compare.py "$work/new.json" history.jsonl >"$work/$1.verdict" || true
  tail -n 1 "$work/$1.verdict" | grep -q ' passed, ' || { cat "$work/$1.verdict"; exit 1; }
  sed -n 's/^SLOWER  //p' "$work/$1.verdict" >"$work/$1.slower"
}

measure first "$@"
if [[ ! -s $work/first.slower ]]; then
  cat "$work/first.verdict"
  exit 0
fi
echo "bench: measuring once more; these seem slower:" >&2
cat "$work/first.slower" >&2
measure second "$@"
slower=$(grep -cxFf "$work/first.slower" "$work/second.slower" || true)
read -r passed _ failed _ skipped _ < <(tail -n 1 "$work/second.verdict")
sed '$d' "$work/second.verdict"
echo "$((passed + failed - slower)) passed, $slower failed, $skipped skipped"
((slower == 0))
