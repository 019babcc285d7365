# shellcheck shell=bash
# What measures: ./run bench. ./run sources it.

#: bench host [--quick]        Tryst beside its peers and the machine's limits, in one run (docs/BENCHMARKS.md)
#:   [--json FILE] [--only RE] [--work RE] [--rounds N] [--plots FOLDER]
#: bench check                 fails when a pull takes 5 % more instructions than it did; reports the quick bench's ratios
#: bench instructions [--json FILE]  what each stage of a pull takes both ends, counted by callgrind; --files: which files it passes
#: bench where [VARIANT]       where each microsecond of a pull goes, by perf: soft, grpc, shm
#: bench scale [--quick]       1 to 1,024 peers, and a job of 1,000 workers in a model fed by what is measured
#: bench guest [--json FILE]   Tryst over Soft-RoCE beside perftest, in one guest
#: bench python [--quick]      Tryst from Python beside NIXL, Mooncake, gloo, mpi4py, pyzmq, grpcio, multiprocessing,
#:                             Ray's store and torch's RPC
#:   --blocking [shm|soft|nixl ...]: receives that wait, beside NIXL's reads
#:   --pull: beside the C interface; --gpus: torch's CUDA tensors beside the peer copy, on two GPUs;
#:   --all-to-all [--ranks 4]: a process a GPU, each sending to each other, beside NCCL's alltoall
#: bench weights [--quick]     256 MiB of weights from two processes to two that have them sharded otherwise, beside gloo, NIXL,
#:   [--path shm|soft]         Mooncake and Ray's store, in Python; --pause: how long members stand while they generate
#:   [--peers LIST] [--json FILE]; --delta: what comes of a version to who has the one before;
#:   --data: what the copies, digests and deltas of weights/ cost one core
#: bench kv [SYSTEM ...]       blocks that lie anywhere, from pool to pool of two processes, in Python, beside NIXL and Mooncake;
#:   [--quick] [--turns=N]     SYSTEM: c, by the C interface; shm; soft; nixl; mooncake; agent, through NIXL's own agent, its back
#:   [--spans=LIST]            end TRYST or UCX; else all in that order, N times in turns
#:   [--json=FILE] [--abort]   --abort: how long a cancel takes, and what comes after it; --data: what the copies cost one core
#: bench nccl [--check|--kill N]  NCCL over the plugin beside NCCL's sockets, on this machine's GPUs (needs PyTorch)
#: bench device                tensors between devices of this machine
#: bench tensorflow [OPTIONS]  TensorFlow's steps by Tryst beside its gRPC (docs/TENSORFLOW.md)
#: bench [NAME] [--json FILE]  //bench:NAME_bench, or every benchmark in turn
verb_bench() {
  if [[ ${1:-} == host || ${1:-} == check ]]; then
    need "${bench_packages[@]}"
    binary //bench/peers:tryst
    if [[ $1 == check ]]; then
      local tryst=$program
      binary //bench:instructions
      exec bench/check.sh "$tryst" "$program"
    fi
    exec python3 bench/host.py --tryst "$program" "${@:2}"
  fi
  need "${test_packages[@]}"
  if [[ ${1:-} == nccl ]]; then
    verb_plugin nccl
    exec python3 bench/nccl/gpus.py --plugin out/plugins/libnccl-net-tryst.so "${@:2}"
  fi
  if [[ ${1:-} == instructions ]]; then
    need valgrind
    binary //bench:instructions
    exec python3 bench/instructions.py "$program" "${@:2}"
  fi
  if [[ ${1:-} == where ]]; then
    need linux-perf
    binary //bench/peers:tryst
    exec python3 bench/where.py "$program" "${@:2}"
  fi
  if [[ ${1:-} == scale ]]; then
    binary //bench:scale_bench
    binary //bench:peers_bench
    binary //bench/peers:tryst
    exec python3 bench/scale.py --programs "${program%/peers/tryst}" "${@:2}"
  fi
  if [[ ${1:-} == python ]]; then
    need python3-venv
    make_wheel
    if [[ ${2:-} == --gpus || ${2:-} == --all-to-all ]]; then # With the machine's own torch.
      local script=bench/python_gpus.py
      if [[ $2 == --all-to-all ]]; then script=bench/python_all_to_all.py; fi
      rm -rf out/wheel/site
      python3 -m zipfile -e "$wheel" out/wheel/site
      PYTHONPATH=$PWD/out/wheel/site exec python3 "$script" "${@:3}"
    fi
    if [[ ${2:-} == --pull ]]; then
      local bin
      bin=$(bz info bazel-bin 2>/dev/null)
      gcc -O2 -std=gnu99 -Iserver/c bench/pull.c "$bin/server/c/libtryst.so.1" -Wl,-rpath,"$bin/server/c" -o out/wheel/pull
      exec bench/python.sh "$wheel" bench/python_pull.py "$PWD/out/wheel/pull"
    fi
    if [[ ${2:-} == --blocking ]]; then exec bench/python.sh "$wheel" bench/python_blocking.py "${@:3}"; fi
    exec bench/python.sh "$wheel" bench/python.py "${@:2}"
  fi
  if [[ ${1:-} == weights ]]; then
    if [[ ${2:-} == --data ]]; then start //bench:weights_bench "${@:3}"; fi
    need python3-venv
    make_wheel
    if [[ ${2:-} == --delta ]]; then exec bench/python.sh "$wheel" bench/weights_delta.py "${@:3}"; fi
    exec bench/python.sh "$wheel" bench/weights.py "${@:2}"
  fi
  if [[ ${1:-} == kv ]]; then
    if [[ ${2:-} == --data ]]; then start //bench:kv_bench "${@:3}"; fi
    need python3-venv
    make_wheel
    local lib
    lib=$(bz info "${static_flags[@]}" bazel-bin 2>/dev/null)/server/c
    gcc -O2 -std=gnu99 -Iserver/c bench/kv.c "$lib/libtryst.so.1" -Wl,-rpath,"$lib" -o out/wheel/kv
    exec bench/python.sh "$wheel" bench/kv.py "--c=$PWD/out/wheel/kv" "${@:2}"
  fi
  if [[ ${1:-} == tensorflow ]]; then
    make_wheel
    exec tests/frameworks/tensorflow/run.sh "$wheel" bench/tensorflow/steps.py "${@:2}"
  fi
  if [[ ${1:-} == guest ]]; then
    (need "${guest_packages[@]}") || note "the guest will say what it lacks"
    export TRYST_BAZEL="bazel${TRYST_OUTPUT_USER_ROOT:+ --output_user_root=$TRYST_OUTPUT_USER_ROOT}"
    exec python3 bench/guest.py "${@:2}"
  fi
  if [[ ${1:--} != -* ]]; then start "//bench:${1}_bench" "${@:2}"; fi
  local label
  for label in $(bz query "filter('_bench$', //bench:all)" 2>/dev/null); do
    (start "$label" "$@")
  done
}

make_wheel() { # [--for=PROCESSOR]: sets $wheel.
  need python3-dev python3-venv binutils
  self_contained "$@"
  local made label=() plugin=()
  # NIXL's interface was read on x86-64.
  if [[ -z $cross ]]; then label=(//plugins/nixl:libplugin_TRYST.so); fi
  bz build "${static_flags[@]}" //python:_tryst.abi3.so //server/c:libtryst.so.1 "${label[@]}" || die "the wheel does not build"
  made=$(bz info "${static_flags[@]}" bazel-bin 2>/dev/null)
  if [[ -z $cross ]]; then plugin=("$made/plugins/nixl/libplugin_TRYST.so"); fi
  wheel=$(python3 python/wheel.py "$made/python/_tryst.abi3.so" "$made/server/c/libtryst.so.1" "$linked_from/THIRD_PARTY" out/wheel \
    "${plugin[@]}")
}
