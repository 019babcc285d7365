#!/usr/bin/env bash
# static_libraries.sh [--for=aarch64] [FOLDER]: makes what a self-contained shared library is linked from, in
# FOLDER/KEY (default: ~/.cache/tryst/static), and prints that folder. A second call only prints.
# For aarch64 it takes Debian's arm64 packages of the versions that are installed, installs none of them, and compiles with
# aarch64-linux-gnu-g++.
#
# Debian's archives of gRPC, Protobuf, Abseil, OpenSSL and so on are position independent enough
# for a shared library, but for the few members that keep thread-local variables of their own or
# print to stderr. Those are compiled again, from Debian's source packages of the very versions that are
# installed. libmicrohttpd is compiled again without HTTPS, which would bring GnuTLS and all it needs.
#   lib/*.a           found before the shared libraries, by -L
#   lib/libc.so ...   glibc as it was in 2.28, to be linked with (older_glibc.py)
#   objects/*.pic.o   to be linked as they are, in place of the members of those archives, and of what that glibc lacks
#   bin/, include/    compiler and binutils under their plain names, and headers that differ by processor, for another than this machine's
#   THIRD_PARTY       the licences of all that
#   made_of           each archive, its Debian package and that package's version; source packages are marked by "source"
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

# Source package, development package, and the sources to compile again.
abseil=(libabsl-dev
  absl/base/internal/sysinfo.cc absl/strings/internal/cordz_functions.cc
  absl/random/internal/pool_urbg.cc absl/container/internal/raw_hash_set.cc
  absl/strings/internal/str_format/parser.cc)
grpc=(libgrpc-dev
  src/core/lib/iomgr/ev_epoll1_linux.cc src/core/lib/iomgr/timer_generic.cc
  src/core/lib/iomgr/ev_poll_posix.cc src/core/lib/gpr/log_linux.cc src/core/lib/gprpp/time.cc)
protobuf=(libprotobuf-dev src/google/protobuf/arena.cc src/google/protobuf/stubs/common.cc)
re2=(libre2-dev re2/{bitstate,compile,dfa,filtered_re2,mimics_pcre,nfa,onepass,parse,prefilter}.cc
  re2/{prefilter_tree,prog,re2,regexp,set,simplify,stringpiece,tostring}.cc util/{rune,strutil}.cc)
archives=(address_sorting atomic cares crypto gcc gcc_eh gpr grpc grpc++ grpc++_reflection protobuf re2 ssl stdc++ upb z)

die() { echo "static_libraries: $*" >&2; exit 1; }
version() { dpkg-query -Wf '${source:Version}' "$1" 2>/dev/null || die "$1 is not installed"; }

