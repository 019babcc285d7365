"""LMCache's transfer channel "tryst": peers read each other's L1 memory over whatever path leads there.

    python -m tryst.lmcache MODULE ARGUMENTS

registers it and runs that module of LMCache's (0.5.6) as a program, whose P2P configuration then names the transfer engine
"tryst". Settings of the servers (docs/CONFIG.md) come from the environment, TRYST_TOKEN_FILE for one, or by keyword.
"""

import ctypes
import itertools
import logging
import sys
import threading
import zlib

import tryst
from lmcache.v1.distributed.transfer_channel.abstract import (TransferChannelClient, TransferChannelContext,
                                                              TransferChannelServer)
from lmcache.v1.distributed.transfer_channel.api import TransferChannelAddress, TransferChannelReadResult
from lmcache.v1.distributed.transfer_channel.factory import register_transfer_channel_factory

_REGION = "l1"
_READER = "lmcache_reader_"
_CONNECT_S, _AGAIN_S, _READ_S, _CLOSE_S = 60.0, 1.0, 10.0, 5.0
_log = logging.getLogger(__name__)


def _host_and_port(url):
    host, _, port = url.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{url!r} is not host:port")
    return host, int(port)


def _slug(url):
    """An advertised host:port as a part of a job's name."""
    host, port = _host_and_port(url)
    return "%08x_%d" % (zlib.crc32(host.encode()), port)


def _owner(url):
    return f"/job:lmcache_{_slug(url)}/replica:0/task:0"


class TrystServer(TransferChannelServer):
    """Answers peers' reads of the L1 memory."""

    def __init__(self, listen_url, advertise_url, l1_memory_desc, **settings):
        listen, advertise = "%s:%d" % _host_and_port(listen_url), "%s:%d" % _host_and_port(advertise_url)
        self.memory = (ctypes.c_uint8 * l1_memory_desc.size).from_address(l1_memory_desc.ptr)
        self.server = tryst.Server(job=f"lmcache_{_slug(advertise_url)}", listen=listen, advertise=advertise,
                                   **{"open_cluster": True, **settings}).start()
        self._region = self.server.region(_REGION, self.memory)

    def readers(self):
        """The slugs of the peers that read here."""
        found = set()
        for member in self.server.paths()["members"]:
            job = member["worker"].split("/")[1].partition(":")[2]
            if job.startswith(_READER) and member["address"]:
                found.add(job[len(_READER):])
        return found

    def close(self):
        """Nothing reads the memory any more when it returns."""
        self._region.close()
        self.server.stop(_CLOSE_S)


class TrystClient(TransferChannelClient):
    """Reads of one peer. They end by themselves after 10 s, so that none comes late."""

    _numbers = itertools.count()

    def __init__(self, transfer_channel_server_url, context):
        self._memory, self._peer = context.memory, _owner(transfer_channel_server_url)
        address = "%s:%d" % _host_and_port(transfer_channel_server_url)
        self._server = tryst.Server(job=_READER + _slug(context.advertise_url), task=next(self._numbers),
                                    join=f"{self._peer}@{address}", **context.reader_settings).start()
        try:
            self._server.wait_for(self._peer, _CONNECT_S)
        except BaseException:
            self._server.stop(0.0)
            raise
        self._group = self._server.group()
        self._lock, self._tasks, self._ids = threading.Lock(), {}, itertools.count()

    def submit_read(self, local_addresses, remote_addresses):
        if len(local_addresses) != len(remote_addresses):
            raise ValueError("a read needs as many local addresses as remote ones")
        if any(mine.size != theirs.size for mine, theirs in zip(local_addresses, remote_addresses)):
            raise ValueError("a local address and its remote one differ in size")
        wanted, landing = (tryst.Spans([(address.offset, address.size) for address in addresses])
                           for addresses in (remote_addresses, local_addresses))
        receive = None
        if self._is_there():
            receive = self._server.fetch_region(_REGION, frm=self._peer, wanted=wanted, into=self._memory, select=landing,
                                                timeout=_READ_S, group=self._group)
        with self._lock:
            task = next(self._ids)
            self._tasks[task] = (receive, len(local_addresses))
        return task

    def _is_there(self):
        """After a failed read the peer is looked for again, which must not keep the caller for long."""
        if self._peer in self._server._incarnations:
            return True
        try:
            self._server.wait_for(self._peer, _AGAIN_S)
        except tryst.Error as error:
            _log.warning("%s does not answer: %s", self._peer, error)
            return False
        return True

    def query_read_status(self, task_id):
        with self._lock:
            receive, count = self._tasks[task_id]
            if receive is not None and not receive.wait(0.0):
                return TransferChannelReadResult(finished=False)
            del self._tasks[task_id]
        if receive is None:
            return TransferChannelReadResult(finished=True, succeeded_mask=[False] * count)
        try:
            receive.result()
        except tryst.Error as error:
            _log.warning("a read of %s failed: %s", self._peer, error)
        succeeded = [True] * count
        for address in range(count) if receive.failed is None else receive.failed:
            succeeded[address] = False
        return TransferChannelReadResult(finished=True, succeeded_mask=succeeded)

    def close(self):
        """Nothing lands any more when it returns."""
        self._group.cancel().wait()
        with self._lock:
            self._tasks.clear()
        self._server.stop(_CLOSE_S)


class TrystContext(TransferChannelContext):
    """The one of this process: its server, and a client for each peer."""

    def __init__(self, l1_memory_desc, listen_url, advertise_url, **settings):
        self.advertise_url = advertise_url
        self._size = l1_memory_desc.size
        self._server = TrystServer(listen_url, advertise_url, l1_memory_desc, **settings)
        self.memory = self._server.memory
        self.reader_settings = {"open_cluster": True, **settings, "listen": f"{_host_and_port(listen_url)[0]}:0",
                                "advertise": f"{_host_and_port(advertise_url)[0]}:0"}
        self._lock, self._clients = threading.Lock(), {}

    def get_transfer_channel_server(self):
        return self._server

    def get_transfer_channel_client(self, peer_advertise_url):
        with self._lock:
            client = self._clients.get(peer_advertise_url)
        return client or self.register_client(peer_advertise_url, TrystClient(peer_advertise_url, self))

    def register_client(self, peer_advertise_url, client):
        """The first of a peer stays; another one is closed."""
        with self._lock:
            kept = self._clients.setdefault(peer_advertise_url, client)
        if kept is not client:
            client.close()
        return kept

    def remove_transfer_channel_client(self, peer_advertise_url):
        with self._lock:
            client = self._clients.pop(peer_advertise_url, None)
        if client is not None:
            client.close()

    def get_transfer_channel_address(self, lmcache_addresses):
        for offset, size in lmcache_addresses:
            if offset < 0 or size <= 0 or offset + size > self._size:
                raise ValueError(f"{size} bytes at {offset} are not in the L1 memory, which has {self._size}")
        return [TransferChannelAddress(offset=offset, size=size) for offset, size in lmcache_addresses]

    def get_num_connected_clients(self):
        with self._lock:
            ours = list(self._clients)
        return len(ours) + len(self._server.readers() - {_slug(url) for url in ours})

    def close(self):
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()
        self._server.close()


def register():
    """Makes "tryst" a transfer channel of this process, once."""
    register_transfer_channel_factory("tryst", TrystContext)


def main():
    import runpy

    if len(sys.argv) < 2:
        sys.exit(__doc__)
    register()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
