#!/usr/bin/env python3
"""two_processes.py [COMMAND...]: a tensor goes to another process and back, over shared memory, over TCP and over gRPC.

With the package `tryst` and nothing beside it. COMMAND runs the other process, where it is not Python alone, as under qemu.
"""
import subprocess
import sys

import tryst

# How each is asked for, and what `paths` calls it.
PATHS = {"shm": {}, "rdma/soft": {"nic": "soft", "shm": "off"}, "grpc/stream": {"protocol": "grpc"},
         "grpc": {"protocol": "grpc", "nic": "calls"}}
COMMON = {"listen": "127.0.0.1:0", "insecure": True, "open_cluster": True}
HERE, THERE = "/job:here/task:0", "/job:there/task:0"
BYTES = bytes(range(256)) * 4096


def echo(path, join):
    with tryst.Server(job="there", join=join, **COMMON, **PATHS[path]) as server:
        step = server.step(1)
        step.send("back", step.recv("to", frm=HERE, timeout=60), to=HERE)
        step.recv("end", frm=HERE, timeout=60)


def main():
    if sys.argv[1:2] == ["--echo"]:
        echo(*sys.argv[2:])
        return
    command = sys.argv[1:] or [sys.executable]
    for path, settings in PATHS.items():
        with tryst.Server(job="here", **COMMON, **settings) as server:
            other = subprocess.Popen([*command, __file__, "--echo", path, f"{server.worker}@{server.address}"])
            step = server.step(1)
            step.send("to", BYTES, to=THERE)
            if bytes(step.recv("back", frm=THERE, timeout=60)) != BYTES:
                sys.exit(f"{path}: other bytes came back")
            used = {entry["path"] for entry in server.paths()["paths"] if entry["bytes"]}
            step.send("end", b"", to=THERE)
            if other.wait(timeout=60) != 0 or used != {path}:
                sys.exit(f"{path}: the other process ended with {other.returncode}; the bytes came by {used}")
        print(f"{len(BYTES)} bytes there and back by {path}")


main()
