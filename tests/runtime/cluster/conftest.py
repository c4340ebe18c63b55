from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runtime.cluster import Cluster, init_cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with TemporaryDirectory(prefix="snt-") as path:
        yield Path(path)


@pytest.fixture
def make(folder: Path) -> MakeCluster:
    def build(name: str = "reef", **options: object) -> Cluster:
        return init_cluster(folder / name, policy="", **options)  # type: ignore[arg-type]

    return build
