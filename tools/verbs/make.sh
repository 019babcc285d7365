# shellcheck shell=bash
# What is given to users: wheel, SDK, plug-ins, releases. ./run sources it.

#: wheel [--for=aarch64]       the Python package as one wheel, in out/wheel, for pip install
verb_wheel() {
  make_wheel "$@"
  echo "$wheel"
}

#: sdk [--for=aarch64]         the C interface as one library with everything inside, in out/sdk (docs/SDK.md)
verb_sdk() {
  self_contained "$@"
  bz build "${static_flags[@]}" //:sdk_c || die "the archive does not build"
  local archive=out/sdk/tryst-c${cross:+-${1#--for=}}.tar.gz
  mkdir -p out/sdk
  install -m 644 "$(bz info "${static_flags[@]}" bazel-bin 2>/dev/null)/sdk_c.tar.gz" "$archive"
  echo "$archive"
}

pack() { # ARCHIVE PREFIX PATH...: always the same bytes of the same files.
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --transform="s,^,$2/," -cf - "${@:3}" | gzip -n >"$1"
}

release_parts() { # FOLDER VERSION PROCESSOR...: makes the artefacts there, and sets $made_from for tools/release.py.
  local folder=$1 version=$2 processor bin plugin
  made_from=()
  for processor in "${@:3}"; do
    make_wheel "--for=$processor"
    bz build "${static_flags[@]}" //:sdk_c //plugins/nccl:libnccl-net-tryst.so || die "the archives for $processor do not build"
    bin=$(bz info "${static_flags[@]}" bazel-bin 2>/dev/null)
    cp "$wheel" "$folder"
    install -m 644 "$bin/sdk_c.tar.gz" "$folder/tryst-c-$version-linux-$processor.tar.gz"
    plugin=$(mktemp -d)
    cp "$bin/plugins/nccl/libnccl-net-tryst.so" "$linked_from/THIRD_PARTY" LICENSE docs/NCCL.md "$plugin"
    (cd "$plugin" && pack plugin.tar.gz "tryst-nccl-$version" ./*)
    mv "$plugin/plugin.tar.gz" "$folder/tryst-nccl-$version-linux-$processor.tar.gz"
    rm -rf "$plugin"
    made_from+=("$processor=$linked_from=$bin/python/_tryst.abi3.so,$bin/server/c/libtryst.so.1,$bin/plugins/nccl/libnccl-net-tryst.so")
  done
  bz build //:sdk || die "the archive for C++ does not build"
  bin=$(bz info bazel-bin 2>/dev/null)
  # shellcheck disable=SC1091  # The machine's own.
  install -m 644 "$bin/sdk.tar.gz" "$folder/tryst-cpp-$version-$(. /etc/os-release && echo "$ID$VERSION_ID")-$(uname -m).tar.gz"
  pack "$folder/tryst-docs-$version.tar.gz" "tryst-docs-$version" README.md CHANGELOG.md LICENSE docs
}

#: release [--key FILE] [--for=PROCESSOR ...]  every artefact, made twice and compared byte by byte, with bill of materials, checksums,
#:                             signature by that key (ssh-keygen), notes and provenance, in out/release (docs/RELEASES.md)
#:   --trial                   although the tree has changes, or CHANGELOG.md has some under Unreleased
#:   --once                    does not make them a second time
verb_release() {
  local key="" trial=no once=no processors=() folder=out/release version commit file
  version=$(sed -nE 's/^__version__ = "(.*)"/\1/p' python/tryst/__init__.py)
  if [[ ${1:-} == --parts ]]; then # The second making, from a tree without history.
    release_parts "$2" "$version" "${@:3}"
    return
  fi
  while (($# > 0)); do
    case $1 in
      --key) key=$2 && shift ;;
      --for=*) processors+=("${1#--for=}") ;;
      --trial) trial=yes ;;
      --once) once=yes ;;
      *) die "release knows no $1" ;;
    esac
    shift
  done
  if ((${#processors[@]} == 0)); then processors=("$(uname -m)"); fi
  if [[ -n $key && $key != /* ]]; then key=$caller/$key; fi
  need git openssh-client
  if [[ $trial == no ]]; then
    [[ -z $(git status --porcelain) ]] || die "a release is made of a commit, and this tree has changes: git status"
    ! grep -q '^## Unreleased' CHANGELOG.md || die "CHANGELOG.md has changes under Unreleased: give them a version"
  fi
  commit=$(git rev-parse HEAD)
  rm -rf "$folder"
  mkdir -p "$folder"
  release_parts "$folder" "$version" "${processors[@]}"
  if [[ $once == no ]]; then
    note "the same again, from the commit alone, in another folder, with nothing that was built before"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/tree" "$work/parts"
    file=$(git stash create) # What is tracked, with its changes; nothing where there are none.
    git archive "${file:-HEAD}" | tar -x -C "$work/tree"
    (cd "$work/tree" && TRYST_BAZEL_FLAGS="" TRYST_OUTPUT_USER_ROOT=$work/outputs ./run release --parts "$work/parts" "${processors[@]}") ||
      die "the second making failed"
    bazel --output_user_root="$work/outputs" shutdown </dev/null >/dev/null 2>&1 || true
    chmod -R u+w "$work"
    diff -r "$folder" "$work/parts" || die "made twice, these differ"
    note "made twice, byte for byte the same: $(cd "$folder" && echo *)"
  fi
  TZ=UTC python3 tools/release.py "$folder" "$version" "$commit" "${made_from[@]}"
  if [[ -n $key ]]; then ssh-keygen -q -Y sign -n tryst-release -f "$key" "$folder/SHA256SUMS"; fi
  ls -l "$folder" >&2
}

make_nixl_plugin() { # [FOLDER]: puts libplugin_TRYST.so and libtryst.so.1 there; sets $plugins.
  plugins=${1:-out/plugins/nixl}
  self_contained
  bz build "${static_flags[@]}" //plugins/nixl:libplugin_TRYST.so //server/c:libtryst.so.1 || die "the plug-in does not build"
  local built
  built=$(bz info "${static_flags[@]}" bazel-bin 2>/dev/null)
  mkdir -p "$plugins"
  install -m 755 "$built/plugins/nixl/libplugin_TRYST.so" "$built/server/c/libtryst.so.1" "$plugins"
}

#: plugin nccl [--for=aarch64] [FOLDER]  libnccl-net-tryst.so, for NCCL and RCCL, into FOLDER (out/plugins): docs/NCCL.md
#: plugin nixl [FOLDER]        libplugin_TRYST.so, NIXL's back end TRYST, into FOLDER (out/plugins/nixl): docs/KV.md
verb_plugin() {
  if [[ ${1:-} == nixl ]]; then
    local nixl_folder=${2:-}
    [[ $nixl_folder == /* || -z $nixl_folder ]] || nixl_folder=$caller/$nixl_folder
    make_nixl_plugin "$nixl_folder"
    note "made $plugins/libplugin_TRYST.so; NIXL finds it by NIXL_PLUGIN_DIR=$(readlink -f "$plugins")"
    return
  fi
  [[ ${1:-} == nccl ]] || die "there are two plugins: ./run plugin nccl, ./run plugin nixl"
  local processor=()
  if [[ ${2:-} == --for=* ]]; then
    processor=("$2")
    set -- "$1" "${@:3}"
  fi
  self_contained "${processor[@]}"
  local folder=${2:-out/plugins}
  [[ $folder == /* || -z ${2:-} ]] || folder=$caller/$folder
  binary //plugins/nccl:libnccl-net-tryst.so "${static_flags[@]}"
  mkdir -p "$folder"
  install -m 755 "$program" "$folder/libnccl-net-tryst.so"
  # By these NCCL and RCCL find it where nobody names it.
  ln -sf libnccl-net-tryst.so "$folder/libnccl-net.so"
  ln -sf libnccl-net-tryst.so "$folder/librccl-net.so"
  note "made $folder/libnccl-net-tryst.so"
}

#: nccl-suite PLUGIN.so...      the conformance suite for NCCL's net plugins, on any of them (--list: its cases)
#:   --sockets NCCL_SOURCE OUT.so  makes a plugin of NCCL's own sockets out of its sources, to be compared with
verb_nccl-suite() {
  if [[ ${1:-} == --sockets ]]; then exec tests/frameworks/nccl_net/nccl_sockets.sh "${@:2}"; fi
  need "${build_packages[@]}"
  start //tests/frameworks/nccl_net:nccl_net_suite "$@"
}

#: gdr-check [OPTIONS]         whether, how and how fast each RDMA NIC here reaches each GPU; says why it cannot
verb_gdr-check() {
  need "${build_packages[@]}"
  start //tests/hardware:gdr_check "$@"
}
