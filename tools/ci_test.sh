#!/usr/bin/env bash
# How .ci/run orders its lanes and adds up what they report, with a ./run and a bazel that only print.
set -euo pipefail
ci=$(readlink -f .ci/run)
lanes_file=$(readlink -f tools/lanes.sh)
cd "$TEST_TMPDIR"
mkdir -p tree/.ci tree/tools bin
cp "$ci" tree/.ci/run
cp "$lanes_file" tree/tools/lanes.sh
printf '#!/bin/sh\nexit 0\n' >bin/bazel
printf '#!/bin/sh\necho x86_64\n' >bin/uname
printf '#!/bin/sh\nexit 0\n' >bin/python3 # PyPI answers.
chmod +x bin/*
export CI_TURN=1 # TSan comes first.
# Adding up asks for every lane, however long they are on CI's machine.
export CI_MINUTES=1000
failed=0
expect() { # WHAT CODE LAST_LINE, with ./run's body on stdin: its arguments are in $*.
  local code=0 out
  { echo '#!/bin/bash'; cat; } >tree/run
  chmod +x tree/run
  rm -rf tree/out # As in a fresh clone.
  out=$(cd / && PATH="$TEST_TMPDIR/bin:$PATH" "$TEST_TMPDIR/tree/.ci/run" 2>&1 </dev/null) || code=$?
  if [[ $code != "$2" || $(tail -n 1 <<<"$out") != "$3" ]]; then
    echo "$1: exit $code, wanted $2; last line wanted '$3'; in:"
    echo "$out"
    failed=1
  fi
  if [[ $(grep -cxE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' <<<"$out") != 1 ]]; then
    echo "$1: more than one closing line, or none"
    failed=1
  fi
}

expect "all green" 0 "126 passed, 0 failed, 12 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 1 skipped"
exit 0
END
expect "a lane fails, twice" 1 "163 passed, 6 failed, 17 skipped" <<'END'
[[ $1 == lint ]] && exit 0
[[ ${2:-} == --tsan ]] && { echo "6 passed, 3 failed, 1 skipped"; exit 1; }
echo "10 passed, 0 failed, 1 skipped"
END
expect "a lane dies before its closing line" 1 "116 passed, 1 failed, 0 skipped" <<'END'
[[ ${2:-} == --asan ]] && kill -9 $$
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
expect "a lane that says it is green and exits otherwise" 1 "120 passed, 6 failed, 0 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
[[ $1 == test ]]
END
expect "only the last closing line of a lane counts" 0 "126 passed, 0 failed, 0 skipped" <<'END'
[[ $1 == test ]] && printf '%s\n' "7 passed, 7 failed, 7 skipped" "10 passed, 0 failed, 0 skipped"
exit 0
END
# The clock cuts off ASan's lane, as far as .ci/run can tell.
cat >bin/timeout <<'END'
#!/bin/bash
[[ $* == *' --asan //base/... //rendezvous/'* ]] && { cat "$CUT_OFF"; exit 124; }
shift 2
exec "$@"
END
chmod +x bin/timeout
export CUT_OFF=$TEST_TMPDIR/cut_off
printf '%s\n' 'ERROR: build interrupted' 'FAILED: Build did NOT complete successfully' '//base:a_test  NO STATUS' >"$CUT_OFF"
expect "a lane that is cut off" 0 "116 passed, 0 failed, 1 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
echo 'FAIL: //base:a_test (see its log)' >>"$CUT_OFF"
expect "a lane that is cut off once a test has failed" 1 "116 passed, 1 failed, 0 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
rm bin/timeout
printf '#!/bin/sh\nexit 1\n' >bin/python3 # PyPI does not.
expect "no PyPI" 0 "96 passed, 0 failed, 3 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
export CI_MINUTES=15
# plain and core begin in any case; of the others those up to 15 minutes do.
expect "too little time for the longer lanes" 0 "53 passed, 0 failed, 7 skipped" <<'END'
[[ $1 == test ]] && echo "7 passed, 0 failed, 0 skipped"
exit 0
END
export CI_MINUTES=0
expect "no time" 1 "0 passed, 0 failed, 18 skipped" <<<'exit 0'

# What follows asks tools/lanes.sh alone, in a repository with a history.
printf '#!/bin/sh\nexit 0\n' >bin/python3
cd tree
rm -rf out
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_GLOBAL=/dev/null HOME=$TEST_TMPDIR
unset CI_TURN CI_DAY CI_BASE
git init -q .
commit() { # HOURS FILE...: a commit so long after the first of January
  local file
  for file in "${@:2}"; do
    mkdir -p "$(dirname "$file")"
    echo "$1" >>"$file"
    git add -f "$file"
  done
  GIT_COMMITTER_DATE="$((1767225600 + $1 * 3600)) +0000" git commit -q -m "$2"
}
# In the pretended tree each target //FOLDER/... is made from the files of FOLDER.
cat >../bin/bazel <<'END'
#!/bin/bash
[[ " $* " == *" query "* ]] || exit 0
for target in $(grep -oE '//[a-z_/]+' <<<"${*: -1}"); do git ls-files "${target#//}" | sed -E 's|^(.*)/([^/]*)$|//\1:\2|'; done
exit 0
END
PATH=$TEST_TMPDIR/bin:$PATH
export CI_MINUTES=84
source tools/lanes.sh
complain() {
  echo "$*"
  failed=1
}

# The lanes of one turn fit beside those that always run.
always=0
for name in "${lane_names[@]}"; do
  minutes=${lane_minutes[$name]}
  if [[ ${lane_turn[$name]} == always ]]; then always=$((always + minutes)); fi
done
for turn in 0 1 2 3 4 5 6; do
  sum=$always
  for name in "${lane_names[@]}"; do
    if [[ ,${lane_turn[$name]}, == *,$turn,* ]]; then sum=$((sum + ${lane_minutes[$name]})); fi
  done
  ((sum <= 84)) || complain "the lanes of turn $turn need $sum minutes"
done

# A change is what came after a pause, and reaches those whose inputs it touches.
commit 0 base/a.cc python/p.cc verbs/soft/s.cc bench/b.py tests/process/soak/soak.py notes.txt
commit 1 notes.txt
before=$(git rev-parse HEAD)
commit 10 tests/process/soak/soak.py
commit 11 notes.txt
CI_TURN=0 lanes_plan
[[ $base == "$before" ]] || complain "the change begins after $base, wanted $before"
[[ ${why[soak]} == "reached by tests/process/soak/soak.py" ]] || complain "soak: ${why[soak]}"
[[ ${why[bench]} == "not reached; if time is left" ]] || complain "bench: ${why[bench]}"
[[ ${order[*]:0:5} == "plain core guest previous soak" ]] || complain "order: ${order[*]}"
((${#order[@]} == ${#lane_names[@]})) || complain "not every lane is in the order: ${order[*]}"
commit 20 python/p.cc
CI_TURN=2 lanes_plan
[[ ${why[python]} == "reached by python/p.cc" && ${why[soak]} == "its turn, 2 of 0 to 6" ]] || complain "python: ${why[python]}"
CI_TURN=2 CI_BASE=$before lanes_plan
[[ ${order[*]:2:2} == "asan soak" && $base == "$before" ]] || complain "CI_BASE: $base, ${order[*]}"
commit 30 verbs/soft/s.cc
CI_TURN=5 lanes_plan
for name in asan tsan mutants guest; do [[ ${why[$name]} == "reached by verbs/soft/s.cc" ]] || complain "$name: ${why[$name]}"; done
[[ ${why[python]} == "not reached"* ]] || complain "python: ${why[python]}"
commit 40 verbs/soft/BUILD
CI_TURN=5 lanes_plan
[[ ${why[mutants]} == "reached by verbs/soft/BUILD" ]] || complain "a BUILD file: ${why[mutants]}"
# The turn goes on by one with a commit and with a day.
CI_DAY=7 lanes_turn
was=$turn
commit 41 notes.txt
CI_DAY=7 lanes_turn
((turn == was + 1)) || complain "a commit turns $was into $turn"
CI_DAY=8 lanes_turn
((turn == was + 2)) || complain "a day turns it into $turn"

# Seven runs in a row, from any turn and with changes of different rooms, have run every lane: in fresh clones, and in one
# checkout where each lane takes a tenth longer than its estimate and so may be cut off.
simulate() { # KEEPS [NAME]: whether the checkout stays, a lane that takes a hundred minutes. Adds one run's lanes to `ran`.
  local left=$((84 * 60)) name needs takes is_first=yes
  owes=() owes_last=()
  lanes_plan
  for name in "${order[@]}"; do
    needs=$((lane_minutes[$name] * 60))
    takes=$needs
    if [[ $1 == yes ]]; then takes=$((needs * 11 / 10)); fi
    if [[ $name == "${2:-}" ]]; then takes=6000; fi
    if [[ ${lane_turn[$name]} != always ]] && ((needs > left)); then
      lane_owed "$name" "$is_first"
    elif ((takes > left)); then
      left=0
      lane_owed "$name" "$is_first"
    else
      left=$((left - takes))
      ran+=" $name"
    fi
    if [[ ${lane_turn[$name]} != always ]]; then is_first=no; fi
  done
  if [[ $1 == yes ]]; then lanes_keep_owed; fi
}
rooms=(base/a.cc python/p.cc verbs/soft/s.cc bench/b.py tests/process/soak/soak.py notes.txt verbs/soft/BUILD)
hour=100
seven() { # RUNS FIRST_TURN KEEPS [NAME]
  local run name
  rm -rf out
  ran=""
  for ((run = 0; run < $1; ++run)); do
    hour=$((hour + 10))
    commit "$hour" "${rooms[run % 7]}"
    CI_TURN=$(($2 + run)) simulate "${@:3}"
  done
  for name in "${lane_names[@]}"; do
    [[ $name == "${4:-}" || " $ran " == *" $name "* ]] || complain "$1 runs from turn $2 (kept: $3) without $name:$ran"
  done
}
seven 7 0 no
seven 7 3 no
seven 7 5 yes
seven 14 0 yes asan # A lane that never fits does not keep the others from running.
# What had no time comes first, where that is known.
mkdir -p out/ci
echo fresh >out/ci/owed
CI_TURN=0 lanes_plan
[[ ${order[2]} == fresh ]] || complain "owed: ${order[*]}"
[[ $(CI_TURN=0 lanes_print) == *"fresh "*"would run"*"had no time"* ]] || complain "$(lanes_print)"
exit $failed
