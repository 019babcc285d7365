"""What cc_library and cc_tests of rules.bzl stand on: several sources are compiled as one.

Most of a compilation reads headers (100,000 lines of them for 150 of ours), so that the sources of one
target, joined, compile in a quarter of the time that they take one by one. Errors name the source and its
line. What each source must keep to: names in anonymous namespaces, macros and `using` of a file are
unique in the target. `--define=separate=1` compiles one by one, as editors and clang's checks want it,
and so proves that each source includes what it uses.

Tests of a folder share a program likewise (cc_tests). There each source has a namespace of its own in place of
the anonymous one, and each test is a target that runs its source's tests. The `using` lets the rest of the source see
that namespace, while a call finds nothing in it by the types of its arguments.
"""

def _joined_source_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.run_shell(
        inputs = ctx.files.srcs,
        outputs = [out],
        arguments = [out.path] + [f.path for f in ctx.files.srcs],
        command = """out=$1; shift
for source; do
  name=${source##*/}
  printf '#line 1 "%s"\\n' "$source"
  sed "s/^namespace {$/""" + ("namespace ${name%.cc} {} using namespace ${name%.cc}; namespace ${name%.cc} {" if ctx.attr.apart else "&") + """/" "$source"
  echo
done > "$out" """,
        mnemonic = "JoinSources",
        progress_message = "Joining the sources of " + str(ctx.label),
    )
    return [DefaultInfo(files = depset([out]))]

_joined_source = rule(
    implementation = _joined_source_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "apart": attr.bool(doc = "Gives each source a namespace in place of the anonymous one."),
    },
)

def joined_library(name, srcs = [], **kwargs):
    """Takes what Bazel's own takes. Sources that a select() chooses stay apart.

    Args:
      name: of the target.
      srcs: those that end in .cc are joined where there are several.
      **kwargs: for Bazel's own.
    """
    joined = [s for s in srcs if s.endswith(".cc")] if type(srcs) == type([]) else []
    if len(joined) < 2:
        native.cc_library(name = name, srcs = srcs, **kwargs)
        return
    _joined_source(
        name = name + "_joined",
        srcs = joined,
        tags = ["manual"],
        testonly = kwargs.get("testonly", False),
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = select({
            "//tools:separate": srcs,
            "//conditions:default": [":%s_joined" % name] + [s for s in srcs if s not in joined],
        }),
        **kwargs
    )

def _test_of_a_source_impl(ctx):
    # Its name says which tests are to run: joined_test_main.cc.
    program = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = program, target_file = ctx.executable.binary, is_executable = True)
    runfiles = ctx.runfiles(files = ctx.files.data + [ctx.executable.binary])
    for target in [ctx.attr.binary] + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = program, runfiles = runfiles)]

_source_test = rule(
    implementation = _test_of_a_source_impl,
    test = True,
    attrs = {
        "binary": attr.label(executable = True, cfg = "target", mandatory = True),
        "data": attr.label_list(allow_files = True),
    },
)

_GTEST = ["@com_google_googletest//:gtest_main"]

def joined_tests(name, tests, deps, size, tags):
    """As rules.bzl says of cc_tests."""
    tests = {test: what if type(what) == type({}) else dict(deps = what) for test, what in tests.items()}
    _joined_source(
        name = name + "_joined_test",
        srcs = [test + ".cc" for test in tests],
        apart = True,
        tags = ["manual"],
        testonly = True,
        visibility = ["//visibility:private"],
    )
    native.cc_test(
        name = name,
        srcs = [name + "_joined_test"],
        tags = ["manual"],
        deps = depset(deps + [dep for what in tests.values() for dep in what.get("deps", [])] +
                      ["//tools/build_defs:joined_test_main"]).to_list(),
    )
    for test, what in tests.items():
        native.cc_test(
            name = test + "_alone",
            srcs = [test + ".cc"],
            tags = ["manual"],
            deps = deps + what.get("deps", []) + _GTEST,
        )
        _source_test(
            name = test,
            binary = select({
                "//tools:separate": test + "_alone",
                "//conditions:default": name,
            }),
            size = what.get("size", size),
            tags = what.get("tags", tags),
            **{key: value for key, value in what.items() if key not in ("deps", "size", "tags")}
        )
