#!/usr/bin/env python3
"""coexist.py LIBRARY MODULE...: libtryst beside other people's gRPC and Protobuf in one process.

Loads what the arguments name, in their order: "tryst" is LIBRARY, "grpcio" and "tensorflow" are
Python packages; "global:" before one makes its symbols visible to all that comes later. Then
tensors travel between two servers of LIBRARY by gRPC while the others make calls of their own.
"""
import ctypes
import importlib
import os
import sys
import threading


class Tryst:
    def __init__(self, library):
        c = self.c = library
        for name in "tryst_server_worker", "tryst_server_address", "tryst_status_message":
            getattr(c, name).restype = ctypes.c_char_p
        for name in ("tryst_server_create", "tryst_server_start", "tryst_key", "tryst_send", "tryst_recv",
                     "tryst_tensor_allocate", "tryst_server_stop", "tryst_tensor_data"):
            getattr(c, name).restype = ctypes.c_void_p
        c.tryst_server_incarnation.restype = ctypes.c_uint64

    def check(self, status):
        if status:
            raise RuntimeError(self.c.tryst_status_message(ctypes.c_void_p(status)).decode())

    def server(self, task, join=None):
        settings = [b"--job=worker", b"--task=%d" % task, b"--listen=127.0.0.1:0", b"--insecure",
                    b"--open_cluster", b"--protocol=grpc"] + ([b"--join=" + join] if join else [])
        server = ctypes.c_void_p()
        array = (ctypes.c_char_p * len(settings))(*settings)
        self.check(self.c.tryst_server_create(array, ctypes.c_size_t(len(settings)), ctypes.byref(server)))
        self.check(self.c.tryst_server_start(server))
        return server

    def round(self, source, sink, step, value):
        c = self.c
        key = ctypes.c_void_p()
        device = lambda server: c.tryst_server_worker(server) + b"/device:CPU:0"
        self.check(c.tryst_key(device(source), ctypes.c_uint64(c.tryst_server_incarnation(source)),
                               device(sink), b"weights", ctypes.c_uint64(0), ctypes.c_uint64(0),
                               ctypes.byref(key)))
        tensor, got = ctypes.c_void_p(), ctypes.c_void_p()
        dims = (ctypes.c_int64 * 1)(100_000)
        self.check(c.tryst_tensor_allocate(3, dims, ctypes.c_size_t(1), ctypes.byref(tensor)))
        ints = ctypes.cast(ctypes.c_void_p(c.tryst_tensor_data(tensor)), ctypes.POINTER(ctypes.c_int32))
        ints[99_999] = value
        self.check(c.tryst_send(source, ctypes.c_int64(step), key, tensor))
        self.check(c.tryst_recv(sink, ctypes.c_int64(step), key, None, ctypes.c_int64(30_000),
                                ctypes.byref(got)))
        ints = ctypes.cast(ctypes.c_void_p(c.tryst_tensor_data(got)), ctypes.POINTER(ctypes.c_int32))
        assert ints[99_999] == value, (ints[99_999], value)
        c.tryst_tensor_free(got)
        c.tryst_tensor_free(tensor)
        c.tryst_string_free(key)
        c.tryst_step_cleanup(source, ctypes.c_int64(step))
        c.tryst_step_cleanup(sink, ctypes.c_int64(step))


def grpc_calls(count):
    import grpc
    from concurrent import futures
    from google.protobuf import struct_pb2, wrappers_pb2

    def echo(request, _):
        return wrappers_pb2.Int64Value(value=int(request["n"]) + 1)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", {
        "Go": grpc.unary_unary_rpc_method_handler(
            echo, struct_pb2.Struct.FromString, wrappers_pb2.Int64Value.SerializeToString)}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel("127.0.0.1:%d" % port) as channel:
        go = channel.unary_unary("/t.Echo/Go", struct_pb2.Struct.SerializeToString,
                                 wrappers_pb2.Int64Value.FromString)
        for n in range(count):
            request = struct_pb2.Struct()
            request["n"] = n
            assert go(request, timeout=30).value == n + 1
    server.stop(None)


def tensorflow_calls(count):
    """A distributed server of TensorFlow's own, its gRPC and its Protobuf."""
    import tensorflow as tf

    server = tf.distribute.Server({"local": ["localhost:0"]}, protocol="grpc", start=True)
    with tf.Graph().as_default():
        total = tf.constant(20) + tf.constant(22)
        with tf.compat.v1.Session(server.target) as session:
            for _ in range(count):
                assert session.run(total) == 42
    assert float(tf.reduce_sum(tf.ones([64, 64]) @ tf.ones([64, 64]))) == 64.0**3
    os.environ["TRYST_LAST"] = "tensorflow"


def main():
    library, order = sys.argv[1], sys.argv[2:]
    calls, tryst = [], None
    for name in order:
        flags = os.RTLD_LOCAL | os.RTLD_NOW
        if name.startswith("global:"):
            name, flags = name[7:], os.RTLD_GLOBAL | os.RTLD_NOW
        sys.setdlopenflags(flags)
        if name == "tryst":
            tryst = Tryst(ctypes.CDLL(library, mode=flags))
        else:
            importlib.import_module({"grpcio": "grpc"}.get(name, name))
            calls.append({"grpcio": grpc_calls, "tensorflow": tensorflow_calls}[name])
        if name == "grpcio":
            import google.protobuf.struct_pb2
    failed = []

    def run(call):
        try:
            call(50)
        except BaseException as error:
            failed.append(error)
            raise

    first = tryst.server(0)
    second = tryst.server(1, join=tryst.c.tryst_server_worker(first) + b"@" + tryst.c.tryst_server_address(first))
    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    step = 0
    while step < 50 or any(thread.is_alive() for thread in threads):
        step += 1
        tryst.round(first, second, step, step)
        tryst.round(second, first, 1_000_000 + step, -step)
    for thread in threads:
        thread.join()
    for server in second, first:
        tryst.check(tryst.c.tryst_server_stop(server, ctypes.c_int64(10_000)))
        tryst.c.tryst_server_free(server)
    assert not failed, failed
    print("%s: %d tensors each way, %d others" % (" ".join(order), step, len(calls)))


main()
