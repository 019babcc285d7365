"""The rules of our BUILD files: Bazel's own, where what is said nearly everywhere is the default.

    cc_library(name = "crew", deps = [":clock", ":log"])

* Files: a target is made of crew.cc and crew.h, those that are there; of others if it says parts = ["crew", "line"], each of which
  stands for a source, a header or both. srcs and hdrs remain for the rest. A program NAME is made of NAME_main.cc, where that is there;
  a test of a script of NAME_test.sh or NAME_test.py.
* deps: //tools/build_defs:absl goes without saying, unless absl = False does; googletest with tests and what is only for tests.
* users = ["bench", "tests/sim"] are the folders whose packages may depend on it; "//server:__pkg__" is a package alone. Nobody else of
  another package may, except that what is in tests/ is open to all of tests/.
* A test is small, and what is in tests/ and bench/ is testonly, unless it says otherwise.
* Several sources of a library are compiled as one, and so are the tests of a cc_tests (joined.bzl).
"""

load(":doc_table.bzl", _doc_table_test = "doc_table_test")
load(":fuzz.bzl", _cc_fuzz_test = "cc_fuzz_test")
load(":joined.bzl", "joined_library", "joined_tests")

_ABSL = ["//tools/build_defs:absl"]
_GTEST = ["@com_google_googletest//:gtest"]
_GTEST_MAIN = ["@com_google_googletest//:gtest_main"]

doc_table_test = _doc_table_test

def _room():
    return native.package_name().split("/")[0]

def _files(name, parts, srcs, hdrs):
    """(sources, headers) of a target."""
    if parts == None:
        parts = [] if srcs or hdrs else [name]
        optional = True
    else:
        optional = False
    there = native.glob([part + ending for part in parts for ending in [".cc", ".h"]], allow_empty = True)
    for part in parts:
        if not optional and part + ".cc" not in there and part + ".h" not in there:
            fail("%s has no %s.cc and no %s.h for %s" % (native.package_name(), part, part, name))
    sources = [file for file in there if file.endswith(".cc")]
    return (sorted(srcs + sources) if type(srcs) == type([]) else sources + (srcs or []),
            (hdrs or []) + [file for file in there if file.endswith(".h")])

def _visibility(users, visibility):
    if users == None and visibility == None:
        return ["//tests:__subpackages__"] if _room() == "tests" else None
    return [room if room.startswith("//") else "//%s:__subpackages__" % room for room in users or []] + (visibility or [])

def _testonly(testonly):
    return _room() in ["bench", "tests"] if testonly == None else testonly

def cc_library(name, parts = None, srcs = None, hdrs = None, deps = [], absl = True, testonly = None, users = None, visibility = None, **kwargs):
    """Bazel's own, see above."""
    sources, headers = _files(name, parts, srcs, hdrs)
    testonly = _testonly(testonly)
    joined_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        testonly = testonly,
        visibility = _visibility(users, visibility),
        deps = deps + (_ABSL if absl else []) + (_GTEST if testonly else []),
        **kwargs
    )

def cc_binary(name, parts = None, srcs = None, deps = [], absl = True, testonly = None, users = None, visibility = None, **kwargs):
    """Bazel's own, see above."""
    main = name + "_main" if native.glob([name + "_main.cc"], allow_empty = True) else name
    sources, headers = _files(main, parts, srcs, None)
    native.cc_binary(
        name = name,
        srcs = sources + headers,
        testonly = _testonly(testonly),
        visibility = _visibility(users, visibility),
        deps = deps + (_ABSL if absl else []),
        **kwargs
    )

def cc_test(name, parts = None, srcs = None, deps = [], gtest = True, size = "small", **kwargs):
    """Bazel's own, see above. gtest: whether it begins with googletest's main()."""
    sources, headers = _files(name, parts, srcs, None)
    native.cc_test(
        name = name,
        size = size,
        srcs = sources + headers,
        deps = deps + _ABSL + (_GTEST_MAIN if gtest else []),
        **kwargs
    )

def cc_tests(name, tests, deps = [], size = "small", tags = []):
    """Tests of a folder that are compiled into one program. //folder:NAME_test is still a test of its own.

    Args:
      name: of the program.
      tests: {"x_test": what x_test.cc depends on besides}, or dict(deps = ..., size = ..., data = ...).
      deps: what all of them depend on.
      size: of those that say none.
      tags: of those that say none.
    """
    joined_tests(name = name, tests = tests, deps = deps + _ABSL, size = size, tags = tags)

def cc_fuzz_test(name, parts = None, deps = [], corpus = None, size = "small", **kwargs):
    """One LLVMFuzzerTestOneInput (fuzz.bzl). The corpus of NAME_fuzz is in corpus/NAME."""
    sources, headers = _files(name, parts, None, None)
    _cc_fuzz_test(
        name = name,
        size = size,
        srcs = sources + headers,
        corpus = native.glob(["corpus/%s/*" % name[:-len("_fuzz")]]) if corpus == None else corpus,
        deps = deps + _ABSL,
        **kwargs
    )

def sh_test(name, srcs = None, size = "small", **kwargs):
    """Bazel's own, see above."""
    native.sh_test(
        name = name,
        size = size,
        srcs = srcs or native.glob([name + ".sh", name + ".py"]),
        **kwargs
    )
