# shellcheck shell=bash
# What searches for faults for as long as it is let: seeds, hostile bytes, kills, attacks, models, planted faults. ./run sources it.

#: fuzz [NAME] [ARGS]          libFuzzer on //tests/fuzz:NAME_fuzz, for 60 seconds if ARGS do not say; or lists the names
verb_fuzz() {
  need "${fuzz_packages[@]}"
  if (($# == 0)); then
    bz query 'attr(tags, fuzz, //tests/fuzz:all)' 2>/dev/null | sed 's/.*:\(.*\)_fuzz$/\1/'
    return
  fi
  binary "//tests/fuzz:${1}_fuzz" --config=fuzz
  cd "$caller"
  exec "$program" -max_total_time=60 "${@:2}"
}

#: sim [--seeds N] [--from S]  the channels that ship, over simulated NICs with faults; a failing seed replays exactly
#:   --cancels                 storms of fenced cancels; --until-cancels N: so many with bytes on their way
#:   --gathers                 sends with selections, gathers, groups that are cancelled; not with --cancels
#:   --hosts [--workers N --servers N --trouble kills|rack|rolling]  a job of 900 workers and 100 servers: some 20 GB
#:   --fleet [--every N] [--worker]  which version of its weights a fleet serves; every fault at every Nth message
#:   --links shm|shm,nics      over shared memory, which is real, or over that before a NIC
#:   --nic KIND                NICs that promise less: unordered, no-immediates
#:   --coverage [--learn FILE] [--weights FILE]  which states and events, guards, pairs of faults the seeds reach; aims at the rest
verb_sim() {
  need "${build_packages[@]}"
  if [[ ${1:-} == --hosts ]]; then start //tests/sim:large_job_sim "${@:2}"; fi
  if [[ ${1:-} == --fleet ]]; then start //tests/weights:fleet_sim "${@:2}"; fi
  start //tests/sim:channel_sim "$@"
}

#: faults [--minutes N]         real processes over the software NIC, killed, stopped and cut off under load (root: a wire
#:                              of their own to cut); --guest: over Soft-RoCE, in the QEMU guest, with lost packets too
verb_faults() {
  if [[ ${1:-} == --guest ]]; then
    local minutes=3
    if [[ ${2:-} == --minutes ]]; then minutes=${3:-3}; fi
    export TRYST_BAZEL="bazel${TRYST_OUTPUT_USER_ROOT:+ --output_user_root=$TRYST_OUTPUT_USER_ROOT}"
    exec tests/hardware/guest/run.sh "--faults=$((minutes * 60))"
  fi
  need "${test_packages[@]}" iproute2
  binary //tests/process/faults:fault_storm
  exec tests/process/faults/soft_wire.sh "$program" "$@"
}

#: soak [--minutes N]           four workers and two servers under load, killed at random, for 20 minutes: memory stays
#:                              flat, nothing hangs, no byte is wrong
verb_soak() {
  need "${build_packages[@]}"
  local minutes=20
  if [[ ${1:-} == --minutes ]]; then
    minutes=${2:-20}
    shift 2
  fi
  binary //server:tryst
  binary //tests/process/history:judge
  binary //tests/process/e2e:load_worker
  exec tests/process/soak/soak.py --seconds=$((minutes * 60)) --programs="${program%/tests/process/e2e/load_worker}" "$@"
}

#: history FOLDER              judges a history that ./run faults or ./run soak has kept
verb_history() {
  need "${build_packages[@]}"
  start //tests/process/history:judge "$@"
}

#: attack [--minutes N] [--only=TEXT] [--seed=N]  outsiders, neighbours and members attack a job of this machine, over the loopback, for two
#:                              minutes: it goes on, its memory and descriptors stay bounded, its log is no flood
verb_attack() {
  need "${build_packages[@]}"
  local minutes=2
  if [[ ${1:-} == --minutes ]]; then
    minutes=${2:-2}
    shift 2
  fi
  binary //tests/process/e2e:load_worker
  local worker=$program
  start //tests/attack:attack "--load_worker=$worker" "--seconds=$((minutes * 60))" "$@"
}

#: audit [--minutes N] [--seed S] [--keep]  workers in Python on the wheel and in C on the SDK, killed, stopped and cut off, for two
#:                              minutes: a checker that knows nothing of Tryst judges what each of them wrote down
verb_audit() {
  need python3 gcc openssl iproute2
  make_wheel
  bz build "${static_flags[@]}" //:sdk_c || die "the archive does not build"
  exec tests/attack/audit/audit.py "--wheel=$wheel" "--sdk=$(bz info "${static_flags[@]}" bazel-bin 2>/dev/null)/sdk_c.tar.gz" "$@"
}

#: fence [CANCELS]             so many cancels of transfers under way over the software NIC; not one late byte
verb_fence() {
  need "${build_packages[@]}"
  start //tests/process/faults:fence soft "${1:-10000}"
}

#: model [--slots N ...]       every order of the slot protocol: slots, fetches, breaks, restarts, cancels
#:   --waiting                 of the second model, by spin: epochs, replay and waiting, in minutes and some GB
#:   --fence [RULE]            of the third, in a minute: one slot over carriers of two epochs; --all: without each rule, too
#:   --loan [RULE]             of the fourth, at once: a session over links of shared memory that break; --all: as above
#:   --run [RULE]              of another, in seconds: keys that are asked for in runs, and alone; --all: as above
#:   --grant [RULE]            of another, at once: a read under a grant of a region, which may end; --all: as above
#:   --weights                 of the fifth, by spin: which version of its weights a fleet serves, in minutes and some GB
verb_model() {
  case ${1:-} in
    --waiting | --weights)
      need g++ spin
      exec "tests/model/${1#--}_model.py"
      ;;
    --fence | --loan | --run | --grant)
      need python3
      exec "tests/model/${1#--}_model.py" "${@:2}"
      ;;
    "" | --slots | --fetches | --breaks | --restarts | --cancels | --digests | --parks | --failures | --farewells | --edges)
      need "${build_packages[@]}"
      start //tests/model:slot_model_search "$@"
      ;;
    *)
      note "no model $1; './run help' lists them"
      exit 2
      ;;
  esac
}

#: mutants [--some N|--quick] [--from SEED]  plants faults into a copy of the tree, one at a time, and sees whether the tests find them
#:   --sample N --from SEED    faults made by rule at any place of the protocol's rooms, judged by the tests that pass it;
#:   [--rooms A,B] [--targets //a:b,...] [--runs N], --pack FOLDER: to be judged on a larger machine (docs/TESTING.md)
#:   --list                    each described fault, and whether its text is still there; --only NAME,... these alone
verb_mutants() {
  need "${test_packages[@]}"
  exec tests/mutants/mutants.py "$@"
}
