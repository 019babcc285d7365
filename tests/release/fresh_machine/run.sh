#!/usr/bin/env bash
# Proves what README.md promises on a machine that has nothing: in a bare Debian 12
# chroot, clones the commit that is checked out here and runs ./run demo and ./run test.
#
#   tests/release/fresh_machine/run.sh [--keep] [--suite=NAME] [--demo] [ARGUMENTS OF ./run test]
#
# --suite: another Debian than bookworm, such as trixie. --demo: ./run demo alone.
# Needs root (for chroot), debootstrap, git, and a Debian mirror: this machine's, or
# TRYST_MIRROR. Nothing of this machine's is mounted in the chroot but its devices.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../../.."
# shellcheck source=tests/release/fresh_machine/bare.sh
source tests/release/fresh_machine/bare.sh
if ((EUID != 0)); then
  echo "SKIPPED: needs root, to chroot"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
keep=no suite=bookworm only_demo=no
while (($# > 0)); do
  case $1 in
    --keep) keep=yes ;;
    --suite=*) suite=${1#--suite=} ;;
    --demo) only_demo=yes ;;
    *) break ;;
  esac
  shift
done

folder=$(mktemp -d)
finish() {
  if [[ -x $folder/usr/bin/bazel ]]; then inside 'cd /tryst && bazel shutdown' >/dev/null 2>&1 || true; fi
  bare_unmount "$folder"
  if [[ $keep == yes ]]; then echo "kept: $folder"; else rm -rf --one-file-system "$folder"; fi
}
trap finish EXIT
bare_debian "$suite" "$folder"
cp -L /etc/resolv.conf "$folder/etc/resolv.conf" 2>/dev/null || true
# Copies how this machine reaches its mirror: proxies, and further archives.
if [[ $suite == $(. /etc/os-release && echo "${VERSION_CODENAME:-}") ]]; then
  cp /etc/apt/sources.list.d/debian.sources "$folder/etc/apt/sources.list.d/" 2>/dev/null || true
fi
grep -lsE 'Acquire' /etc/apt/apt.conf.d/* | xargs -r cp -t "$folder/etc/apt/apt.conf.d/"

inside() { # COMMAND: as a person logged in, but without a terminal.
  chroot "$folder" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    ${TRYST_BAZEL_FLAGS:+"TRYST_BAZEL_FLAGS=$TRYST_BAZEL_FLAGS"} bash -ec "$1" </dev/null
}

git bundle create -q "$folder/tryst.bundle" HEAD
inside 'apt-get -q update && apt-get -q install -y --no-install-recommends git' >/dev/null
inside 'git clone -q /tryst.bundle /tryst'

echo "=== ./run demo"
demo=passed
inside 'cd / && /tryst/run demo' || demo=failed
echo "demo $demo after $SECONDS s, the bare system and its packages included"
if [[ $only_demo == yes ]]; then
  if [[ $demo == passed ]]; then echo "1 passed, 0 failed, 0 skipped"; exit 0; fi
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi

echo "=== ./run test $*"
code=0
inside "cd /tryst && ./run test $*" | tee "$folder/log" | sed -uE 's/^([0-9]+ passed, .*)$/inside: \1/' || code=$?
counts=$(grep -xE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$folder/log" | tail -n 1)
if [[ ! $counts =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+) ]]; then
  echo "FAILED  ./run test: no closing line"
  exit 1
fi
passed=${BASH_REMATCH[1]} failed=${BASH_REMATCH[2]} skipped=${BASH_REMATCH[3]}
echo "test ended after $SECONDS s"

# With the packages installed, nothing needs root.
person=passed
inside 'useradd -m -d /person person && runuser -u person -- env HOME=/person bash -ec "
  cd && git clone -q /tryst.bundle tryst && cd tryst && ./run test //base/... && bazel shutdown"' |
  sed -uE 's/^([0-9]+ passed, .*)$/as a person: \1/' || person=failed
echo "as a person: $person"

for result in "$demo" "$person"; do
  if [[ $result == passed ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed, $skipped skipped"
((code == 0 && failed == 0))
