"""A folder whose name is no Unicode text: Linux allows it, and what is printed of it is text all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import runtime

ROOT = Path(runtime.__file__).parent.parent


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "utf-8:surrogateescape"])
def test_the_name_of_a_folder_that_is_no_text_is_escaped_in_documents(folder, encoding) -> None:
    odd = os.fsencode(folder) + b"/reef\xff\xc3\xa9"
    ended = subprocess.run(
        [sys.executable, "-m", "runtime.cli", "status", "--json", "--cluster", odd],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 6
    assert b"Traceback" not in ended.stderr
    text = json.loads(ended.stdout.decode(encoding.partition(":")[0]))["error"]["text"]
    assert os.fsdecode(odd) in text
