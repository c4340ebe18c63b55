"""The live store killed between any two steps of a write: the next life reads the old document or the new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.packages import files
from runtime.ports import store as store_module
from runtime.ports.store import Documents

CLUSTER = "c-0123456789abcdef"


class Killed(BaseException):
    """Nothing of this life runs after it."""


def killed_before(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Die before the step of this number; returns the steps that were taken."""
    taken: list[str] = []

    def counted(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def take(*arguments: object, **options: object) -> object:
            if len(taken) == step:
                raise Killed
            taken.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, take)

    counted(files, "write_all")
    counted(os, "fsync")
    counted(Path, "replace")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # the dead clean up nothing
    monkeypatch.setattr(store_module, "_HELD", {})
    return taken


def life(directory: Path) -> Documents:
    return Documents(directory, CLUSTER, "shed")


STEPS = ["write_all", "fsync", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("step", range(len(STEPS) + 1))
def test_a_write_cut_anywhere_leaves_the_old_or_the_new_and_never_a_mixture(tmp_path, step):
    first = life(tmp_path)
    first.save("agent", b"old")
    first.close()
    with pytest.MonkeyPatch.context() as patched:
        taken = killed_before(patched, step)
        second = life(tmp_path)
        if step < len(STEPS):
            with pytest.raises(Killed):
                second.save("agent", b"new and longer")
        else:
            second.save("agent", b"new and longer")
        assert taken == STEPS[:step]
        second.close()  # as the kernel lets go of the lock of a process that is gone
    third = life(tmp_path)
    assert third.load("agent") == (b"old" if step <= STEPS.index("replace") else b"new and longer")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.doc", "lock"]
    third.save("agent", b"newest")
    assert third.load("agent") == b"newest"
    third.close()
