#!/usr/bin/env bash
# lane.sh tests|long|figures|channel|nccl|faults=SECONDS SETUP PROGRAMS SECONDS [DONE...]: what
# run.sh runs in the guest, which lives for SECONDS. Prints "RUN setup name" before each test, and
# PASS, FAIL or SKIP with setup and name after it. DONE names the tests that have a result from an
# earlier boot. A test whose usual limit does not fit in the remaining time is not begun, and says so. A program of GoogleTest's
# is killed when it has printed nothing for so long that it must hang; else it takes what time is left, however slow the
# machine, and a case that the guest's end cuts off is skipped.
set -u
what=$1 setup=$2 programs=$3 limit_s=$4
shift 4
done_before=" $* "
hangs_after=150 # Seconds without a line; a case of the contract gives up after 120 and says where.
no_time=77 # The exit code of a test that ends only for want of time.
a=rxe0 b=rxe0
if [[ $setup == pair ]]; then b=rxe1; fi
host_b=10.0.0.1
if [[ $setup == pair ]]; then host_b=10.0.0.2; fi
export TRYST_NIC_A=$a TRYST_NIC_B=$b TRYST_HOST_A=10.0.0.1 TRYST_HOST_B=$host_b
# libfabric's rxm makes its completion queue large enough for this many peers, and Soft-RoCE's holds at
# most 32,767 entries.
export FI_UNIVERSE_SIZE=32
if [[ $what == long ]]; then export TRYST_GUEST_LONG=1; fi
SECONDS=$(cut -d. -f1 /proc/uptime) # The guest booted before this script began.
cd /tmp || exit

clear_wire() {
  local device
  for device in v0 v1; do tc qdisc del dev "$device" root 2>/dev/null; done
  if [[ $setup == pair ]]; then bash /run/job/guest-wire; fi
}

fits() { # SECONDS NAME
  if ((limit_s - SECONDS >= $1)); then return; fi
  echo "SKIP $setup $2: it may take $1 s, and $((limit_s - SECONDS)) s are left: a slow machine"
  return 1
}

how_long() { # What is slow says so.
  if ((SECONDS - began_at >= 5)); then echo ": $((SECONDS - began_at)) s"; fi
}

check() { # NAME SECONDS COMMAND...: one result for it all.
  local name=$1 limit=$2 code=0
  shift 2
  if [[ $done_before == *" $name "* ]]; then return; fi
  fits "$limit" "$name" || return
  echo "RUN $setup $name"
  began_at=$SECONDS
  timeout -k 5 "$limit" "$@" >output 2>&1 || code=$?
  sed 's/^/  | /' output
  if ((code == 0)); then
    echo "PASS $setup $name$(how_long)"
  elif ((code == no_time)); then
    echo "SKIP $setup $name: cut off, no time left on this machine"
  elif ((code == 124 || code == 137)); then
    echo "FAIL $setup $name: killed after $limit s"
  else
    echo "FAIL $setup $name: code $code"
  fi
}

gtest() { # PROGRAM SECONDS, that it usually needs: one result for each of its tests.
  local program=$1 filter line test="" why="" left said=yes pid code
  fits "$2" "$program" || return
  left=$((limit_s - SECONDS - 10))
  # Tests that have a result are not run again.
  filter=$(tr ' ' '\n' <<<"$done_before" | sed -n "s,^$program/,,p" | paste -sd:)
  # Not awk: it may hold lines back, and a crash would lose them.
  exec 3< <(
    timeout -k 5 "$left" "$programs/$program" --gtest_filter="-$filter" --gtest_color=no 2>&1
    echo "(exit code $?)"
  )
  pid=$!
  while true; do
    code=0
    IFS= read -r -t "$hangs_after" line <&3 || code=$?
    if ((code > 128)); then # Not the end of its output.
      said=no
      pkill -P "$pid"
    fi
    if ((code != 0)); then break; fi
    case $line in
      "(exit code 124)") said=late ;;
      "[ RUN      ] "*)
        test=${line#*] }
        why=
        began_at=$SECONDS
        echo "RUN $setup $program/$test"
        ;;
      "[       OK ] "*) finish_test PASS "$(how_long)" ;;
      "[  SKIPPED ] "*) finish_test SKIP ": $why" ;;
      "[  FAILED  ] "*) finish_test FAIL "" ;;
      "(exit code 0)" | "[----------]"* | "[==========]"* | "[  PASSED  ]"* | "" | "Note: "* | "Running main"*) ;;
      *)
        why=$line
        echo "  | $line"
        ;;
    esac
  done
  exec 3<&-
  if [[ $said == no ]]; then
    finish_test FAIL ": it said nothing for $hangs_after s and was killed"
  elif [[ $said == late ]]; then
    finish_test SKIP ": cut off, no time left on this machine"
  else
    finish_test FAIL ": it crashed $why"
  fi
}
finish_test() { # WORD WHY: of gtest()'s `test`, if one is running: a summary repeats the names.
  if [[ -n $test ]]; then echo "$1 $setup $program/$test$2"; fi
  test=
}

