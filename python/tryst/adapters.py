"""What the adapters to other frameworks share. No framework is imported here."""
import os

import tryst


def start(job, host, token=None, join=None, settings=(), task=0):
    """A server that listens at `host`, or at host:port, and lets in who knows the token, unless the settings say otherwise."""
    listen = host if ":" in host.rpartition("]")[2] else f"{host}:0"
    settings = {"listen": listen, "open_cluster": True, **dict(settings)}
    if token and not any(name in settings for name in ("insecure", "token_file", "certificate_file")):
        memory = os.memfd_create("token")  # The file is on no disk; it is open as long as the process lives.
        os.fchmod(memory, 0o600)
        os.write(memory, token.encode())
        settings["token_file"] = f"/proc/self/fd/{memory}"
    return tryst.Server(job=job, task=task, join=join or None, **settings).start()
