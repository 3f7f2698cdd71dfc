"""Logs: one JSON line for each event that matters to an operator, without prompts or results."""

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(process: str, level: str) -> None:
    """Write the lines of structlog and of libraries to standard error as JSON, with `process`."""
    configure_own(process, level)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, _named(process)],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def configure_own(process: str, level: str) -> None:
    """The same for our own lines only, in a process whose libraries log in their own way."""
    structlog.configure(
        processors=[
            *_SHARED,
            _named(process),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _named(process: str) -> Processor:
    """Adds the process's name, in every thread and task of it."""

    def add(_: object, __: str, event: EventDict) -> EventDict:
        event["process"] = process
        return event

    return add
