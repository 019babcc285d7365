"""What `./run bench host` measures: each system's program and arguments, and how to build it."""
import atexit
import collections
import contextlib
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

KIB, MIB = 1 << 10, 1 << 20
PULL_SIZES = (8, 4 * KIB, 64 * KIB)
DELIVERY_SIZES = (64 * KIB, MIB, 16 * MIB, 256 * MIB)

# Program: what it is linked with. All of bench/peers/PROGRAM.cc and the harness.
PROGRAMS = {
    "limits": [],
    "raw": [],
    "ring": [],
    "zeromq": ["-lzmq"],
    "tensorpipe": ["-ltensorpipe"],
    "ucx": ["-lucp", "-lucs"],
    "libfabric": ["-lfabric"],
    "gloo": ["-lgloo"],
    "mpi": [],
    "grpc": [],
}
ALL = ("pull", "delivery", "rate", "first", "step1", "step3", "incast", "delivery8", "rate4")

# `quick`: measured by --quick too. `small`: only pulls of 8 bytes. `waits`: sleeps when idle. `wheel`: its library comes from PyPI.
System = collections.namedtuple("System", "name program variant works quick waits launcher small wheel")


def mpirun(transport):
    return ("mpirun --allow-run-as-root --oversubscribe -n 2 --bind-to none --mca pml ob1 --mca btl self,%s "
            "--mca btl_tcp_if_include lo" % transport).split()


def system(name, program, variant, works=ALL, quick=False, waits=False, launcher=(), small=False, wheel=None):
    return System(name, program, variant, works, quick, waits, launcher, small, wheel)


