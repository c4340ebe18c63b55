"""Logs: JSON lines, one file per process with one writer, rotated by it (design 12).

Braces in texts are never formatted, exceptions show no local values (`diagnose=False`), and a line is ASCII: line ends
of any kind, terminal controls and what is no Unicode text are escaped. No field takes the place of the record's own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any


def _trim_loguru() -> None:
    """loguru asks asyncio whether a loop runs, for sinks that are coroutines. None of ours is, no process of ours has
    a loop, and asyncio with its TLS costs each of them 4 MB and a quarter of its start. So it is told: no loop. It also
    makes a sink to begin with, which `open_log` would only remove.
    """
    os.environ.setdefault("LOGURU_AUTOINIT", "0")
    loops = ModuleType("loguru._asyncio_loop")
    vars(loops).update(get_running_loop=lambda: None, get_task_loop=lambda _: None)
    sys.modules.setdefault(loops.__name__, loops)


_trim_loguru()
from loguru import logger  # noqa: E402

if TYPE_CHECKING:
    from loguru import Record

ROTATE_BYTES = 10 * 1024 * 1024
KEPT_FILES = 3

Log = Callable[[str, str, str, dict[str, Any]], None]


def open_log(process: str, file: Path | None, *, level: str = "INFO") -> Log:
    """Returns `log(level, source, text, fields)`. Without a file it goes to standard error."""
    logger.remove()

    def line(record: Record) -> str:
        entry: dict[str, Any] = {
            "time": record["time"].isoformat(timespec="milliseconds"),
            "level": record["level"].name.lower(),
            "process": process,
            "source": record["extra"]["source"],
            "text": record["message"],
        }
        record["extra"]["line"] = json.dumps(entry | record["extra"]["fields"] | entry, default=str)
        return "{extra[line]}\n"

    if file is None:
        logger.add(sys.stderr, format=line, level=level, diagnose=False, backtrace=False)
    else:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        logger.add(
            str(file),
            format=line,
            level=level,
            diagnose=False,
            backtrace=False,
            rotation=ROTATE_BYTES,
            retention=KEPT_FILES,
        )

    def log(level: str, source: str, text: str, fields: dict[str, Any]) -> None:
        plain = dict(fields)
        error = plain.get("exception")
        if isinstance(error, BaseException):
            plain["exception"] = "".join(traceback.format_exception(error))
        logger.bind(source=source, fields=plain).log(level.upper(), text)

    return log
