"""What goes wrong between a workspace and the copy elsewhere, in one line.

DVC's exceptions count files, and the reasons go to its log; the libraries that speak to stores raise classes of their
own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from flywheel.errors import first_line
from flywheel.store.dvc_process import VersioningError

_LOGGERS = ("dvc", "dvc_data", "dvc_objects")
# By the class of an error or of one behind it, or by words of it. s3fs raises Python's own classes, botocore its own.
_FIXES = {
    "NoCredentialsError": "put its keys into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or into ~/.aws/credentials",
    "PermissionError": "see its keys (AWS_ACCESS_KEY_ID, or ~/.aws/credentials) and what they may do",
    "bucket does not exist": "make the bucket, or see versioning.remote",
    "EndpointConnectionError": "see whether the store is there, and AWS_ENDPOINT_URL",
    "HTTPClientError": "see whether the store is there, and AWS_ENDPOINT_URL",
}


class RemoteError(VersioningError):
    """The copy elsewhere cannot be reached, or cannot be used."""


class _Heard(logging.Handler):
    """Keeps what is logged, with the exception that it tells of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[BaseException | str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        self.faults.append(fault or record.getMessage())


@contextmanager
def copying(where: object) -> Iterator[None]:
    """Within the block something is copied to or from `where`. Raises RemoteError for whatever hinders it; DVC's own
    log is kept from the terminal meanwhile.
    """
    heard = _Heard()
    with ExitStack() as after:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            after.callback(setattr, logger, "propagate", logger.propagate)
            after.callback(logger.removeHandler, heard)
            logger.propagate = False
            logger.addHandler(heard)
        try:
            yield
        except Exception as error:
            fault = next(iter(heard.faults), error)
            what = first_line(str(fault)) or type(fault).__name__
            raise RemoteError(what, where=where, fix=_fix(fault)) from error


def look(repo: Any, name: str | None) -> None:
    """One question to the remote of that name (None: the default): where it fails, so would each file, one by one, with
    all of its retries. Raises whatever hinders it.
    """
    store = repo.cloud.get_remote_odb(name)
    with suppress(FileNotFoundError):
        store.fs.info(store.oid_to_path("0" * 32))


def _fix(fault: BaseException | str) -> str:
    told, names = str(fault), set()
    while isinstance(fault, BaseException):
        names |= {kind.__name__ for kind in type(fault).__mro__}
        fault = fault.__cause__ or ""
    return next(
        (fix for sign, fix in _FIXES.items() if sign in names or sign in told), "`dvc status --cloud` tells more"
    )
