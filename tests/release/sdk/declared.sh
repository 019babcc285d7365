# shellcheck shell=bash
# Sourced by the tests of both libraries.

exports_what_is_declared() { # LIBRARY INCLUDE: the C interface is exactly what its headers declare, each in its version.
  local version header declared exported
  for version in 0 1; do
    header=$2/tryst.h
    if [ "$version" = 1 ]; then header=$2/tryst_v1.h; fi
    declared=$(grep -ohE '\btryst_[a-z0-9_]+\(' "$header" | tr -d '(' | sort -u)
    exported=$(nm -D --defined-only "$1" | awk '{ print $NF }' | sed -n "s/@@TRYST_$version\$//p" | grep -v "^TRYST_$version\$" | sort -u)
    [ -n "$declared" ] || { echo "$header declares nothing"; return 1; }
    diff <(echo "$declared") <(echo "$exported") || { echo "version $version: < declared, > exported by $1"; return 1; }
  done
}
