"""@static_libraries: gRPC, Protobuf, Abseil and the C++ library, to be linked into a shared library.

Of the folder that tools/system/static_libraries.sh made and --repo_env=TRYST_STATIC_LIBRARIES
names (./run does both). Without it what depends on :libraries is skipped as incompatible.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

# In the deps of a cc_binary with linkshared: every library that its code names by -l is then
# linked from an archive, and the binary needs glibc alone, 2.28 or later. Give it a version script that keeps
# all symbols local but its own.
cc_library(
    name = "libraries",
    srcs = glob(["objects/*.pic.o"]),
    linkopts = {linkopts},
{compatible}    alwayslink = True,
)

# For code that uses Abseil and neither gRPC nor Protobuf.
cc_library(
    name = "abseil",
    srcs = glob([
        "objects/abseil*.pic.o",
        "objects/older_glibc.pic.o",
    ]),
    linkopts = {linkopts},
{compatible}    alwayslink = True,
)

# The licences of all that, to be passed on with the binary.
filegroup(
    name = "third_party",
    srcs = glob(["THIRD_PARTY"]),
)
"""

def _static_libraries_impl(ctx):
    folder = ctx.os.environ.get("TRYST_STATIC_LIBRARIES", "")
    if folder:
        ctx.symlink(ctx.path(folder).get_child("objects"), "objects")
        ctx.symlink(ctx.path(folder).get_child("THIRD_PARTY"), "THIRD_PARTY")
    ctx.file("BUILD", _BUILD.format(
        linkopts = repr(["-L%s/lib" % folder, "-static-libgcc"] if folder else []),
        compatible = "" if folder else "    target_compatible_with = [\"@tryst//tools/system:unavailable\"],\n",
    ), executable = False)

static_libraries = repository_rule(
    implementation = _static_libraries_impl,
    configure = True,
    environ = ["TRYST_STATIC_LIBRARIES"],
    local = True,
)