SYSTEMS = [
    system("limit_cacheline", "limits", "cacheline", ("pull",), quick=True, small=True),
    system("limit_futex", "limits", "futex", ("pull",), quick=True, small=True),
    system("limit_memcpy", "limits", "memcpy", ("delivery",), quick=True),
    system("limit_stream_copy", "limits", "stream_copy", ("delivery",), quick=True),
    system("limit_ring", "ring", "spin", ALL, quick=True),
    system("limit_ring_stream", "ring", "stream", ("delivery",)),
    system("limit_ring_futex", "ring", "futex", ("pull", "delivery"), waits=True),
    system("limit_socket", "raw", "tcp-spin", ALL, quick=True),
    system("limit_socket_sleeping", "raw", "tcp", ("pull", "delivery", "rate"), quick=True, waits=True),
    system("limit_unix_socket", "raw", "uds", ("pull", "delivery", "rate"), waits=True),
    system("tryst_shm_ref", "tryst", "shm-ref", ALL, quick=True, waits=True),
    system("tryst_shm_copy", "tryst", "shm-copy", ALL, quick=True, waits=True),
    system("tryst_shm_copy_one_poller", "tryst", "shm-copy-pollers1", ("delivery8", "rate4"), waits=True),
    system("tryst_soft_one_poller", "tryst", "soft-pollers1", ("delivery8", "rate4"), waits=True),
    system("tryst_shm_landing", "tryst", "shm-copy-landing", ("pull", "delivery"), waits=True),
    system("tryst_shm_copy_executor", "tryst", "shm-copy-executor", ("pull",), waits=True),
    system("tryst_shm_c", "tryst", "shm-copy-c", ("pull",), quick=True, waits=True),
    system("tryst_shm_copy_sleeping", "tryst", "shm-copy-sleeping", ("pull",), waits=True),
    system("tryst_shm_many", "tryst", "shm-copy-many", ("rate",), quick=True, waits=True),
    system("tryst_soft", "tryst", "soft", ALL, quick=True, waits=True),
    system("tryst_soft_digests", "tryst", "soft-digests", ("pull", "delivery"), waits=True),
    system("tryst_soft_c", "tryst", "soft-c", ("pull",), quick=True, waits=True),
    system("tryst_soft_sleeping", "tryst", "soft-sleeping", ("pull",), waits=True),
    system("tryst_soft_executor", "tryst", "soft-executor", ("pull",), waits=True),
    system("tryst_soft_many", "tryst", "soft-many", ("rate",), quick=True, waits=True),
    system("tryst_ofi_shm", "tryst", "ofi:shm", ("pull", "delivery")),
    system("tryst_ofi_tcp", "tryst", "ofi:tcp", ("pull", "delivery")),
    system("tryst_ofi_udp", "tryst", "ofi:udp", ("pull", "delivery")),
    system("tryst_soft_token", "tryst", "soft-token", ("pull", "delivery", "rate"), waits=True),
    system("tryst_soft_tls", "tryst", "soft-tls", ("pull", "delivery", "rate"), waits=True),
    system("tryst_soft_one_socket", "tryst", "soft-helpers0", ("delivery",), waits=True),
    system("tryst_soft_one_socket_tls", "tryst", "soft-helpers0-tls", ("delivery",), waits=True),
    system("tryst_grpc", "tryst", "grpc", ALL, quick=True, waits=True),
    system("tryst_grpc_token", "tryst", "grpc-token", ("pull", "delivery", "rate"), waits=True),
    system("tryst_grpc_tls", "tryst", "grpc-tls", ("pull", "delivery", "rate"), waits=True),
    system("tryst_stream", "tryst", "stream", ALL, waits=True),
    system("tryst_stream_token", "tryst", "stream-token", ("pull", "delivery", "rate"), waits=True),
    system("tryst_stream_tls", "tryst", "stream-tls", ("pull", "delivery", "rate"), waits=True),
    system("ucx_shm", "ucx", "shm", ALL, quick=True),
    system("ucx_tcp", "ucx", "tcp", ALL, quick=True),
    system("ucx_newest_shm", "ucx", "shm", ALL, wheel="nixl-cu12"),
    system("ucx_newest_tcp", "ucx", "tcp", ALL, wheel="nixl-cu12"),
    system("openmpi_shm", "mpi", "shm", ("pull", "delivery", "rate", "first"),
           launcher=mpirun("vader")),
    system("openmpi_tcp", "mpi", "tcp", ("pull", "delivery", "rate"), launcher=mpirun("tcp")),
    system("libfabric_shm", "libfabric", "shm", ("pull", "delivery", "rate", "first")),
    system("libfabric_tcp", "libfabric", "tcp", ("pull", "delivery", "rate")),
    system("libfabric_udp", "libfabric", "udp", ("pull", "delivery")),
    system("tensorpipe_shm", "tensorpipe", "shm-cma", ALL, quick=True, waits=True),
    system("tensorpipe_tcp", "tensorpipe", "uv-basic", ALL, waits=True),
    system("zeromq_ipc", "zeromq", "ipc", ALL, waits=True),
    system("zeromq_tcp", "zeromq", "tcp", ("pull", "delivery", "rate"), waits=True),
    system("gloo_tcp", "gloo", "tcp", ("pull", "delivery", "rate"), waits=True),
    system("grpc_tcp", "grpc", "proto-tcp", ALL, quick=True, waits=True),
    system("grpc_tls", "grpc", "proto-tcp-tls", ("pull", "delivery", "rate"), waits=True),
    system("grpc_uds", "grpc", "proto-uds", ("pull", "delivery", "rate"), waits=True),
    system("grpc_tuned_tcp", "grpc", "bytes-tcp", ALL, quick=True, waits=True),
    system("grpc_tuned_tls", "grpc", "bytes-tcp-tls", ("pull", "delivery", "rate"), waits=True),
    system("grpc_tuned_uds", "grpc", "bytes-uds", ALL, waits=True),
    system("grpc_tuned_spin_tcp", "grpc", "bytes-tcp-spin", ("pull",)),
]
# The libraries' own tools do other work: no key is looked up, and one buffer stays hot.
TOOLS = {"ucx_perftest_shm": "posix,sysv,cma,self", "ucx_perftest_tcp": "tcp,self",
         "fi_pingpong_shm": "shm", "fi_pingpong_tcp": "tcp;ofi_rxm", "fi_pingpong_udp": "udp;ofi_rxd"}


def works(quick):
    """(work, size) in the order of a round."""
    if quick:
        return [("pull", 8), ("pull", 64 * KIB), ("delivery", 64 * KIB), ("delivery", MIB), ("delivery", 16 * MIB),
                ("rate", 64)]
    return ([("pull", s) for s in PULL_SIZES] + [("delivery", s) for s in DELIVERY_SIZES] +
            [("rate", 64), ("first", 8), ("idle", 8), ("step1", 0), ("step3", 0), ("incast", 16 * MIB),
             ("delivery8", 16 * MIB), ("rate4", 64)])


