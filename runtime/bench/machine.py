"""What a figure was measured on, in one line: without it a figure says nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import zmq


def machine() -> str:
    """Processors this process may use, their model, kernel, Python, ZeroMQ."""
    return (
        f"{len(os.sched_getaffinity(0))} x {_model()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, ZeroMQ {zmq.zmq_version()}"
    )


def _model() -> str:
    """As `/proc/cpuinfo` names it; Arm kernels often do not, so the architecture it is then."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


__all__ = ["machine"]
