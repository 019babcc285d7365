"""@archives: gRPC, Protobuf and Abseil inside a program, from the system's own archives.

A program with these as shared libraries spends 45 of the 65 ms until its first tensor in the dynamic
linker, which looks tens of thousands of names up in 55 libraries (docs/BENCHMARKS.md). OpenSSL,
zlib and c-ares stay shared, so that security updates of the system reach a program as they did.
"""

_NAMES = ["grpc++", "grpc", "gpr", "upb", "address_sorting", "re2", "protobuf"]

# Names enough of each library that a link without one of the archives fails.
_TRIAL = """
#include <string>
namespace grpc {
std::string Version();
}
extern "C" void* grpc_ssl_credentials_create(const char*, void*, const void*, void*);
int main() {
  return grpc_ssl_credentials_create(nullptr, nullptr, nullptr, nullptr) != nullptr && grpc::Version().empty();
}
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

# Sanitizers know gRPC's own habits by the name of its shared library.
config_setting(
    name = "optimized",
    values = {{"compilation_mode": "opt"}},
)

# In the deps of a cc_binary. {note}
cc_library(
    name = "grpc",
    linkopts = select({{
        ":optimized": {linkopts},
        "//conditions:default": [],
    }}),
)
"""

def _archives(ctx, compiler):
    """Paths of the archives, or None where the system lacks one."""
    found = []
    for name in _NAMES:
        path = ctx.execute([compiler, "-print-file-name=lib%s.a" % name]).stdout.strip()
        if not path.startswith("/"):
            return None
        found.append(path)
    folder = ctx.path(found[0]).dirname
    abseil = [str(p) for p in folder.readdir() if p.basename.startswith("libabsl_") and p.basename.endswith(".a")]
    return found + [p for p in sorted(abseil) if "libabsl_flags" not in p] if abseil else None

def _archives_impl(ctx):
    compiler = ctx.which("g++")
    archives = _archives(ctx, compiler) if compiler else None
    linkopts = []
    if archives:
        for path in archives:
            ctx.symlink(path, "lib/" + path.rpartition("/")[2])
        names = [p.rpartition("/")[2][len("lib"):-len(".a")] for p in archives]
        linkopts = (["-L%s" % ctx.path("lib"), "-Wl,--start-group"] + ["-l" + n for n in names] +
                    ["-Wl,--end-group", "-lssl", "-lcrypto", "-lcares", "-lz"])
        ctx.file("trial.cc", _TRIAL, executable = False)
        if ctx.execute([compiler, "-std=c++17", "-o", "trial", "trial.cc"] + linkopts).return_code:
            linkopts = []
    note = "" if linkopts else "The archives here are none that a program links with: shared libraries it is."
    ctx.file("BUILD", _BUILD.format(linkopts = repr(linkopts), note = note), executable = False)

archives = repository_rule(
    implementation = _archives_impl,
    configure = True,
    environ = ["PATH"],
)
