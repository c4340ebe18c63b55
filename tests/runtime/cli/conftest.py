from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from runtime.cli.main import run


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Sennit = Callable[..., Ended]


@pytest.fixture
def sennit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Sennit:
    """Run one command line in this process."""
    monkeypatch.delenv("SENNIT_CLUSTER", raising=False)

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(int(code), captured.out, captured.err)

    return call


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with TemporaryDirectory(prefix="snt-") as path:
        yield Path(path)


@pytest.fixture
def reef(sennit: Sennit, folder: Path) -> Path:
    """A cluster directory that is not up."""
    assert sennit("init", folder / "reef").code == 0
    return folder / "reef"
