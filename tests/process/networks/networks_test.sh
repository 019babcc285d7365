#!/usr/bin/env bash
# networks_test.sh [FLOW]: two hosts with held networks between them, and one for gRPC. Large tensors go
# over all at once, so they do over several connections that one network holds apart, a slow one delays
# no other, and no receive fails when one goes down under load. What
# is printed are figures (docs/BENCHMARKS.md); what is checked are bounds that a busy machine keeps.
set -euo pipefail
PATH+=:/usr/sbin:/sbin
flow=$(realpath "${1:-${TEST_SRCDIR:-.}/${TEST_WORKSPACE:-.}/tests/process/networks/flow}")
if ((EUID != 0)) || ! unshare -n ip link add v0 type veth peer name v1 2>/dev/null; then
  echo "SKIPPED: needs root, and veth"
  exit 0
fi
if ! unshare -n sh -c 'ip link add v0 type veth peer name v1; tc qdisc add dev v0 root tbf rate 1gbit burst 256kb latency 20ms' 2>/dev/null; then
  echo "SKIPPED: needs tc, and a kernel with tbf"
  exit 0
fi
export flow
exec unshare -n bash -c '
  set -euo pipefail
  unshare -n sleep 280 &
  other=$!
  trap "kill $other" EXIT
  until [[ $(readlink /proc/$other/ns/net) != $(readlink /proc/self/ns/net) ]]; do sleep 0.01; done
  there() { nsenter -t "$other" -n "$@"; }
  ip link set lo up
  there ip link set lo up
  for i in 0 1 2 3 4 5; do
    ip link add a$i type veth peer name b$i
    ip link set b$i netns "$other"
    ip addr add 10.9.$i.1/24 dev a$i
    there ip addr add 10.9.$i.2/24 dev b$i
    ip link set a$i up
    there ip link set b$i up
  done
  # The other host produces, so its ends are held: so much that no processor is the limit.
  hold() { there tc qdisc replace dev b$1 root tbf rate $2 burst 256kb latency 20ms; }
  for i in 1 2 3 4; do hold $i 200mbit; done
  hold 5 20mbit
  seen=$(mktemp)
  trap "kill $other; rm -f $seen" EXIT

  failed=0
  ports=() # The soft NICs here and there have these, if any.
  check() { # TEXT CONDITION
    if (($2)); then echo "ok $1"; else echo "not ok $1"; failed=1; fi
  }
  common=(--insecure --insecure_anywhere --shm=off --nic=soft --cluster=networks)
  # Prints what the consumer says; COMMAND runs after two seconds of it. With one network gRPC is there, too.
  run() { # NETWORKS SECONDS [COMMAND [FLAGS]]
    local listen_a= listen_b= sep= i grpc=0 more=("${@:4}")
    if [[ $1 != *\ * ]]; then grpc=$1; fi
    for i in $1; do
      listen_a+=${sep}10.9.$i.1:${ports[0]:-0}
      listen_b+=${sep}10.9.$i.2:${ports[1]:-0}
      sep=,
    done
    nsenter -t "$other" -n "$flow" "${common[@]}" --job=ps --listen=10.9.$grpc.2:4000 --nic_listen="$listen_b" \
      --max_held_bytes=64MiB --peer=/job:worker/replica:0/task:0 --open_cluster "${more[@]}" &
    local producer=$!
    : >"$seen"
    if [[ -n ${3:-} ]]; then { for i in {1..300}; do grep -q "^second 2" "$seen" && break || sleep 0.1; done; eval "$3"; } & fi
    "$flow" "${common[@]}" --job=worker --listen=10.9.$grpc.1:4001 --nic_listen="$listen_a" --open_cluster \
      --join=/job:ps/replica:0/task:0@10.9.$grpc.2:4000 --peer=/job:ps/replica:0/task:0 --consume=true --seconds="$2" "${more[@]}" |
      tee "$seen"
    kill $producer
    wait $producer || true
  }
  failed() { sed -nE "s/^rate .*, ([0-9]+) failed/\1/p" <<<"$1"; }
  # Without the first second, in which they connect.
  rate() { # OUTPUT [SECONDS]
    sed -nE "s/^second ([0-9]+): ([0-9]+) MB.*/\1 \2/p" <<<"$1" | awk "\$1 > ${2:-1} { sum += \$2; n += 1 } END { print int(sum / n) }"; }

  one=$(run 1 5)
  both=$(run "1 2" 5)
  check "two networks carry more than one: $(rate "$both") MB/s, one alone $(rate "$one")" \
    "$(rate "$both") * 2 >= $(rate "$one") * 3"

  five=$(run "1 2 3 4 5" 5)
  check "so do five, one of a tenth of the others: $(rate "$five") MB/s, one alone $(rate "$one")" \
    "$(rate "$five") >= $(rate "$one") * 2"

  # As a network does that holds each connection to a part of it: all go to one address, and those for large
  # tensors by another network each. The first one of the queue pair is not for these, and stays.
  apart() {
    local i=0 ours theirs
    there ss -tnpH "sport = :5000 or dport = :5001" | sort -t= -k3 | while read -r _ _ _ ours theirs _; do
      if ((i > 0)); then
        there ip route replace 10.9.1.1 dev b$i src 10.9.1.2 table 10$i
        there ip rule add ipproto tcp sport "${ours##*:}" dport "${theirs##*:}" table 10$i
      fi
      i=$((i + 1))
    done
  }
  for i in all a0 a1 a2 a3 a4 a5; do sysctl -qw "net.ipv4.conf.$i.rp_filter=0"; done
  if there ip rule add ipproto tcp dport 1 table 9 2>/dev/null; then
    ports=(5001 5000)
    flows=$(run 1 9 apart --queue_pairs=5)
    ports=()
    check "so do five connections over one, one held to a tenth: $(rate "$flows" 5) MB/s, one alone $(rate "$one")" \
      "$(rate "$flows" 5) >= $(rate "$one") * 2"
    check "explain counts them" "$(grep -c "6 sockets by 10.9.1.1" <<<"$flows")"
  else
    echo "SKIPPED: several connections to one address: no rules by port"
  fi

  hold 1 1gbit
  hold 2 1gbit
  cut=$(run "1 2" 8 "ip link set a2 down; sleep 2; ip link set a2 up")
  grep -E "^(second|fetch from .* over rdma/soft)" <<<"$cut"
  check "one goes down, and no receive fails: $(failed "$cut")" "$(failed "$cut") == 0"
  check "it is used again when it is back" "$(grep -c " by 10.9.2.1" <<<"$cut")"
  exit $failed
' networks_test