def takes_part(one, work, size):
    if one.small and size != 8:
        return False
    if work == "idle":
        return one.waits and one.works == ALL and one.name.startswith(("tryst", "grpc", "tensorpipe", "zeromq"))
    return work in one.works


def is_older(path, sources):
    return not os.path.exists(path) or any(os.path.getmtime(s) > os.path.getmtime(path) for s in sources)


def build(root, folder, program):
    """Compiles bench/peers/`program`.cc unless it is there; None with a note when it cannot be."""
    path, source = os.path.join(folder, program), os.path.join(root, "bench/peers", program + ".cc")
    ours = [os.path.join(root, n) for n in ("bench/peers/harness.cc", "bench/peers/workload.cc", "base/mutex.cc",
                                            "bench/peers/harness.h", "bench/peers/workload.h", "base/mutex.h")]
    if not is_older(path, ours + [source]):
        return path
    print("bench: compiling %s" % program, file=sys.stderr)
    made = os.path.join(folder, "made")
    os.makedirs(made, exist_ok=True)
    command = ["mpicxx" if program == "mpi" else "g++", "-std=c++17", "-O2", "-I" + root, "-I" + made, source,
               *ours[:3]]
    libraries = list(PROGRAMS[program])
    try:
        if program == "grpc":
            plugin = subprocess.check_output(["which", "grpc_cpp_plugin"], text=True).strip()
            subprocess.check_call(["protoc", "-I" + os.path.join(root, "bench/peers"), "--cpp_out=" + made,
                                   "--grpc_out=" + made, "--plugin=protoc-gen-grpc=" + plugin, "grpc.proto"])
            command += [os.path.join(made, n) for n in ("grpc.pb.cc", "grpc.grpc.pb.cc")]
            libraries += subprocess.check_output(["pkg-config", "--libs", "grpc++", "protobuf"], text=True).split()
        subprocess.check_call(command + ["-o", path] + libraries + ["-pthread"])
    except (OSError, subprocess.CalledProcessError) as error:
        print("bench: left out: %s does not build here: %s" % (program, error), file=sys.stderr)
        return None
    return path


def unpack_ucx(folder, wheel):
    """Takes UCX out of NIXL's wheel. There a library's name has a hash, under which the others ask for it; a program asks for libucp.so.0."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            found = re.search(r"\.libs/((?:ucx/)?(libuc[a-z_0-9]+)(?:-[0-9a-f]+)?\.so[.0-9]*)$", name)
            if not found:
                continue
            path = os.path.join(folder, found[1])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(archive.read(name))
            plain = os.path.join(os.path.dirname(path), found[2] + ".so.0")
            if plain != path:
                os.symlink(os.path.basename(path), plain)


@functools.lru_cache(maxsize=None)
def from_wheel(folder, wheel):
    """The environment in which a program finds the libraries of `wheel`, which is fetched from PyPI unless it lies in `folder`; None with
    a note when it cannot be."""
    lies = os.path.join(folder, "from-" + wheel)
    if not os.path.isdir(lies):
        with tempfile.TemporaryDirectory(dir=folder) as work:
            try:
                subprocess.check_call([sys.executable, "-m", "venv", work + "/venv"])
                subprocess.check_call([work + "/venv/bin/pip", "download", "-q", "--no-deps", "-d", work, wheel])
                unpack_ucx(work + "/made", glob.glob(work + "/*.whl")[0])
            except (OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
                print("bench: left out: %s does not come from PyPI: %s" % (wheel, error), file=sys.stderr)
                return None
            os.rename(work + "/made", lies)
    return {"LD_LIBRARY_PATH": ":".join([lies] + os.environ.get("LD_LIBRARY_PATH", "").split(":")),
            "UCX_MODULE_DIR": lies + "/ucx"}


@functools.lru_cache(maxsize=None)
def secrets():
    """A folder, removed at the exit, with a token, and with a certificate that names every worker of the cluster."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    with open(os.path.join(folder.name, "token"), "w") as file:
        os.chmod(file.name, 0o600)
        file.write(os.urandom(32).hex())
    with open(os.path.join(folder.name, "names"), "w") as file:
        file.write("subjectAltName=URI:tryst://tryst,IP:127.0.0.1\n")
    new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=bench"
    for command in (new + " -x509 -keyout ca.key -out ca.crt", new + " -keyout worker.key -out worker.csr",
                    "x509 -req -in worker.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out worker.crt -extfile names"):
        subprocess.run(["openssl", *command.split()], cwd=folder.name, check=True, stderr=subprocess.DEVNULL)
    return folder.name