cross="" processor=$(uname -m)
if [[ ${1:-} == --for=* ]]; then
  if [[ ${1#--for=} != "$processor" ]]; then cross=${1#--for=}-linux-gnu-; fi
  processor=${1#--for=}
  shift
fi
case $processor in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; *) die "there is nothing for $processor" ;; esac
command -v "${cross}g++" >/dev/null || die "there is no ${cross}g++"

versions=$(for package in "${abseil[0]}" "${grpc[0]}" "${protobuf[0]}" "${re2[0]}" libmicrohttpd-dev libxxhash-dev \
  libssl-dev libc-ares-dev zlib1g-dev libc6-dev; do
  echo "$package $(version "$package")"
done; "${cross}g++" --version | head -n 1)
key=$({ echo "$versions"; cat "$here"/static_libraries.sh "$here"/older_glibc.*; } | sha256sum | cut -c1-16)
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/tryst/static}/$processor-$key
if [[ -e $folder ]]; then
  echo "$folder"
  exit
fi

command -v dpkg-source >/dev/null || die "needs dpkg-dev"
mkdir -p "${folder%/*}"
work=$(mktemp -d "${folder%/*}/making.XXXXXX")
trap 'rm -rf "$work"' EXIT
log=$work/log
say() { echo "static_libraries: $*" >&2; }
run() { "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; die "failed: $*"; }; }

# Uses the machine's own suites and mirrors, and leaves apt's own state alone.
mkdir -p "$work"/apt/{lists,cache/archives}/partial "$work"/{lib,objects,source,packages,include}
awk '/^Types:/ { print "Types: deb-src"; next } { print }' /etc/apt/sources.list.d/*.sources \
  >"$work/all.sources" 2>/dev/null || true
sed -nE 's/^deb (.*)/deb-src \1/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
  >"$work/all.list" 2>/dev/null || true
mkdir "$work/parts"
mv "$work"/all.* "$work/parts"
apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts"
  -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
say "fetching Debian's sources of gRPC, Protobuf, Abseil, RE2 and libmicrohttpd"
run "${apt[@]}" update
cd "$work/source"
source_of() { # SOURCE VERSION: unpacks it as ./SOURCE.
  run "${apt[@]}" source "$1=$2"
  echo "source $1 $2" >>"$work/made_of"
  mv "$1"-*/ "$1"
}

# The archives: of this machine's packages, or of those that are unpacked here. Those whose members are compiled again must be of
# the same version.
declare -A package_of # What is unpacked here.
found=$(dirname "$(g++ -print-file-name=libgrpc.a)")
if [[ -n $cross ]]; then
  say "fetching Debian's packages for $debian"
  sed 's/^\(Types:\).*/\1 deb/' "$work/parts/all.sources" >"$work/parts/binary.sources"
  sed 's/^deb-src/deb/' "$work/parts/all.list" >"$work/parts/binary.list"
  apt=("${apt[@]}" -o "APT::Architecture=$debian" -o "APT::Architectures::=$debian")
  run "${apt[@]}" update
  read -ra same <<<"$(dpkg-query -Wf '${Package}=${Version} ' libabsl-dev libgrpc-dev libgrpc++-dev libprotobuf-dev libre2-dev)"
  (cd "$work/packages" && run "${apt[@]}" download "${same[@]}" libssl-dev libc-ares-dev zlib1g-dev libpython3.11-dev)
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/packages"
    while read -r file; do package_of[${file##*/}]=$(dpkg-deb -W "$package"); done < <(dpkg-deb -c "$package" | grep -oE '[^ ]*\.a$')
  done
  found=$work/packages/usr/lib/${cross%-}
  cp -r "$work/packages/usr/include/${cross%-}/." "$work/include"
  ln -s . "$work/include/${cross%-}"
  mkdir "$work/bin"
  for tool in gcc g++ ar as ld ld.gold nm objcopy objdump readelf strip; do ln -s "$(command -v "$cross$tool")" "$work/bin/$tool"; done
fi
owner() { # ARCHIVE: its package and that package's version
  local package=${package_of[${1##*/}]:-}
  if [[ -z $package ]]; then
    package=$(dpkg-query -S "$(readlink -f "$1")") || die "no package has $1"
    package=$(dpkg-query -W "${package%%: *}")
  fi
  package=${package/:$debian/}
  echo "${package/$'\t'/ }"
}
for name in "${archives[@]}"; do
  file=$found/lib$name.a
  if [[ ! -e $file ]]; then file=$("${cross}g++" -print-file-name="lib$name.a"); fi
  [[ $file == /* ]] || die "there is no lib$name.a"
  cp "$file" "$work/lib"
  echo "lib$name.a $(owner "$file")" >>"$work/made_of"
done
cp "$found"/libabsl_*.a "$work/lib"
echo "libabsl_*.a $(owner "$found/libabsl_base.a")" >>"$work/made_of"
echo "xxhash.h libxxhash-dev $(version libxxhash-dev)" >>"$work/made_of" # A header alone, which the weights' code has inside.
# Their licences are to be passed on with what is linked from them.
for package in $(awk '$1 != "source" { print $2 }' "$work/made_of" | sort -u) libmicrohttpd-dev; do
  terms=$work/packages/usr/share/doc/$package/copyright
  if [[ ! -e $terms ]]; then terms=/usr/share/doc/$package/copyright; fi
  printf '%s\n\n' "######## Debian's package $package ########"
  cat "$terms" || die "there is no $terms"
  echo
done >"$work/THIRD_PARTY"

jobs=0
# With the flags of Debian's build: another NDEBUG would change the layouts that gRPC's functions
# share.
compile() { # OBJECT FLAGS... SOURCE
  ((jobs++ < $(nproc))) || { wait -n || die "$(tail -n 20 "$log")"; ((jobs--)); }
  "${cross}g++" -c -O2 -g0 -fPIC -fstack-protector-strong "${@:2}" -o "$work/objects/$1.pic.o" >>"$log" 2>&1 &
}
name() { # PROJECT SOURCE
  local flat=${2%.cc}
  echo "$1_${flat//\//_}"
}

for project in abseil grpc protobuf re2; do
  declare -n all=$project
  source_of "$project" "$(version "${all[0]}")"
done
source_of libmicrohttpd "$(version libmicrohttpd-dev)"
say "compiling what is not position independent"
for file in "${abseil[@]:1}"; do
  compile "$(name abseil "$file")" -std=c++17 -Iabseil "abseil/$file"
done
for file in "${grpc[@]:1}"; do
  compile "$(name grpc "$file")" -std=c++17 -Igrpc -Igrpc/include -Igrpc/src/core/ext/upb-generated \
    -Igrpc/src/core/ext/upbdefs-generated -Igrpc/third_party/upb -Igrpc/third_party/xxhash "grpc/$file"
done
for file in "${protobuf[@]:1}"; do
  compile "$(name protobuf "$file")" -std=c++14 -DHAVE_PTHREAD -Iprotobuf/src "protobuf/$file"
done
for file in "${re2[@]:1}"; do
  compile "$(name re2 "$file")" -std=c++11 -pthread -Ire2 "re2/$file"
done
compile older_glibc -std=c++17 -fno-exceptions -ffunction-sections "$here/older_glibc.cc"
while ((jobs-- > 0)); do wait -n || die "$(tail -n 20 "$log")"; done
(
  cd libmicrohttpd
  run ./configure ${cross:+"--host=${cross%-}"} --disable-https --disable-doc --disable-examples --disable-curl --with-pic \
    --enable-static --disable-shared CFLAGS=-O2
  run make -C src/microhttpd libmicrohttpd.la
)

CROSS=$cross python3 "$here/older_glibc.py" "$("${cross}g++" -print-file-name=libc.so.6)" "$work/lib"
cp libmicrohttpd/src/microhttpd/.libs/libmicrohttpd.a "$work/lib"
if "${cross}readelf" -rW "$work"/objects/*.o | grep -qE 'R_X86_64_TPOFF32|R_AARCH64_TLSLE'; then die "an object is not position independent"; fi
rm -rf "$work"/{apt,parts,source,packages,log}
cd /
chmod -R a+rX "$work"
mv -T "$work" "$folder" 2>/dev/null || [[ -e $folder ]] || die "cannot make $folder"
echo "$folder"
