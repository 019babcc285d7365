#!/usr/bin/env bash
# soft_wire.sh FAULT_STORM [--minutes N] [ARGS...]: a storm over the software NIC, between two
# network namespaces on a wire of their own that can be cut. Without root it uses the loopback,
# which cannot be cut.
set -euo pipefail
program=$1
shift
minutes=3
if [[ ${1:-} == --minutes ]]; then
  minutes=$2
  shift 2
fi
seconds=$((minutes * 60))
if ((EUID != 0)) || ! unshare -n ip link add v0 type veth peer name v1 2>/dev/null; then
  echo "no wire of our own (needs root, and veth): no link goes down"
  exec "$program" --seconds "$seconds" --faults kill,stop "$@"
fi
export program seconds
exec unshare -n bash -c '
  set -euo pipefail
  ip link set lo up
  unshare -n sleep $((seconds + 120)) &
  other=$!
  trap "kill $other" EXIT
  until [[ $(readlink /proc/$other/ns/net) != $(readlink /proc/self/ns/net) ]]; do sleep 0.01; done
  ip link add v0 type veth peer name v1
  ip link set v1 netns "$other"
  ip addr add 10.9.0.1/24 dev v0
  ip link set v0 up
  nsenter -t "$other" -n sh -c "ip link set lo up; ip addr add 10.9.0.2/24 dev v1; ip link set v1 up"
  kinds=kill,stop,down
  if tc qdisc add dev v0 root netem loss 5% 2>/dev/null; then
    tc qdisc del dev v0 root
    kinds+=,loss
  else
    echo "this kernel has no netem: no packets are lost"
  fi
  "$program" --seconds "$seconds" --faults "$kinds" --address-a 10.9.0.1 --address-b 10.9.0.2 \
    --enter-b "nsenter -t $other -n" --down "ip link set v0 down" --up "ip link set v0 up" \
    --loss "tc qdisc add dev v0 root netem loss 5%" --clean "tc qdisc del dev v0 root" "$@"
' soft_wire "$@"
