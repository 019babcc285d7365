#!/bin/bash
# Without an RDMA NIC beside a GPU, the check must say why it cannot run, and must not pass as if
# nothing were wrong.
set -u
said=$("$1") && code=0 || code=$?
echo "$said"
if ((code == 3)); then
  [[ $said == "GPUDirect RDMA cannot be checked here: "* && ${#said} -gt 60 ]] || exit 1
elif ((code > 1)); then
  echo "unexpected exit status $code" >&2
  exit 1
fi
"$1" --flush=maybe 2>/dev/null && exit 1
exit 0
