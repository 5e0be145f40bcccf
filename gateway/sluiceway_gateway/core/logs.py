"""Structured logs: one event per line, as JSON, or as text, coloured in terminals."""

import logging
import sys
from typing import Literal, TextIO

import structlog

from sluiceway_gateway.core.tracing import add_trace_ids

__all__ = ["configure_logs"]


def configure_logs(
    *,
    level: Literal["debug", "info", "warning", "error"],
    format: Literal["json", "console"],
    stream: TextIO | None = None,
) -> None:
    """Send all log records, including those of libraries, to `stream` (by default stderr).

    For entry points of processes. A later call replaces an earlier one.
    """
    stream = sys.stderr if stream is None else stream
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_trace_ids,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderers: list[structlog.typing.Processor]
    if format == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Plain tracebacks, because the values of variables may be secrets.
        renderers = [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # The gateway logs requests itself, with route and duration.
    logging.getLogger("uvicorn.access").disabled = True
    # Alembic logs every step at info.
    logging.getLogger("alembic").setLevel("WARNING")
