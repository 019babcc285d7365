# shellcheck shell=bash
# What checks a change: ./run test. ./run sources it.

#: test [TARGET...]            format, tidy, build, every test; flags of `bazel test` pass
#:   --asan|--tsan|--ubsan     the same under a sanitizer (--asan has UBSan in it)
#:   --guest                   the tests that need a kernel with Soft-RoCE, in a QEMU guest
#:   --fresh [--suite=NAME] [--demo]  ./run demo and ./run test in a bare Debian 12, or NAME, chroot (needs root);
#:                             --demo: only the first
#:   --python [--with=torch]   the wheel from its file in a fresh environment, with jax and ray, or what is named (needs PyPI)
#:   --adapters [nixl|lmcache|vllm ...]  the adapters in NIXL, LMCache and vLLM of PyPI; the conformance kit for NIXL's back ends
#:   --systems [SUITE...]      wheel, C library and NCCL's plug-in in bare Debians, the oldest and the newest to be had (needs root)
#:   --release [SUITE...]      ./run release with a key of its own: what it made fits together; then --systems
#:     [--for=PROCESSOR ...] [--twice] [--quick]: made twice and compared; in no other systems
#:   --emulated [--tensorflow]  the same three for aarch64, under qemu-user; TensorFlow, too (1.6 GB of PyPI)
#:   --tensorflow [NAME...]    TensorFlow of PyPI over Tryst, from the wheel: sends and receives beside gRPC's, the example
#:   --previous                workers of this tree and of the last release fetch from each other, on every path
#:   --engines                 jobs under a real Slurm, mpirun and etcd on this machine; --slurm, --mpirun, --etcd: only that
#:   --kubernetes              its manifests against the schemas (a validator from PyPI), names in a DNS whose answers change
verb_test() {
  case ${1:-} in
    --guest)
      [[ -x tests/hardware/guest/run.sh ]] || die "this checkout has no tests/hardware/guest/run.sh"
      need "${test_packages[@]}"
      (need "${guest_packages[@]}") || note "the guest lane will say what it lacks"
      export TRYST_BAZEL="bazel${TRYST_OUTPUT_USER_ROOT:+ --output_user_root=$TRYST_OUTPUT_USER_ROOT}"
      exec tests/hardware/guest/run.sh "${@:2}"
      ;;
    --fresh)
      need debootstrap git
      exec tests/release/fresh_machine/run.sh "${@:2}"
      ;;
    --python)
      (need valgrind) || note "no instructions will be counted"
      make_wheel
      bz build "${static_flags[@]}" //:sdk_c //tests/doubles/cuda:libfake_cuda.so || die "what the tests need does not build"
      exec tests/frameworks/python/run.sh "$wheel" "$(bz info bazel-bin 2>/dev/null)" "${@:2}"
      ;;
    --adapters)
      make_wheel
      exec tests/frameworks/adapters/run.sh "$wheel" "${@:2}"
      ;;
    --systems)
      need debootstrap
      make_wheel
      (verb_plugin nccl)
      exec tests/release/systems.sh "$wheel" "$(./run sdk)" out/plugins/libnccl-net-tryst.so "${@:2}"
      ;;
    --emulated)
      need debootstrap qemu-user-static
      make_wheel --for=aarch64
      (caller=$PWD && verb_plugin nccl --for=aarch64 out/plugins/aarch64)
      exec tests/release/emulated.sh "$wheel" "$(./run sdk --for=aarch64)" out/plugins/aarch64/libnccl-net-tryst.so "${@:2}"
      ;;
    --release)
      need openssh-client
      [[ " $* " == *" --quick "* ]] || (need debootstrap) || note "other systems will not be tried"
      exec tests/release/run.sh "${@:2}"
      ;;
    --tensorflow)
      need python3-venv
      tests/frameworks/tensorflow/run.sh --venv || exit $(($? == 77 ? 0 : $?)) # 77: not here, and it has said why.
      make_wheel
      exec tests/frameworks/tensorflow/run.sh "$wheel" test "${@:2}"
      ;;
    --previous)
      need "${build_packages[@]}" git openssl librdmacm-dev # The last: 0.2.0 is built against it.
      (need abigail-tools) || note "the C interface will not be compared"
      binary //tests/release/versions:peer
      local peer=$program
      self_contained
      static_flags+=("--per_file_copt=^server/c/.*@-g")
      binary //server/c:libtryst.so.1 "${static_flags[@]}"
      export TRYST_BAZEL="bazel${TRYST_OUTPUT_USER_ROOT:+ --output_user_root=$TRYST_OUTPUT_USER_ROOT}"
      exec tests/release/versions/previous.sh "$peer" "$program" "${static_flags[@]}"
      ;;
  esac
  case ${1:-} in
    --engines | --slurm | --mpirun | --etcd | --kubernetes)
      (need "${engine_packages[@]}") || note "what is missing will be skipped"
      binary //examples/parameter_server:parameter_server
      bz build //server:trystd //server:tryst //tests/release/versions:peer //tests/weights:log_appender //tests/weights:group_worker
      exec tests/frameworks/engines/run.sh "${program%/examples/*}" "$@"
      ;;
  esac
  local lane="" flags=() targets=() steps=() argument asked skips format code=0 attempts=2
  for argument; do
    case $argument in
      --asan | --tsan | --ubsan) lane=${argument#--} flags+=("--config=${argument#--}") ;;
      --*) flags+=("$argument") ;;
      *) targets+=("$argument") ;;
    esac
  done
  need "${test_packages[@]}"
  if ((${#targets[@]} == 0)); then
    targets=(//...)
    check_format
    steps+=("--step=format=$format")
    if tests/tidy/tidy.py; then steps+=(--step=tidy=passed); else steps+=(--step=tidy=failed); fi
  fi
  if [[ " ${targets[*]}" == *" //..."* || "${targets[*]}" == *oncall* ]]; then
    (need "${page_packages[@]}") || note "the status page and the site will not be looked at"
  fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  if [[ -n $lane ]]; then attempts=1; fi # A child's report stands in no log of Bazel's.
  bz test -k --flaky_test_attempts=$attempts --build_event_json_file="$work/events" "${flags[@]}" -- "${targets[@]}" || code=$?
  asked=$(bz query "kind('_test rule', set(${targets[*]}))" 2>/dev/null || true)
  skips=$(bz query "attr(tags, '\\b(manual${lane:+|no_$lane})\\b', kind('_test rule', set(${targets[*]})))" 2>/dev/null || true)
  tools/test_summary.py --exit="$code" --asked="$asked" --tagged="$skips" "${steps[@]}" "$work/events"
}
