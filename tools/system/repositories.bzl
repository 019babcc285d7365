"""External repositories made from installed libraries by way of pkg-config."""

def _run(ctx, args):
    result = ctx.execute(args)
    if result.return_code:
        return None
    return result.stdout.strip()

def _unique_last(items):
    seen = {}
    out = []
    for item in reversed(items):
        if item.startswith("-l"):
            if item in seen:
                continue
            seen[item] = True
        out.append(item)
    return reversed(out)

def _library(name, module, linkopts, defines, available, extra = ""):
    compatible = "" if available else "    target_compatible_with = [\"@tryst//tools/system:unavailable\"],\n"
    return """
cc_library(
    name = "{name}",  # pkg-config {module}
    defines = {defines},
    linkopts = {linkopts},
{compatible}{extra})
""".format(
        name = name,
        module = module,
        defines = repr(defines),
        linkopts = repr(linkopts),
        compatible = compatible,
        extra = extra,
    )

def _pkg_config_repository_impl(ctx):
    pkg_config = ctx.which("pkg-config")
    if not pkg_config:
        fail("pkg-config is not installed (apt-get install pkg-config)")
    builds = {}
    for label, module in ctx.attr.modules.items():
        package, _, name = label.partition(":")
        flags = _run(ctx, [pkg_config, "--libs", "--cflags"] + module.split(" "))
        if flags == None and not ctx.attr.optional:
            fail("pkg-config does not find %s: apt-get install %s" % (module, ctx.attr.debian))
        words = [f for f in (flags or "").split(" ") if f]
        builds.setdefault(package, []).append(_library(
            name,
            module,
            [] if ctx.attr.inlined else _unique_last([f for f in words if f[:2] not in ["-D", "-I"]]),
            [f[2:] for f in words if f.startswith("-D")] + ctx.attr.inlined,
            flags != None,
        ))
    for package, rules in builds.items():
        ctx.file(
            (package + "/" if package else "") + "BUILD",
            "package(default_visibility = [\"//visibility:public\"])\n" + "".join(rules) +
            (ctx.attr.root_build if not package else ""),
            executable = False,
        )
    if "" not in builds:
        ctx.file("BUILD", ctx.attr.root_build, executable = False)
    for name, program in ctx.attr.programs.items():
        path = ctx.which(program)
        if not path:
            fail("%s is not on PATH: apt-get install %s" % (program, ctx.attr.debian))
        ctx.symlink(path, name)

pkg_config_repository = repository_rule(
    implementation = _pkg_config_repository_impl,
    attrs = {
        "debian": attr.string(),
        "inlined": attr.string_list(doc = "What to define so that the headers are the whole library; nothing is linked then."),
        "modules": attr.string_dict(),
        "optional": attr.bool(),
        "programs": attr.string_dict(),
        "root_build": attr.string(),
    },
    # Kept over server restarts (pkg-config takes 0.5 s on gRPC's closure);
    # `bazel sync --configure` asks again after a system upgrade.
    configure = True,
    environ = ["PKG_CONFIG_PATH", "PATH"],
)

_ABSL = {
    "absl/algorithm:container": "absl_algorithm_container",
    "absl/base:base": "absl_base",
    "absl/base:core_headers": "absl_core_headers",
    "absl/cleanup:cleanup": "absl_cleanup",
    "absl/container:fixed_array": "absl_fixed_array",
    "absl/container:flat_hash_map": "absl_flat_hash_map",
    "absl/container:flat_hash_set": "absl_flat_hash_set",
    "absl/container:inlined_vector": "absl_inlined_vector",
    "absl/debugging:failure_signal_handler": "absl_failure_signal_handler",
    "absl/debugging:symbolize": "absl_symbolize",
    "absl/flags:flag": "absl_flags",
    "absl/flags:parse": "absl_flags_parse",
    "absl/flags:usage": "absl_flags_usage",
    "absl/functional:any_invocable": "absl_any_invocable",
    "absl/functional:function_ref": "absl_function_ref",
    "absl/hash:hash": "absl_hash",
    "absl/memory:memory": "absl_memory",
    "absl/numeric:bits": "absl_bits",
    "absl/random:random": "absl_random_random",
    "absl/status:status": "absl_status",
    "absl/status:statusor": "absl_statusor",
    "absl/strings:cord": "absl_cord",
    "absl/strings:str_format": "absl_str_format",
    "absl/strings:strings": "absl_strings",
    "absl/synchronization:synchronization": "absl_synchronization",
    "absl/time:time": "absl_time",
    "absl/types:optional": "absl_optional",
    "absl/types:span": "absl_span",
    "absl/types:variant": "absl_variant",
}

# The labels that proto_library and cc_proto_library use by default.
_PROTOBUF_BUILD = """
exports_files(["protoc"])

proto_lang_toolchain(
    name = "cc_toolchain",
    command_line = "--cpp_out=$(OUT)",
    runtime = ":protobuf",
)
"""

_GRPC_BUILD = """
exports_files(["grpc_cpp_plugin"])
"""

def system_repositories():
    pkg_config_repository(
        name = "com_google_absl",
        debian = "libabsl-dev",
        modules = _ABSL,
    )
    pkg_config_repository(
        name = "com_google_protobuf",
        debian = "libprotobuf-dev protobuf-compiler",
        modules = {
            ":protobuf": "protobuf",
            ":protobuf_lite": "protobuf-lite",
        },
        programs = {"protoc": "protoc"},
        root_build = _PROTOBUF_BUILD,
    )
    pkg_config_repository(
        name = "com_github_grpc_grpc",
        debian = "libgrpc++-dev protobuf-compiler-grpc",
        modules = {":grpc++": "grpc++"},
        programs = {"grpc_cpp_plugin": "grpc_cpp_plugin"},
        root_build = _GRPC_BUILD,
    )
    pkg_config_repository(
        name = "com_google_googletest",
        debian = "libgtest-dev libgmock-dev",
        modules = {
            ":gtest": "gmock gtest",
            ":gtest_main": "gmock gtest_main",
        },
    )
    pkg_config_repository(
        name = "com_github_google_benchmark",
        debian = "libbenchmark-dev",
        modules = {":benchmark": "benchmark"},
    )
    pkg_config_repository(
        name = "openssl",
        debian = "libssl-dev",
        modules = {":ssl": "libssl libcrypto"},
    )
    pkg_config_repository(
        name = "libmicrohttpd",
        debian = "libmicrohttpd-dev",
        modules = {":microhttpd": "libmicrohttpd"},
    )
    pkg_config_repository(
        name = "xxhash",
        debian = "libxxhash-dev",
        inlined = ["XXH_INLINE_ALL"],
        modules = {":xxhash": "libxxhash"},
    )
    pkg_config_repository(
        name = "rdma_core",
        debian = "libibverbs-dev",
        modules = {":ibverbs": "libibverbs"},
        optional = True,
    )
    pkg_config_repository(
        name = "eigen",
        debian = "libeigen3-dev",
        modules = {":eigen": "eigen3"},
        optional = True,
    )
    pkg_config_repository(
        name = "onetbb",
        debian = "libtbb-dev",
        modules = {":tbb": "tbb"},
        optional = True,
    )
