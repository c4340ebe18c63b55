"""Which sockets there are: none that waits for its turn, none that loses in silence."""

from __future__ import annotations

import re
from pathlib import Path

import runtime

KINDS = r"\bzmq\.(REQ|REP|PUB|SUB|XPUB|XSUB|PUSH|PULL|PAIR|DEALER|ROUTER|STREAM)\b"


def test_the_only_kinds_of_sockets_are_those_that_say_what_they_cannot_send():
    """A REQ waits for ever for a lost answer, a PUB drops what a slow reader does not take."""
    folder = Path(runtime.__file__).parent
    used = {
        (path.relative_to(folder).parts[0], kind)
        for path in folder.rglob("*.py")
        for kind in re.findall(KINDS, path.read_text())
    }
    assert {kind for _, kind in used} == {"DEALER", "ROUTER"}
    assert {part for part, _ in used} <= {"office", "bench"}
