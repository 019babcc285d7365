#!/usr/bin/env bash
# Workers of this tree and of the last release fetch from each other, on every path: ./run test
# --previous.
#
#   previous.sh PEER    PEER is //tests/versions:peer of this tree
#
# The file previous_release names that release's tag and commit, because a clone may lack tags. Its
# tree is exported beside Bazel's outputs, and today's peer.cc is built in it.
set -euo pipefail
peer=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "$0")")/../.."
read -r tag commit <tests/versions/previous_release
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
  echo "SKIPPED: workers of the last release: this clone lacks commit $commit of $tag (git fetch --unshallow)"
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
mkdir -p "$tree/tests/versions"
cp tests/versions/BUILD tests/versions/peer.cc "$tree/tests/versions/"

read -ra bazel <<<"${TRYST_BAZEL:-bazel}"
read -ra flags <<<"${TRYST_BAZEL_FLAGS:-}"
in_tree() { (cd "$tree" && "${bazel[@]}" "$1" "${flags[@]}" "${@:2}" </dev/null); }
echo "=== $tag at $commit"
if ! in_tree build //tests/versions:peer; then
  # A compiler newer than that release has more warnings.
  flags+=('--per_file_copt=.*@-Wno-error')
  if ! in_tree build //tests/versions:peer; then
    echo "FAILED  peer.cc does not build in the tree of $tag"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
  fi
fi
old=$(in_tree info bazel-bin 2>/dev/null)/tests/versions/peer
(cd "$tree" && "${bazel[@]}" shutdown </dev/null) # Its memory is needed for the workers.
echo "built after $SECONDS s"
exec python3 tests/versions/versions.py "$old" "$peer"
