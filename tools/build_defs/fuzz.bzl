"""cc_fuzz_test: one LLVMFuzzerTestOneInput, as an ordinary test and under libFuzzer."""

def cc_fuzz_test(name, srcs, deps, corpus = [], tags = [], **kwargs):
    """Under `bazel test` runs the corpus and inputs mutated from it; `./run fuzz` searches.

    Args:
      corpus: files that hold one input each; every input that ever failed belongs here.
    """
    native.cc_test(
        name = name,
        srcs = srcs,
        args = ["$(location %s)" % file for file in corpus],
        data = corpus,
        linkopts = select({
            "//tools:fuzzing": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        tags = tags + ["fuzz"],
        deps = deps + select({
            "//tools:fuzzing": [],
            "//conditions:default": ["//tests/fuzz:replay_main"],
        }),
        **kwargs
    )