def run(one, path, work, size, seconds, timeout=30):
    """[(figure, size, value, unit)] of one run, or a line that says why not."""
    environment = dict(os.environ, TRYST_BENCH_BEGAN_NS=str(time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
    if one.wheel:
        environment.update(from_wheel(os.path.dirname(path), one.wheel))
    if "token" in one.variant or "tls" in one.variant:
        environment["TRYST_BENCH_SECRETS"] = secrets()
    command = [*one.launcher, path, one.variant, work, str(size), str(seconds)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return [], "took more than %d s" % timeout
    finally:
        if one.program == "libfabric":
            remove_segments_of_the_dead()
    rows = [line.split("\t") for line in out.splitlines() if line.count("\t") == 3]
    if not rows:
        return [], (err.strip().splitlines() or ["exit code %d" % process.returncode])[-1][:200]
    return [(figure, int(size), float(value), unit) for figure, size, value, unit in rows], None


def remove_segments_of_the_dead(folder="/dev/shm"):
    """libfabric names its shared memory after the process, whose end leaves it there: 16 MiB each."""
    for name in os.listdir(folder):
        owner = re.fullmatch(r"(\d+):\d+:\d+", name)
        if owner and not os.path.exists("/proc/" + owner[1]):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def run_tool(name, work, size):
    """A library's own tool's figures, as a round trip and GiB/s."""
    if work not in ("pull", "delivery"):
        return [], None
    program, run_it = ("fi_pingpong", run_fi_pingpong) if name.startswith("fi_") else ("ucx_perftest", run_ucx_perftest)
    return run_it(name, work, size) if shutil.which(program) else ([], program + " is not installed")


def run_fi_pingpong(name, work, size):
    """One message at a time, to and fro: its bandwidth is one way's."""
    port = str(20000 + os.getpid() % 10000)
    count = 20000 if size < 4 * KIB else max(20, min(5000, (1 << 28) // size))
    command = ["fi_pingpong", "-p", TOOLS[name], "-e", "rdm", "-I", str(count), "-S", str(size)]
    server = subprocess.Popen([*command, "-B", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        out = subprocess.run([*command, "-P", port, "127.0.0.1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)[:100]
    finally:
        server.kill()
        server.wait()
        remove_segments_of_the_dead()
    # bytes, sent, acknowledged, total, time, MB/s, us a message
    lines = [line.split() for line in out.splitlines() if re.match(r"^\d", line)]
    if not lines or len(lines[-1]) < 7:
        return [], "fi_pingpong printed no figures"
    if work == "pull":
        return [("pull_p50", size, 2 * float(lines[-1][6]), "us")], None
    return [("delivery", size, float(lines[-1][5]) * 1e6 / (1 << 30), "GiB/s")], None


def run_ucx_perftest(name, work, size):
    environment = dict(os.environ, UCX_TLS=TOOLS[name], UCX_WARN_UNUSED_ENV_VARS="n")
    port = str(20000 + os.getpid() % 10000)
    server = subprocess.Popen(["ucx_perftest", "-p", port], env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        count = 20000 if work == "pull" else max(12, min(20000, (1 << 30) // size))
        out = subprocess.run(["ucx_perftest", "127.0.0.1", "-p", port, "-t", "tag_lat" if work == "pull" else "tag_bw",
                              "-s", str(size), "-n", str(count), "-f", "-v"] +
                             (["-O", "8"] if work == "delivery" else []),
                             env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)[:100]
    finally:
        server.kill()
        server.wait()
    lines = [line.split(",") for line in out.splitlines() if re.match(r"^\s*\d+,", line)]
    if not lines:
        return [], "ucx_perftest printed no figures"
    if work == "pull":
        return [("pull_p50", size, 2 * float(lines[-1][1]), "us")], None
    return [("delivery", size, float(lines[-1][5]) / 1024, "GiB/s")], None
