"""Tryst: tensors move between processes by name, the fastest way that their machines share.

>>> import tryst
>>> with tryst.Server(job="self", listen="127.0.0.1:0", insecure=True, open_cluster=True) as server:
...     with server.step(7) as step:
...         step.send_many({"a": b"12", "b": b"345"}, to=server.worker)
...         a, b = step.recv_many(["a", "b"], frm=server.worker, timeout=10)
>>> bytes(a), bytes(b)
(b'12', b'345')
"""

from tryst import errors
from tryst.arrays import Tensor, tensor
from tryst.errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error,
                          FailedPrecondition, Internal, InvalidArgument, NotFound, OutOfRange,
                          PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable,
                          Unimplemented)
from tryst.selections import Blocks, Box, Group, Region, Runs, Spans
from tryst.server import Gather, Plan, Receive, Server, Step

__version__ = "0.2.0"
__all__ = ["Aborted", "AlreadyExists", "Blocks", "Box", "Cancelled", "DataLoss", "DeadlineExceeded", "Error",
           "FailedPrecondition", "Gather", "Group", "Internal", "InvalidArgument", "NotFound", "OutOfRange",
           "PermissionDenied", "Plan", "Receive", "Region", "ResourceExhausted", "Runs", "Server", "Spans", "Step",
           "Tensor", "Unauthenticated", "Unavailable", "Unimplemented", "errors", "tensor"]
