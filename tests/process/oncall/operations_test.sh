#!/usr/bin/env bash
# Follows docs/OPERATIONS.md as a newcomer would: makes certificates with its own lines, puts the
# files of examples/deploy where they belong, and runs two workers on two "hosts", each checked by
# the doctor first. Then it asks everything that the page says to ask, renews certificates, and
# stops a worker, all as the page says.
set -euo pipefail
tryst=$PWD/server/tryst trystd=$PWD/server/trystd page=$PWD/docs/OPERATIONS.md deploy=$PWD/examples/deploy
cd "$TEST_TMPDIR"
fail() {
  echo "FAILED: $*" >&2
  tail -n 20 ./*/log >&2 || true
  exit 1
}
expect() { # WHAT COMMAND...: its output has WHAT in it.
  local what=$1 output
  shift
  output=$("$@" 2>&1) || fail "$* ends with $?: $output"
  grep -qF -- "$what" <<<"$output" || fail "$*: no '$what' in: $output"
}

# The page's block of openssl, for each worker.
lines=$(sed -n '/^    openssl req -x509/,/^$/p' "$page" | sed 's/^    //')
[[ $(grep -c ^openssl <<<"$lines") == 3 ]] || fail "the page has other lines than this test knows"
authority=$(head -n 1 <<<"$lines") certificate=$(tail -n +2 <<<"$lines")
mkdir ps0 worker0
(cd ps0 && eval "$authority") 2>/dev/null
certify() { # FOLDER JOB
  (cd "$1" && eval "${certificate//job:ps/job:$2}") 2>/dev/null
  chmod 400 "$1"/*.key
}
cp ps0/ca.* worker0
certify ps0 ps
certify worker0 worker

# Stands for /etc/tryst of each host. Only what every user must change is changed.
ports=$(python3 -c '
import random, socket
free = []
# Below those that the kernel gives to connections, so that they are still free when a server starts.
for port in random.SystemRandom().sample(range(12000, 32000), 200):
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) != 0: free.append(port)
    if len(free) == 2: break
print(*free)')
read -r ps_port worker_port <<<"$ports"
for job in ps worker; do
  port=${job}_port
  sed -e "s,/etc/tryst/,$PWD/${job}0/,; s/^job = .*/job = $job/; s/^listen = .*/listen = 127.0.0.1:${!port}/" \
    "$deploy/trystd.conf" >"${job}0/trystd.conf"
  # Less is known about the machine that the test runs on.
  sed -i 's/^memory_bytes = .*//; s/GiB/MiB/' "${job}0/trystd.conf"
  sed -e "s/node1:2222/127.0.0.1:$ps_port/; s/node3:2222/127.0.0.1:$worker_port/" "$deploy/cluster.json" \
    >"${job}0/cluster.json"
done
start() { # FOLDER
  # shellcheck disable=SC2086
  "$trystd" --config="$1/trystd.conf" --status_listen=127.0.0.1:0 >"$1/out" 2>"$1/log" &
  echo $! >"$1/pid"
  for _ in {1..200}; do
    if grep -q ^serving "$1/out"; then return; fi
    sleep 0.05
  done
  fail "$1 does not start"
}
stop() { # FOLDER: within what the unit's file gives it.
  local began=$SECONDS
  kill -TERM "$(<"$1/pid")"
  wait "$(<"$1/pid")" || fail "$1 does not stop well"
  ((SECONDS - began <= 15)) || fail "$1 takes $((SECONDS - began)) s to stop"
}
trap 'kill -9 $(cat ./*/pid) 2>/dev/null || true' EXIT
ps=/job:ps/replica:0/task:0@127.0.0.1:$ps_port
worker=/job:worker/replica:0/task:0@127.0.0.1:$worker_port
as_worker=(--config=worker0/trystd.conf)

# No worker has started yet. Only what the machine lacks for RDMA may be missing.
expect "0 faults" "$tryst" doctor --config=ps0/trystd.conf
start ps0
start worker0
expect "0 faults" "$tryst" doctor "$ps" "${as_worker[@]}"

# The commands in the page's table of questions.
expect "at 127.0.0.1:$ps_port" "$tryst" ping "$ps" "${as_worker[@]}"
expect "$worker_port" "$tryst" explain "$ps" "${as_worker[@]}"
expect "operations" "$tryst" waiting "$ps" "$worker" --json "${as_worker[@]}"
expect "{" "$tryst" top "$ps" --count=1 --json "${as_worker[@]}"
status=$(sed -n 's,.*shows its status at \(http://[^ ]*\)$,\1,p' ps0/log)
python3 - "$status/metrics" <<'PYTHON' || fail "no metrics at $status"
import sys, urllib.request
assert "tryst_up_seconds" in urllib.request.urlopen(sys.argv[1], timeout=20).read().decode()
PYTHON

# Renewal replaces the files, with the same authority: an unknown one would be refused.
before=$(openssl x509 -in ps0/tls.crt -noout -serial)
rm -f ps0/tls.key
certify ps0 ps
[[ $(openssl x509 -in ps0/tls.crt -noout -serial) != "$before" ]] || fail "the certificate is the old one"
kill -HUP "$(<ps0/pid)"
sleep 2.5
expect "incarnation" "$tryst" ping "$ps" "${as_worker[@]}"
# A worker that comes back is another incarnation, and its peer has seen that.
stop worker0
start worker0
for _ in {1..100}; do
  if "$tryst" explain "$ps" "${as_worker[@]}" 2>&1 | grep -q "task:0 restarted: incarnation"; then break; fi
  sleep 0.1
done
expect "/job:worker/replica:0/task:0 restarted" "$tryst" explain "$ps" "${as_worker[@]}"
stop worker0
stop ps0
