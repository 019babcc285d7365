# shellcheck shell=bash
# What keeps the tree in order: lint, format, documents, sizes. ./run sources it.

#: lint [--all|--locks]        clang's lock analysis, shellcheck, clang-tidy on what has changed (all, nothing)
verb_lint() {
  need "${lint_packages[@]}"
  local code=0
  bz build -k --config=clang //... || code=1
  scripts | xargs -0r shellcheck -S warning -x || code=1
  if [[ ${1:-} == --locks ]]; then return $code; fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  tools/compile_commands.py "--output=$work/compile_commands.json" --config=clang
  tools/lint_files.py "$@" "$work/compile_commands.json" |
    xargs -0r -P "$(nproc)" -n 1 clang-tidy --quiet -p "$work" || code=1
  return $code
}

#: format                      clang-format on our sources
verb_format() {
  need clang-format
  sources | xargs -0r clang-format -i
}

#: compdb                      compile_commands.json, for clangd
verb_compdb() {
  need "${test_packages[@]}"
  tools/compile_commands.py
}

#: lanes                       the lanes of .ci/run in the order that it would take them now, what would run, and why
verb_lanes() {
  need "${build_packages[@]}" git
  # shellcheck source=tools/lanes.sh
  source tools/lanes.sh
  lanes_plan
  lanes_print
}

#: sizes                       files, functions, classes and parameters beside those of code that is loved for being read
#:   --build [--all]           what compiling takes, and what it goes to (docs/COSTS.md); --all: summed by room
verb_sizes() {
  if [[ ${1:-} != --build ]]; then exec python3 tests/tidy/sizes.py; fi
  need "${test_packages[@]}"
  exec python3 tests/tidy/build_costs.py "${@:2}"
}

#: comments [--seed N] [--count N] [FOLDER...]  comments drawn at random, to be read as a stranger does (CONTRIBUTING.md)
verb_comments() { exec tools/draw_comments.py "$@"; }

#: messages [--kind status|log|help|text] [--seed N] [--count N] [FOLDER...]  what a user can be told, all of it or drawn at random
verb_messages() { exec tools/messages.py "$@"; }

#: drawings                    docs/drawings/NAME.svg of each NAME.dot, by Graphviz
verb_drawings() {
  need graphviz python3
  exec tools/drawings.py
}

#: site [--out FOLDER]         the documents as pages with search, in out/site; they need no network and no server
verb_site() {
  need python3 python3-markdown-it
  exec tools/site.py "$@"
}

#: docs                        rewrites the tables that programs print
verb_docs() {
  need "${build_packages[@]}"
  local labels
  labels=$(tools/doc_table.py list README.md docs/*.md docs/*/*.md)
  if [[ -z $labels ]]; then return; fi
  # shellcheck disable=SC2086  # Labels hold no blanks.
  bz build $labels
  tools/doc_table.py write "$(bz info bazel-bin 2>/dev/null)" README.md docs/*.md docs/*/*.md
}
