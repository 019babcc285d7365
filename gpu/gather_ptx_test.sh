#!/bin/bash
# gather.ptx is what nvcc makes of gather.cu, apart from .version and comments.
set -eu
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
if ! "$nvcc" --version | grep -q 'release 13\.0'; then
  echo "skipped: other releases of nvcc write other PTX"
  exit 0
fi
plain() { sed -e '/^\s*\/\//d' -e '/^$/d' -e '/^\.version/d'; }
"$nvcc" -ptx -O3 -arch=compute_75 -std=c++17 -I. -o "$TEST_TMPDIR/made.ptx" gpu/gather.cu
plain <gpu/gather.ptx >"$TEST_TMPDIR/kept"
plain <"$TEST_TMPDIR/made.ptx" >"$TEST_TMPDIR/made"
diff "$TEST_TMPDIR/kept" "$TEST_TMPDIR/made"
[ "$(wc -l <"$TEST_TMPDIR/made")" -gt 100 ]
