"""What goes wrong, as exceptions: each says its code, what happened, and what to do."""

from tryst import _tryst


class Error(Exception):
    """A failure of Tryst's.

    `code` is its name ("ABORTED"), `message` what happened to whom, `advice` what one usually
    does then, and `is_derived` whether it is the consequence of another failure.
    """

    code = "UNKNOWN"
    advice = "Look at server.explain(), and at the log."

    def __init__(self, message, is_derived=False):
        super().__init__(message)
        self.message = message
        self.is_derived = is_derived

    def __str__(self):
        return f"{self.code}: {self.message} ({self.advice})"


class Cancelled(Error):
    code, advice = "CANCELLED", "Nothing: somebody did not want it any more."


class InvalidArgument(Error, ValueError):
    code, advice = "INVALID_ARGUMENT", "Correct the call."


class DeadlineExceeded(Error, TimeoutError):
    code = "DEADLINE_EXCEEDED"
    advice = "See who was waited for with server.waiting(), or give it more time."


class NotFound(Error, LookupError):
    code, advice = "NOT_FOUND", "Check the name."


class AlreadyExists(Error):
    code, advice = "ALREADY_EXISTS", "Use another name."


class PermissionDenied(Error, PermissionError):
    code, advice = "PERMISSION_DENIED", "Check the cluster's certificates, token and members."


class ResourceExhausted(Error, MemoryError):
    code, advice = "RESOURCE_EXHAUSTED", "Receive what was sent, or raise the limit that is named."


class FailedPrecondition(Error):
    code, advice = "FAILED_PRECONDITION", "Do first what the message asks for."


class Aborted(Error):
    code = "ABORTED"
    advice = "Go on with another step: this one is over, or a worker of it has restarted."


class OutOfRange(Error, IndexError):
    code, advice = "OUT_OF_RANGE", "Correct the index."


class Unimplemented(Error, NotImplementedError):
    code, advice = "UNIMPLEMENTED", "Use one of the ways that the message names."


class Internal(Error):
    code, advice = "INTERNAL", "This is a fault of Tryst's: report it with the log."


class Unavailable(Error, ConnectionError):
    code = "UNAVAILABLE"
    advice = "Try again; if it stays, run `python -m tryst doctor` with the peer's name."


class DataLoss(Error):
    code, advice = "DATA_LOSS", "Send it again; if it stays, look for a faulty NIC or memory."


class Unauthenticated(Error, PermissionError):
    code, advice = "UNAUTHENTICATED", "Give the server the cluster's token or certificate."


_BY_CODE = {
    1: Cancelled, 2: Error, 3: InvalidArgument, 4: DeadlineExceeded, 5: NotFound, 6: AlreadyExists,
    7: PermissionDenied, 8: ResourceExhausted, 9: FailedPrecondition, 10: Aborted, 11: OutOfRange,
    12: Unimplemented, 13: Internal, 14: Unavailable, 15: DataLoss, 16: Unauthenticated,
}
CODES = {kind.code: number for number, kind in _BY_CODE.items()}


def _make(code, message, is_derived):
    return _BY_CODE.get(code, Error)(message, bool(is_derived))


_tryst.set_error_maker(_make)