stream() { # NAME ARGUMENTS...
  check "$1" 40 "$programs/stream" "${@:2}" "$a" "$b"
  clear_wire
}

# Runs both sides of perftest; prints the figure in the given column.
perftest() { # COLUMN PROGRAM BYTES COUNT
  local server
  timeout 30 "$2" -d "$b" -x 1 -F -s "$3" -n "$4" >server.log 2>&1 &
  server=$!
  sleep 1
  timeout 28 "$2" -d "$a" -x 1 -F -s "$3" -n "$4" 127.0.0.1 >client.log 2>&1
  wait "$server"
  # Without enough processor time perftest sometimes prints "inf" or 0, which is not a figure.
  awk -v column="$1" '$1 ~ /^[0-9]+$/ && $column ~ /^[0-9.]+$/ && $column > 0 { print $column }' \
    client.log | tail -n 1
}
ours() {
  case $1 in
    channel_*) timeout 40 "$programs/channel_figures" "$1" "$a" "$b" "$2" "$3" ;;
    *) timeout 30 "$programs/figures" "$1" "$a" "$b" "$2" "$3" ;;
  esac
}
median() { sort -n | awk '{ v[NR] = $1 } END { print NR == 0 ? "none" : NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# Runs alternate, and so does which comes first, so that other load hits both alike. The median
# describes this machine now; the best run describes what the code can do.
figure() { # ROUNDS write_bw|write_lat|channel_bw|channel_pull BYTES COUNT
  local round column=4 unit=MB/s best=-rn theirs=ib_${2/channel_bw/write_bw}
  if [[ $2 == write_lat || $2 == channel_pull ]]; then column=5 unit=us best=-n; fi
  # A pull is two one-way trips, and perftest measures one.
  if [[ $2 == channel_pull ]]; then theirs=ib_write_lat; fi
  : >theirs.txt
  : >ours.txt
  for ((round = 0; round < $1; ++round)); do
    if ((round % 2)); then ours "$2" "$3" "$4" >>ours.txt; fi
    perftest "$column" "$theirs" "$3" "$4" >>theirs.txt
    if ((round % 2 == 0)); then ours "$2" "$3" "$4" >>ours.txt; fi
  done
  echo "$setup $2 $3 B, $1 rounds, ours and perftest's in $unit:" \
    "median $(compare "$(median <ours.txt)" "$(median <theirs.txt)")," \
    "best $(compare "$(sort $best ours.txt | head -n 1)" "$(sort $best theirs.txt | head -n 1)")" \
    "[$(paste -sd' ' ours.txt) | $(paste -sd' ' theirs.txt)]"
  [[ -s ours.txt && -s theirs.txt ]]
}
# libfabric's own tool over its verbs provider, one message at a time to and fro. It takes no
# address to come from, so that it cannot cross the wire of `pair`.
fabric() { # COLUMN BYTES COUNT
  local server
  timeout 40 fi_pingpong -p "verbs;ofi_rxm" -e rdm -I "$3" -S "$2" >server.log 2>&1 &
  server=$!
  sleep 1
  timeout 38 fi_pingpong -p "verbs;ofi_rxm" -e rdm -I "$3" -S "$2" "$TRYST_HOST_A" >client.log 2>&1
  wait "$server"
  # bytes, sent, acknowledged, total, time, MB/s, us a message
  awk -v column="$1" '$1 ~ /^[0-9]/ && NF >= 7 { print $column }' client.log | tail -n 1
}
fabric_figure() { # ROUNDS fabric_lat|fabric_bw BYTES COUNT
  local round column=6 unit=MB/s
  if [[ $2 == fabric_lat ]]; then column=7 unit=us; fi
  for ((round = 0; round < $1; ++round)); do fabric "$column" "$3" "$4"; done >theirs.txt
  echo "$setup $2 $3 B, $1 rounds, fi_pingpong's in $unit: median $(median <theirs.txt) [$(paste -sd' ' theirs.txt)]"
  if [[ ! -s theirs.txt ]]; then tail -n 3 server.log client.log; fi
  [[ -s theirs.txt ]]
}
compare() { # OURS THEIRS
  awk -v a="$1" -v b="$2" 'BEGIN { printf("%s and %s (%s)", a, b, ((b + 0 > 0) ? sprintf("%.3f", a / b) : "none")) }'
}
export -f figure perftest ours median compare fabric fabric_figure
export setup a b programs no_time

measure() { # NAME ROUNDS WHAT BYTES COUNT: a report, so that a slow machine fails nothing.
  local left=$((limit_s - SECONDS - 20))
  if ((left < 60)); then
    echo "SKIP $setup figures/$1: no time left on this machine"
  else
    local program=figure
    if [[ $3 == fabric_* ]]; then program=fabric_figure; fi
    check "figures/$1" $((left + 10)) bash -c "
      timeout $left bash -c '$program $2 $3 $4 $5' && exit
      exit \$((\$? == 124 ? no_time : 1))"
  fi
}
channel_figures() { # ROUNDS
  measure channel_pull_8 "$1" channel_pull 8 1000
  measure channel_bw_1048576 "$1" channel_bw 1048576 60
  measure channel_bw_65536 "$1" channel_bw 65536 400
}
figures() { # ROUNDS
  channel_figures "$1"
  measure write_lat_8 "$1" write_lat 8 1000
  measure write_bw_65536 "$1" write_bw 65536 300
  if [[ $what == figures ]]; then
    measure write_lat_4096 "$1" write_lat 4096 1000
    measure write_bw_4096 "$1" write_bw 4096 4000
    measure write_bw_1048576 "$1" write_bw 1048576 40
    if [[ $setup == one ]]; then
      measure fabric_lat_8 "$1" fabric_lat 8 1000
      measure fabric_bw_65536 "$1" fabric_bw 65536 300
      measure fabric_bw_1048576 "$1" fabric_bw 1048576 40
    fi
  fi
}

if [[ $what == figures ]]; then
  figures "${TRYST_FIGURE_ROUNDS:-7}"
  exit 0
fi
tests=${programs%/hardware/guest}
faults=$tests/process/faults
storm() { # SECONDS KINDS
  check "fault_storm/$2" $(($1 + 60)) "$faults/fault_storm" --seconds "$1" --faults "$2" \
    --nic-a "$a" --nic-b "$b" --down "ip link set v1 down" --up "bash /run/job/guest-wire" \
    --loss "tc qdisc add dev v0 root netem loss 5%" --clean "tc qdisc del dev v0 root"
  clear_wire
}
if [[ $what == faults=* ]]; then
  clear_wire
  storm "${what#faults=}" kill,stop,down,loss
  check fence 800 "$faults/fence" "$a" "$b" 10000
  exit 0
fi
if [[ $what == channel ]]; then
  gtest ibv_channel_test 400
  check fence 100 "$faults/fence" "$a" "$b" 100
  channel_figures 5
  exit 0
fi
nccl_net() { # SECONDS: the plugin for NCCL, on this NIC.
  check nccl_net "$1" env TRYST_NCCL_NIC=ibv "NCCL_IB_HCA=$a" "$tests/frameworks/nccl_net/nccl_net_suite" \
    --strict --kills=1 --named=pid --limit=300 "${tests%/*}/plugins/nccl/libnccl-net-tryst-tested.so"
}
if [[ $what == nccl ]]; then
  nccl_net 800
  exit 0
fi
gtest ibv_rxe_test 90
gtest ibv_contract_test 170
gtest ibv_channel_test 120
check fence 60 "$faults/fence" "$a" "$b" 100
# Whole processes: four workers and two servers, some of which are restarted under load.
if [[ $setup == one ]]; then
  check four_by_two 180 env -C "${tests%/*}" TRYST_E2E_FLAGS="--nic=ibv --shm=off" \
    TRYST_E2E_PATH="over rdma/ibv" TRYST_E2E_SLOW=1 tests/process/e2e/cluster_test
  nccl_net 200
fi
if [[ $setup == pair ]]; then
  clear_wire
  storm 20 kill,stop,down,loss
  stream fault/none --seconds=2 --expect=survive
  stream fault/loss_1_percent --seconds=4 --patient --expect=survive \
    --fault="tc qdisc add dev v0 root netem loss 1%"
  stream fault/loss_5_percent --seconds=5 --patient --expect=survive \
    --fault="tc qdisc add dev v0 root netem loss 5%"
  stream fault/acks_lost --seconds=4 --patient --expect=survive \
    --fault="tc qdisc add dev v1 root netem loss 5%"
  stream fault/link_down_and_up --seconds=9 --patient --expect=survive \
    --fault="ip link set v1 down" --mend="bash /run/job/guest-wire"
  stream fault/link_stays_down --seconds=12 --expect=break --fault="ip link set v1 down"
  stream fault/nothing_arrives --seconds=12 --expect=break \
    --fault="tc qdisc add dev v0 root netem loss 100%"
fi
stream fault/peer_killed --seconds=12 --expect=break --kill-peer
figures 3
