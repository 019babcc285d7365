#!/usr/bin/env bash
# tests/hardware/guest/run.sh [--long|--figures|--channel|--nccl|--faults[=SECONDS]] [--setup=one|pair]: real
# libibverbs on Soft-RoCE. What ./run test --guest calls.
#
# Builds the lane's programs, boots a guest (vm-run) in each set-up and runs lane.sh in
# it: the Nic contract, what only rdma-core can show, faults on the wire, the channel's
# contract, the suite for NCCL's net plugins, storms of faults and of fenced cancels, and
# perftest's figures beside ours.
# --long moves gigabytes where the lane moves a sample, and takes its time. Alone:
# --figures measures in several rounds, --channel does what is the channel's, --nccl the
# suite for NCCL's net plugins, and --faults puts faults on for so long, and then cancels 10,000 transfers.
#
# Skips, loudly and with exit code 0, where there can be no guest: no QEMU, no Debian
# kernel to be had. A guest that dies names the test it died in and is booted afresh
# once. Ends within 16 minutes: each test has a limit of its own (lane.sh), each boot one;
# what a slow machine leaves no time for is skipped and says so.
#
#   TRYST_GUEST_DIR         where the guest is kept (~/.cache/tryst/guest, 470 MB)
#   TRYST_BAZEL             the build command, instead of bazel
#   TRYST_OUTPUT_USER_ROOT, TRYST_BAZEL_FLAGS, TRYST_INSTALL   as ./run has them
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../../.."
here=tests/hardware/guest
guest=${TRYST_GUEST_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tryst/guest}
what=tests
setups=(one pair)
fault_seconds=180
for argument in "$@"; do
  case $argument in
    --long) what=long ;;
    --figures) what=figures ;;
    --channel) what=channel ;;
    --nccl) what=nccl ;;
    --faults) what=faults setups=(pair) ;;
    --faults=*) what=faults setups=(pair) fault_seconds=${argument#--faults=} ;;
    --setup=one | --setup=pair) setups=("${argument#--setup=}") ;;
    *)
      sed -n '2,20s/^# \{0,1\}//p' "$0" >&2
      exit 2
      ;;
  esac
done

skip_lane() { # REASON
  echo "SKIPPED: the guest lane: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

programs=(ibv_contract_test ibv_rxe_test ibv_channel_test ofi_contract_test ofi_channel_test stream figures channel_figures)
fault_programs=(fault_storm fence)
cluster_programs=(cluster_test load_worker)
nccl_targets=(//tests/frameworks/nccl_net:nccl_net_suite //plugins/nccl:libnccl-net-tryst-tested.so)
packages=()
need() { # COMMAND PACKAGE
  if ! command -v "$1" >/dev/null; then packages+=("$2"); fi
}
PATH=$PATH:/usr/sbin:/sbin
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need cpio cpio
need modprobe kmod
need python3 python3
need xz xz-utils
need pgrep procps
need rdma iproute2
need ib_write_bw perftest
need ibv_devinfo ibverbs-utils
need fi_pingpong libfabric-bin
if [[ ! -e /usr/include/infiniband/verbs.h ]]; then packages+=(libibverbs-dev); fi
if ! compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so' >/dev/null; then packages+=(ibverbs-providers); fi
if ((${#packages[@]} > 0)); then
  echo "missing: ${packages[*]}"
  if [[ ${TRYST_INSTALL:-1} == 0 ]]; then skip_lane "needs ${packages[*]}"; fi
  if ((EUID != 0)); then skip_lane "needs ${packages[*]}, and root to install them"; fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get -q -o DPkg::Lock::Timeout=300 update >/dev/null || true
  apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}" \
    >/dev/null || skip_lane "cannot install ${packages[*]}"
fi
if [[ $(uname -m) != x86_64 ]]; then skip_lane "the guest is x86-64, this machine is $(uname -m)"; fi

"$here/vm-build" "$guest" || skip_lane "no kernel for the guest (see above)"
if ! "$here/vm-run" -s none -t 180 "$guest" true; then
  skip_lane "the guest does not boot (see above)"
fi

# Must run on any x86-64, because the emulated processor has no AVX-512.
bazel=(bazel ${TRYST_OUTPUT_USER_ROOT:+"--output_user_root=$TRYST_OUTPUT_USER_ROOT"})
if [[ -n ${TRYST_BAZEL:-} ]]; then read -ra bazel <<<"$TRYST_BAZEL"; fi
read -ra flags <<<"${TRYST_BAZEL_FLAGS:-}"
targets=("${programs[@]/#///$here:}" "${fault_programs[@]/#///tests/process/faults:}"
  "${cluster_programs[@]/#///tests/process/e2e:}" "${nccl_targets[@]}")
if [[ $what == nccl ]]; then targets=("${nccl_targets[@]}"); fi
"${bazel[@]}" build "${flags[@]}" "${targets[@]}" </dev/null
built=$("${bazel[@]}" info "${flags[@]}" bazel-bin 2>/dev/null </dev/null)/$here

results=$(mktemp)
trap 'rm -f "$results"' EXIT
ends_at=$((SECONDS + 920)) # There are 960: the rest is for a boot that has to be given up.

boot() { # SETUP: runs what has no result yet; false when the guest did not see it through.
  local code=0 limit=$((ends_at - SECONDS))
  case $what in # What is asked for explicitly may take as long as it takes.
    long | figures | channel | nccl) limit=900 ;;
    faults) limit=$((fault_seconds + 900)) ;;
    *) limit=$((limit > 450 ? 450 : limit)) ;;
  esac
  if ((limit < 20)); then return 124; fi
  # shellcheck disable=SC2046
  "$here/vm-run" -s "$1" -t "$limit" "$guest" bash "$here/lane.sh" "${what/faults/faults=$fault_seconds}" "$1" "$built" "$limit" \
    $(awk -v setup="$1" '$1 != "RUN" && $2 == setup { sub(":$", "", $3); print $3 }' "$results") |
    tee -a "$results" || code=${PIPESTATUS[0]}
  return "$code"
}

# The last test begun, if it has no result: the guest died in it.
open_test() { # SETUP
  awk -v setup="$1" '
    $2 != setup { next }
    $1 == "RUN" { open = $3 }
    $1 ~ /^(PASS|FAIL|SKIP)$/ { open = "" }
    END { print open == "" ? "no_test" : open }' "$results"
}

for setup in "${setups[@]}"; do
  for attempt in first second; do
    code=0
    boot "$setup" || code=$?
    if ((code == 0)); then break; fi
    test=$(open_test "$setup")
    if ((code == 124)); then
      echo "FAIL $setup $test: the guest ran out of time" | tee -a "$results"
      break
    fi
    echo "the guest of set-up $setup died (code $code) in $test"
    if [[ $attempt == second ]]; then
      echo "FAIL $setup $test: the guest died twice" | tee -a "$results"
    fi
  done
done

count() { grep -c "^$1 " "$results" || true; }
failed=$(count FAIL)
grep -E '^(FAIL|SKIP) ' "$results" || true
echo "$(count PASS) passed, $failed failed, $(count SKIP) skipped"
((failed == 0))
