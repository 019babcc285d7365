#!/usr/bin/env bash
# nccl_sockets.sh NCCL_SOURCE OUT.so: makes a plugin of NCCL's own socket transport from a checkout
# of NCCL 2.30, for the suite and the bench (docs/NCCL.md). Needs CUDA's headers, in CUDA_HOME.
set -eu
source=$(realpath "$1") out=$(realpath -m "$2")
cuda=${CUDA_HOME:-/usr/local/cuda}
root=$(realpath "$(dirname "$0")/../../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

number() { sed -n "s/^NCCL_$1 *:= *//p" "$source/makefiles/version.mk"; }
[[ $(number MAJOR).$(number MINOR) == 2.30 ]] ||
  echo "nccl_sockets.sh: written for NCCL 2.30; this is $(number MAJOR).$(number MINOR)" >&2
sed -e "s/\${nccl:Major}/$(number MAJOR)/; s/\${nccl:Minor}/$(number MINOR)/; s/\${nccl:Patch}/$(number PATCH)/" \
  -e "s/\${nccl:Suffix}//; s/\${nccl:Version}/$(number MAJOR)$(printf '%02d%02d' "$(number MINOR)" "$(number PATCH)")/" \
  "$source/src/nccl.h.in" >"$work/nccl.h"
flags=(-std=c++17 -O3 -fPIC -ffunction-sections -fdata-sections -w -DNCCL_OS_LINUX)
for name in transport/net_socket misc/socket misc/utils misc/param os/linux; do
  g++ "${flags[@]}" -I"$work" -I"$source/src/include" -I"$source/src/include/plugin" -I"$cuda/include" \
    -I"$cuda/include/cccl" -c "$source/src/$name.cc" -o "$work/${name##*/}.o"
done
g++ "${flags[@]}" -I"$root" -c "$root/tests/frameworks/nccl_net/nccl_sockets.cc" -o "$work/shim.o"
echo '{ global: ncclNetPlugin_v12; local: *; };' >"$work/exports"
g++ -shared -pthread -Wl,--gc-sections -Wl,--version-script,"$work/exports" -Wl,-z,defs -o "$out" "$work"/*.o -ldl
