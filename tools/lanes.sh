# shellcheck shell=bash disable=SC2034  # .ci/run and `./run lanes`, which read this, use what it sets.
# The lanes of .ci/run, and which of them a run takes, in what order. Bash alone, since nothing is installed yet.
#
# A run begins with the lanes that always run. Then come, as far as the time allows: those that the last run in this checkout
# left for lack of time (a fresh clone knows of none); those whose turn it is; those that the change can reach; the others. The last two
# go round with the turn, so that what did not fit moves forward. The turn is the day plus the number of commits, so it goes on
# by one with each commit and each day, and any seven turns in a row have had every lane among those "whose turn it is".

# Where memory and threads are ours. What remains is gRPC's users, which ThreadSanitizer
# cannot judge and whose builds are the longest.
ours='//base/... //rendezvous/... //verbs/... //channel:all //channel/rdma/... //channel/shm:ring_test //tests/contract/...
  //tests/doubles/... //tests/fuzz/... //tests/sim/...'
# The part of them that two cores build and run in a few minutes.
core='//base/... //verbs/soft/... //channel/ops/... //channel/rdma/... //channel/shm:ring_test
  //tests/process/shm:hostile_consumer_test //tests/process/shm:hostile_producer_test //tests/process/shm:kill_test
  //tests/sim:message_link_test //tests/sim:hostile_rdma_producer_test //tests/sim:hostile_rdma_consumer_test'

# NAME | TURN | MINUTES | NEEDS | INPUTS | ./run's ARGUMENTS
#
# TURN: 0 to 6, several of them, or "always". All lanes of one turn fit into a run beside those that always run (tools/ci_test.sh adds them up).
# MINUTES: on CI's two cores, from nothing, as measured and a little more; each run prints what its lanes took.
# NEEDS: what a machine must have, or the lane is skipped: x86_64, pypi; or -.
# INPUTS: folders or files (a prefix of the path), or //TARGETS, which stand for every source that they are made from.
# In the arguments, @SEED is another number in each run, @FIRST is asan or tsan, turned by the day.
lanes='
plain      | always | 45 | -      | .                                                                         | test
core       | always |  4 | -      | .                                                                         | test --@FIRST @CORE
guest      | 0      | 11 | x86_64 | //channel/... //verbs/... //server/... tests/hardware tools run           | test --guest
previous   | 0      | 12 | -      | //tests/release/versions:peer tests/release/versions                      | test --previous
engines    | 1      |  5 | -      | //examples/parameter_server:parameter_server //server:trystd //server:tryst //tests/release/versions:peer //tests/weights:log_appender //tests/weights:group_worker tests/frameworks/engines examples/deploy | test --engines
mutants    | 1      |  6 | -      | //channel/ops/... //channel/pool/... //rendezvous/... //verbs/soft/... tests/mutants | mutants --quick --some 20 --from @SEED
asan       | 2      | 24 | -      | @OURS                                                                     | test --asan @OURS
soak       | 2      |  2 | -      | //tests/process/e2e:load_worker //server:tryst //tests/process/history:judge tests/process/soak | soak --minutes 1 --seed=@SEED
python     | 3      |  7 | pypi   | //python/... //:sdk_c python tests/frameworks/python examples/python examples/ray examples/weights | test --python --with=ray
adapters   | 5      | 10 | x86_64 pypi | //plugins/nixl:libplugin_TRYST.so //python:_tryst.abi3.so python tests/frameworks/adapters tests/frameworks/nixl tests/frameworks/python | test --adapters
release    | 3      |  4 | -      | //python:_tryst.abi3.so //:sdk_c //:sdk //plugins/nccl:libnccl-net-tryst.so python tests/release tools/release.py tools/system run | test --release --quick
bench      | 3      |  3 | -      | //bench:instructions //bench/peers:tryst bench                            | bench check
tsan       | 4      | 22 | -      | @OURS                                                                     | test --tsan @OURS
attack     | 4      |  4 | -      | //tests/attack:attack //tests/process/e2e:load_worker                     | attack --minutes 2 --seed=@SEED
audit      | 1,3,5  | 18 | x86_64 | //python:_tryst.abi3.so //:sdk_c python tests/attack/audit tools/system       | audit --minutes 7 --seed=@SEED
fresh      | 5      |  7 | -      | //examples/parameter_server:parameter_server //base/... tests/process/oncall tests/release/fresh_machine tools run WORKSPACE | test --fresh //base/... //tests/process/oncall/...
locks      | 6      | 26 | -      | //... run tools                                                           | lint --locks
tensorflow | 6      |  6 | x86_64 pypi | //python/... python plugins/tensorflow tests/frameworks/tensorflow examples/tensorflow | test --tensorflow
'

owed_file=out/ci/owed  # What the last run here had no time for.
batch_pause=$((6 * 3600))
run_minutes=${CI_MINUTES:-84} # A run has 90; this is for all lanes together.

