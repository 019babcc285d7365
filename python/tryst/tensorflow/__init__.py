"""TensorFlow's protocol "grpc+verbs", by Tryst.

    import tryst.tensorflow as tt
    tt.enable()

From then on tf.distribute.Server(..., protocol="grpc+verbs") and cluster resolvers with
rpc_layer="grpc+verbs" move tensors by Tryst (docs/TENSORFLOW.md).
"""

import atexit
import ctypes
import json
import os
import subprocess
import sys

_plugin = None


def enable(plugin=None, library=None):
    """Makes TensorFlow know the protocol. Before any server is created; again does nothing.

    plugin: the plug-in's shared object. Default: $TRYST_TENSORFLOW_PLUGIN, else the one that
        was built for this TensorFlow, which is built now if it is missing (a minute, with g++).
    library: libtryst.so.1. Default: $TRYST_LIBRARY, else what stands beside this package, else
        what the system's loader finds.
    """
    global _plugin
    if _plugin is not None:
        return
    import tensorflow as tf

    from tryst.tensorflow import build as _build  # Not at the top, because it is a program, too.

    library = library or os.environ.get("TRYST_LIBRARY") or _build.find_library()
    if library:
        os.environ["TRYST_LIBRARY"] = os.path.abspath(library)
    plugin = plugin or os.environ.get("TRYST_TENSORFLOW_PLUGIN") or _build.build()
    tf.load_library(plugin)
    loaded = ctypes.CDLL(plugin)
    for name in ("explain", "stats"):
        getattr(loaded, "tryst_tensorflow_" + name).restype = ctypes.c_void_p
    loaded.tryst_tensorflow_free.argtypes = [ctypes.c_void_p]
    _plugin = loaded
    # The library's threads must end before the process destroys what they use.
    atexit.register(loaded.tryst_tensorflow_stop)


def _text(name):
    if _plugin is None:
        raise RuntimeError("call tryst.tensorflow.enable() first")
    given = getattr(_plugin, "tryst_tensorflow_" + name)()
    try:
        return ctypes.string_at(given).decode()
    finally:
        _plugin.tryst_tensorflow_free(given)


def explain():
    """By which way tensors of each worker come, and why, for people."""
    return _text("explain")


def stats():
    """Counts of what has moved: a list with an entry for each server of this process."""
    return json.loads(_text("stats"))


def trace(text=""):
    """The last tensors of each server of this process, by TensorFlow's names, of which `text` is a
    part: what `tryst trace` says."""
    told = []
    for server in stats():
        worker = server["worker"] + "@" + server["address"]
        command = [sys.executable, "-m", "tryst", "trace", worker, "--cluster=tensorflow"]
        if text:
            command.append(text)
        if "TRYST_TOKEN_FILE" not in os.environ and "TRYST_CERTIFICATE_FILE" not in os.environ:
            command.append("--insecure")
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode not in (0, 3):  # 3: nothing was found.
            raise RuntimeError("%s: %s" % (" ".join(command), done.stderr))
        told.append(done.stdout)
    return "\n".join(told)
