"""A few seconds of the soak of edges, so that it works when it is needed; `make soak-edges` takes a minute and more."""

from __future__ import annotations

import pytest

from tests.soak.edges import soak


@pytest.mark.timeout(120)
def test_a_short_soak_of_edges_finds_nothing():
    told: list[str] = []
    assert soak(3.0, 2, 2, told.append) == [], "\n".join(told)