declare -A lane_turn lane_minutes lane_needs lane_inputs lane_run
lane_names=()
while IFS='|' read -r name where minutes needs inputs arguments; do
  name=${name// /}
  if [[ -z $name ]]; then continue; fi
  lane_names+=("$name")
  lane_turn[$name]=${where// /} lane_minutes[$name]=${minutes// /} lane_needs[$name]=$needs
  lane_inputs[$name]=${inputs//@OURS/$ours} lane_run[$name]=${arguments//@OURS/$ours}
done <<<"$lanes"

lanes_turn() { # Sets $turn, $seed, $first.
  local commits day=${CI_DAY:-$(($(date +%s) / 86400))}
  commits=$(git rev-list --count --first-parent HEAD 2>/dev/null) || commits=0
  turn=${CI_TURN:-$((day + commits))}
  seed=$turn
  first=asan
  if ((turn % 2)); then first=tsan; fi
}

lane_arguments() { # NAME: what to give to ./run.
  local text=${lane_run[$1]}
  text=${text//@SEED/$seed} text=${text//@FIRST/$first} text=${text//@CORE/$core}
  xargs <<<"$text"
}

# The commit that this change is built upon. Nothing tells a fresh clone what CI saw last, so the change is everything since the
# history paused for six hours; CI_BASE names another commit.
lanes_base() { # Sets $base and $base_why.
  local commit when later=""
  if [[ -n ${CI_BASE:-} ]]; then
    base=$CI_BASE base_why="CI_BASE says so"
    return
  fi
  base="" base_why="no pause of six hours is in the history"
  while read -r commit when; do
    if [[ -n $later ]] && ((later - when >= batch_pause)); then
      base=$commit base_why="the last commit before a pause of six hours"
      return
    fi
    later=$when
  done < <(git log --first-parent -n 1000 --format='%H %ct' HEAD 2>/dev/null)
}

# Prints a changed file that a lane depends on, or fails. Sources of targets come from a query; targets that cannot be
# queried count as reached.
lane_reached() { # NAME, with $changed, a path a line
  local input targets=() sources=""
  if [[ -z $changed ]]; then return 1; fi
  for input in ${lane_inputs[$1]}; do
    case $input in
      //*) targets+=("$input") ;;
      .) head -n 1 <<<"$changed" && return ;;
      *) grep -m1 -E -- "^${input//./\\.}(/|$)" <<<"$changed" && return ;;
    esac
  done
  if ((${#targets[@]} == 0)); then return 1; fi
  if ! sources=$(lanes_query "${targets[*]}"); then
    echo "what may be anything: its sources cannot be listed"
    return
  fi
  # A BUILD file counts where a source of its folder does, and what Bazel itself reads counts for all.
  grep -m1 -xF -f <(echo "$sources"; sed -nE 's|/[^/]*$|/BUILD|p' <<<"$sources" | sort -u) <<<"$changed" && return
  grep -m1 -E '^(\.bazelrc|WORKSPACE|BUILD|tools/(bazel|system/.*|build_defs/.*|shims/.*))$' <<<"$changed"
}

lanes_query() { # TARGETS: the files of this tree that they are made from
  bazel ${TRYST_OUTPUT_USER_ROOT:+"--output_user_root=$TRYST_OUTPUT_USER_ROOT"} query --keep_going --noshow_progress \
    "kind('source file', deps(set($1)))" </dev/null 2>/dev/null | sed -nE 's|^//||; t s; b; :s; s|^:||; s|:|/|; p'
  local code=${PIPESTATUS[0]}
  ((code == 0 || code == 3)) # 3: some targets lack a library here.
}

# The order of all lanes. Sets $order (names), why[NAME] and $base. Bazel must be there to be asked.
lanes_plan() {
  declare -gA why=()
  order=()
  local name place distance owed changed file
  lanes_turn
  lanes_base
  changed=$(git diff --name-only "${base:-HEAD~1}" HEAD 2>/dev/null; git diff --name-only HEAD 2>/dev/null) || true
  changed=$(sort -u <<<"$changed" | grep . || true)
  owed=$(cat "$owed_file" 2>/dev/null || true)
  take() { # NAME REASON
    if [[ -n ${why[$1]:-} ]]; then return; fi
    why[$1]=$2
    order+=("$1")
  }
  for name in "${lane_names[@]}"; do
    if [[ ${lane_turn[$name]:-} == always ]]; then take "$name" "always runs"; fi
  done
  for name in $owed; do
    if [[ -n ${lane_turn[$name]:-} ]]; then take "$name" "the last run here had no time for it"; fi
  done
  local ring=()
  for distance in 0 1 2 3 4 5 6; do
    place=$(((turn + distance) % 7))
    for name in "${lane_names[@]}"; do
      if [[ ,${lane_turn[$name]:-}, == *,$place,* ]]; then
        ring+=("$name")
        if ((distance == 0)); then take "$name" "its turn, $place of 0 to 6"; fi
      fi
    done
  done
  for name in "${ring[@]}"; do
    if [[ -n ${why[$name]:-} ]]; then continue; fi
    if file=$(lane_reached "$name"); then take "$name" "reached by $file"; fi
  done
  for name in "${ring[@]}"; do take "$name" "not reached; if time is left"; done
}

# What a run leaves for the next. A lane that was cut off though it had all the time that the lanes before it left, as the first of
# those that do not always run, goes last: it would be cut off again, and keep the others from running.
owes=() owes_last=()
lane_owed() { # NAME IS-FIRST
  if [[ $2 == yes ]]; then owes_last+=("$1"); else owes+=("$1"); fi
}
lanes_keep_owed() {
  mkdir -p "${owed_file%/*}"
  printf '%s\n' "${owes[@]}" "${owes_last[@]}" >"$owed_file"
}

# What ./run lanes prints: the order, and what the estimates leave time for.
lanes_print() {
  local name minutes left=$run_minutes verdict
  printf 'turn %d; the change is what came after %s (%s)\n\n' "$turn" "${base:0:12}" "$base_why"
  printf '%-11s %7s  %-12s %s\n' lane minutes "" why
  for name in "${order[@]}"; do
    minutes=${lane_minutes[$name]} verdict="no time left"
    if ((minutes <= left)); then left=$((left - minutes)) verdict="would run"; fi
    printf '%-11s %7d  %-12s %s\n' "$name" "$minutes" "$verdict" "${why[$name]}"
  done
  printf '\n%d minutes of %d, by the estimates in tools/lanes.sh; needs of a machine (x86_64, PyPI) are looked at when a lane begins\n' \
    $((run_minutes - left)) "$run_minutes"
}
