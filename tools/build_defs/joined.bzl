"""cc_library: as Bazel's own, but several sources are compiled as one.

Most of a compilation reads headers (100,000 lines of them for 150 of ours), so that the sources of one
target, joined, compile in a quarter of the time that they take one by one. Errors name the source and its
line. What each source must keep to: names in anonymous namespaces, macros and `using` of a file are
unique in the target. `--define=separate=1` compiles one by one, as editors and clang's checks want it,
and so proves that each source includes what it uses.
"""

def _joined_source_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.run_shell(
        inputs = ctx.files.srcs,
        outputs = [out],
        arguments = [out.path] + [f.path for f in ctx.files.srcs],
        command = """out=$1; shift
for source; do printf '#line 1 "%s"\\n' "$source"; cat "$source"; echo; done > "$out" """,
        mnemonic = "JoinSources",
        progress_message = "Joining the sources of " + str(ctx.label),
    )
    return [DefaultInfo(files = depset([out]))]

_joined_source = rule(
    implementation = _joined_source_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"])},
)

def cc_library(name, srcs = [], **kwargs):
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
