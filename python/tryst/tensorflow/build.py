"""Builds the plug-in for the TensorFlow that is installed.

TensorFlow promises no binary interface between releases, so there is a plug-in for each:
`python -m tryst.tensorflow.build` makes it, from the headers of the wheel. It needs g++.
"""

import fcntl
import glob
import hashlib
import os
import subprocess
import sys
import tempfile

_HERE = os.path.dirname(os.path.abspath(__file__))
_PARTS = ("asks", "library", "worker", "keys", "producer_link", "consumer_link", "tensors",
          "bridge", "rendezvous", "plugin")


def _sources():
    """The folder that holds plugins/tensorflow and server/c."""
    for root in (os.path.join(_HERE, "source"), os.path.join(_HERE, "..", "..", "..")):
        if os.path.exists(os.path.join(root, "plugins", "tensorflow", "plugin.cc")):
            return os.path.normpath(root)
    raise FileNotFoundError("the sources of the TensorFlow plug-in are not installed beside tryst.tensorflow: install the wheel again")


def find_library():
    """libtryst.so.1 beside the package, or None."""
    beside = os.path.abspath(os.path.join(_HERE, "..", "libtryst.so.1"))
    return beside if os.path.exists(beside) else None


def _key(root, version, flags):
    digest = hashlib.sha256((version + " ".join(flags)).encode())
    sources = glob.glob(os.path.join(root, "server", "c", "*.h"))
    sources += glob.glob(os.path.join(root, "plugins", "tensorflow", "*.h"))
    sources += [os.path.join(root, "plugins", "tensorflow", part + ".cc") for part in _PARTS]
    for path in sorted(sources):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def build(into=None, quiet=False):
    """Returns the plug-in's path; builds it unless that has been done."""
    import tensorflow as tf

    root = _sources()
    version = tf.__version__
    flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    into = into or os.path.join(
        os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "tryst", "tensorflow")
    plugin = os.path.join(into, "libtryst_tensorflow-%s-%s.so" % (version, _key(root, version, flags)))
    if os.path.exists(plugin):
        return plugin
    os.makedirs(into, exist_ok=True)
    with open(plugin + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # The tasks of a job start at the same time.
        if not os.path.exists(plugin):
            if not quiet:
                print("tryst: building the plug-in for TensorFlow " + version, file=sys.stderr)
            _compile(root, into, plugin, flags)
    return plugin


def _compile(root, into, plugin, flags):
    import tensorflow as tf

    include = tf.sysconfig.get_include()
    with tempfile.TemporaryDirectory(dir=into) as work:
        together = os.path.join(work, "together.cc")
        with open(together, "w", encoding="utf-8") as file:
            for part in _PARTS:
                file.write('#include "plugins/tensorflow/%s.cc"\n' % part)
        made = os.path.join(work, "plugin.so")
        library = tf.sysconfig.get_lib()
        # -DNDEBUG and the flags must be those of the wheel's build, because they decide layouts.
        subprocess.run(
            [os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-O2", "-DNDEBUG",
             "-fvisibility=hidden", "-Wl,-z,defs", *flags, "-I" + root, "-isystem", include, "-isystem",
             os.path.join(include, "external", "farmhash_archive", "src"), together, "-o", made,
             "-L" + library, "-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2", "-ldl",
             "-lpthread"], check=True)
        os.replace(made, plugin)


if __name__ == "__main__":
    print(build(sys.argv[1] if len(sys.argv) > 1 else None))
