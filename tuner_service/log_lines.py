"""Log lines: one JSON object per line on stderr, whoever says it.

structlog's lines and those of the standard library's logging (uvicorn, SQLAlchemy, Alembic, Ray),
warnings and exceptions that nobody caught have the same members, the request id among them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import structlog

from tilecore.errors import TileError
from tuner_service.errors import exit_status
from tuner_service.log_stream import keep_writable

log = structlog.get_logger()
SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)
HANDLER = "tilecore"  # ours, among the root logger's
OWN_HANDLERS = ("ray",)  # libraries that write their lines themselves, in forms of their own


class RoutedLogger(logging.Logger):
    """A logger whose lines reach the root logger's handlers, whatever its library sets up."""

    @property
    def propagate(self) -> bool:
        """Whether others hear its lines: always."""
        return True

    @propagate.setter
    def propagate(self, _wanted: bool) -> None:
        """Keep it so."""

    def addHandler(self, hdlr: logging.Handler) -> None:
        """Refuse handlers that write to the console, where every line would come twice."""
        is_file = isinstance(hdlr, logging.FileHandler)
        if is_file or not isinstance(hdlr, logging.StreamHandler):
            super().addHandler(hdlr)


def configure_logging(level: str) -> None:
    """Write one JSON object per line to stderr, or count the lines that it has no room for."""
    keep_writable()
    number = getattr(logging, level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(HANDLER)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*SHARED[:-1], structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    for known in [h for h in root.handlers if h.get_name() == HANDLER]:
        root.removeHandler(known)
    root.addHandler(handler)
    root.setLevel(number)
    for name in OWN_HANDLERS:
        _route(logging.getLogger(name))
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*SHARED, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )


def log_everything(level: str) -> None:
    """Make a process of the service one that writes nothing but log lines to stderr.

    What ``configure_logging`` does, and exceptions that nobody catches, in whatever thread.
    """
    configure_logging(level)

    def of_main(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        log.critical("uncaught exception", exc_info=(kind, error, trace))

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or isinstance(args.exc_value, SystemExit):
            return
        found = (args.exc_type, args.exc_value, args.exc_traceback)
        name = args.thread.name if args.thread else None
        log.critical("uncaught exception", thread=name, exc_info=found)

    def of_nobody(args: Any) -> None:
        found = (args.exc_type, args.exc_value, args.exc_traceback)
        log.error("ignored exception", where=repr(args.object), exc_info=found)

    sys.excepthook = of_main
    threading.excepthook = of_thread
    sys.unraisablehook = of_nobody


@contextmanager
def ends_logged() -> Iterator[None]:
    """Log the error that ends the process, which the command line would print as text.

    Raises:
        SystemExit: in place of any other exception, with the status that the command line gives.
    """
    try:
        yield
    except TileError as error:
        log.error("ended by an error", code=error.code, error=str(error))
        raise SystemExit(exit_status(error)) from error
    except Exception as error:
        log.critical("ended by an unexpected error", exc_info=error)
        raise SystemExit(1) from error


def _route(logger: logging.Logger) -> None:
    kept = [h for h in logger.handlers if isinstance(h, logging.FileHandler)]
    logger.handlers[:] = kept
    logger.__class__ = RoutedLogger
