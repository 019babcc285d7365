#!/bin/bash
# gather_ptx.h is what nvcc makes of gather.cu, apart from .version and comments.
set -eu
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
if ! "$nvcc" --version | grep -q 'release 13\.0'; then
  echo "skipped: other releases of nvcc write other PTX"
  exit 0
fi
plain() { sed -e '/^\s*\/\//d' -e '/^$/d' -e '/^\.version/d'; }
"$nvcc" -ptx -O3 -arch=compute_75 -std=c++17 -I. -o "$TEST_TMPDIR/made.ptx" gpu/gather.cu
sed -e '1,/R"ptx(/d' -e '/^)ptx"/,$d' gpu/gather_ptx.h | plain >"$TEST_TMPDIR/embedded"
plain <"$TEST_TMPDIR/made.ptx" >"$TEST_TMPDIR/made"
diff "$TEST_TMPDIR/embedded" "$TEST_TMPDIR/made"
[ "$(wc -l <"$TEST_TMPDIR/made")" -gt 100 ]
