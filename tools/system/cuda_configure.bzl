"""@local_cuda: the CUDA Toolkit if nvcc is found, an empty shell if not.

--repo_env=TRYST_CUDA=0 builds as on a machine without the toolkit;
--repo_env=CUDA_HOME=/path picks another toolkit.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**"]),
    includes = ["include"],
    {compatible}
)

cc_library(
    name = "cudart",
    linkopts = {cudart},
    deps = [":headers"],
    {compatible}
)

cc_library(
    name = "cuda_driver",
    linkopts = {driver},
    deps = [":headers"],
    {compatible}
)
"""

def _cuda_configure_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = ctx.path(home + "/bin/nvcc")
    present = nvcc.exists and ctx.os.environ.get("TRYST_CUDA", "1") != "0"
    if present:
        ctx.symlink(ctx.path(home + "/include"), "include")
    ctx.file("BUILD", _BUILD.format(
        compatible = "" if present else "target_compatible_with = [\"@tryst//tools/system:unavailable\"],",
        # The static runtime: on a machine without CUDA a binary still starts, and finds no device.
        cudart = repr([home + "/lib64/libcudart_static.a", "-ldl", "-lrt", "-lpthread"]),
        driver = repr(["-L" + home + "/lib64/stubs", "-lcuda"]),
    ), executable = False)
    ctx.file("defs.bzl", """
CUDA_AVAILABLE = {present}
NVCC = {nvcc}

def requires_cuda():
    return [] if CUDA_AVAILABLE else ["@tryst//tools/system:unavailable"]

def if_cuda(yes, no = []):
    return yes if CUDA_AVAILABLE else no
""".format(present = present, nvcc = repr(str(nvcc))), executable = False)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["CUDA_HOME", "TRYST_CUDA"],
    local = True,
)
