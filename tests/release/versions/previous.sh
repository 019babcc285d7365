#!/usr/bin/env bash
# Workers of this tree and of the last release fetch from each other, on every path, and programs that were linked with that
# release's libtryst.so.1 find in today's what they knew: ./run test --previous.
#
#   previous.sh PEER LIBRARY FLAG...    PEER is //tests/release/versions:peer of this tree, LIBRARY its //server/c:libtryst.so.1, built with
#                                       FLAGs, and with debug information for server/c
#
# CHANGELOG.md names that release's commit, because a clone may lack tags. Its tree is exported beside Bazel's outputs, and
# today's peer.cc is built in it.
set -euo pipefail
peer=$(readlink -f "$1") library=$(readlink -f "$2") library_flags=("${@:3}")
cd "$(dirname "$(readlink -f "$0")")/../../.."
read -r version commit <<<"$(awk '/^## / { version = $2 } /^Commit [0-9a-f]+\.$/ { print version, substr($2, 1, 40); exit }' CHANGELOG.md)"
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
  echo "SKIPPED: workers of the last release: this clone lacks commit $commit of $version (git fetch --unshallow)"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi

tree=${TRYST_OUTPUT_USER_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tryst}/previous/$commit
if [[ ! -d $tree ]]; then
  mkdir -p "$(dirname "$tree")"
  fresh=$(mktemp -d "$tree.XXXXXX")
  git archive "$commit" | tar -x -C "$fresh"
  mv "$fresh" "$tree"
fi
mkdir -p "$tree/tests/release/versions"
cp tests/release/versions/BUILD tests/release/versions/peer.cc "$tree/tests/release/versions/"

read -ra bazel <<<"${TRYST_BAZEL:-bazel}"
read -ra flags <<<"${TRYST_BAZEL_FLAGS:-}"
in_tree() { (cd "$tree" && "${bazel[@]}" "$1" "${flags[@]}" "${@:2}" </dev/null); }
echo "=== $version at $commit"
if ! in_tree build //tests/release/versions:peer; then
  # A compiler newer than that release has more warnings.
  flags+=('--per_file_copt=.*@-Wno-error')
  if ! in_tree build //tests/release/versions:peer; then
    echo "FAILED  peer.cc does not build in the tree of $version"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
  fi
fi
old=$(in_tree info bazel-bin 2>/dev/null)/tests/release/versions/peer
if ! command -v abidiff >/dev/null; then
  echo "SKIPPED: libtryst.so.1 beside that of $version: no abidiff here"
elif ! in_tree build "${library_flags[@]}" //server/c:libtryst.so.1; then
  echo "FAILED  libtryst.so.1 does not build in the tree of $version"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
else
  # What the headers leave open is ours to change, and what is new harms nobody.
  abi=0
  abidiff --drop-private-types --headers-dir1 "$tree/server/c" --headers-dir2 server/c --no-added-syms \
    "$(in_tree info "${library_flags[@]}" bazel-bin 2>/dev/null)/server/c/libtryst.so.1" "$library" || abi=$?
  if ((abi != 0)); then
    echo "FAILED  abidiff ended with $abi: a program linked with libtryst.so.1 of $version may not run with this one"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
  fi
  tests/release/tried.py note "libtryst.so.1 of Tryst" "$version" "\`./run test --previous\`: abidiff"
  echo "abidiff: libtryst.so.1 has all that it had in $version"
fi
(cd "$tree" && "${bazel[@]}" shutdown </dev/null) # Its memory is needed for the workers.
echo "built after $SECONDS s"
code=0
python3 tests/release/versions/versions.py "$old" "$peer" || code=$?
if ((code == 0)); then tests/release/tried.py note "workers of Tryst" "$version" "\`./run test --previous\`: shm, rdma/soft, grpc"; fi
exit $code
