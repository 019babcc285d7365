#!/usr/bin/env bash
# run.sh BAZEL_BIN --engines|--slurm|--mpirun|--etcd|--kubernetes [ARGUMENTS]: runs those tests, and
# prints one closing line for all.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")" || exit 1
bin=$1 which=${2#--}
shift 2
case $which in
  engines) which="slurm mpirun etcd kubernetes" ;;
esac
# Installs from PyPI only when asked for by name.
if [[ $which == kubernetes ]]; then
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/tryst/kubernetes_validate
  if [[ ! -x $venv/bin/python3 ]]; then
    python3 -m venv "$venv" && "$venv/bin/pip" install -q kubernetes-validate || rm -rf "$venv"
  fi
  if [[ -x $venv/bin/python3 ]]; then PATH=$venv/bin:$PATH; fi
fi
patience=3600
case $which in
  *\ *) patience=150 ;; # For all of them: eleven minutes at most, four on a quiet machine.
esac
passed=0 failed=0 skipped=0 out=$(mktemp)
trap 'rm -f "$out"' EXIT
for name in $which; do
  limit=$patience
  case $name in
    slurm) programs=("$bin/examples/parameter_server/parameter_server" "$bin/server/trystd") ;;
    mpirun) programs=("$bin/examples/parameter_server/parameter_server") ;;
    etcd)
      programs=("$bin/tests/release/versions/peer" "$bin/tests/weights/log_appender" "$bin/tests/weights/group_worker")
      limit=$((patience + 60))
      ;;
    kubernetes) programs=("$bin/tests/release/versions/peer" "$bin/server/trystd" "$bin/server/tryst") ;;
  esac
  echo "=== $name"
  # The last line holds the counts; a test that hangs prints none.
  timeout --kill-after=10 "$limit" "./$name.py" "${programs[@]}" "$@" 2>&1 | tee "$out"
  if [[ $(tail -n 1 "$out") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + BASH_REMATCH[3]))
  else
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
