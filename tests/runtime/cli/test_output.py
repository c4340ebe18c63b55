from __future__ import annotations

import errno
import json
from enum import IntEnum

import pytest

from actors.actor import AskFailed
from messages.base import Address
from messages.placement import PlaneError
from messages.system import AskFailure
from runtime.cli.faults import failure_of
from runtime.cli.output import ExitCode, print_document, print_table


def test_tables_are_never_shortened_in_a_pipe(capsys) -> None:
    long = "x" * 500
    print_table(("name", "what"), [("a", long), ("bb", None)])
    out = capsys.readouterr().out.splitlines()
    assert out == ["NAME  WHAT", f"a     {long}", "bb    -"]


@pytest.mark.parametrize(("width", "lines"), [(40, 3), (24, 5)])
def test_a_table_that_is_shortened_loses_only_the_end_of_its_last_column(capsys, monkeypatch, width, lines) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(("seq", "kind", "payload"), [(1, "genesis", "y" * 90), (22, "workload", "z" * 90)], shorten=True)
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) == width
    assert "genesis" in told[lines // 2]
    assert sum(line.endswith("…") for line in told) == 2
    assert len(told) == lines + (width == 24)


def test_cells_stay_on_one_line(capsys) -> None:
    print_table(("a", "b", "c"), [("one\ntwo", True, [1, 2]), (0.5, False, [])])
    assert capsys.readouterr().out.splitlines()[1:] == ["one two  yes  1, 2", "0.5      no   -"]


def test_documents_take_structs_bytes_and_enums(capsys) -> None:
    class Size(IntEnum):
        BIG = 3

    document = {
        "key": b"\x01\xff",
        "code": PlaneError.PACKAGE,
        "size": Size.BIG,
        "path": Address("a/b"),
        "id": 2**64 - 1,
    }
    print_document(document)
    assert json.loads(capsys.readouterr().out) == {
        "key": "01ff", "code": "package", "size": 3, "path": "a/b", "id": 2**64 - 1,
    }  # fmt: skip


def test_every_failed_ask_has_an_ending() -> None:
    expected = {
        AskFailure.UNREACHABLE: ExitCode.NO_CLUSTER,
        AskFailure.REFUSED: ExitCode.REFUSED,
        AskFailure.WOULD_DEADLOCK: ExitCode.REFUSED,
        AskFailure.TIMEOUT: ExitCode.INDETERMINATE,
        AskFailure.DIED: ExitCode.INDETERMINATE,
    }
    for kind in AskFailure:
        failure = failure_of(AskFailed(kind, Address("controller/plane"), "", "why"))
        assert failure is not None
        assert failure.exit_code is expected[kind]
        assert "why" in failure.text


def test_refusals_of_the_plane_end_as_documented() -> None:
    expected = dict.fromkeys(PlaneError, ExitCode.REFUSED) | {
        PlaneError.INVALID: ExitCode.USAGE,
        PlaneError.PLACEMENT: ExitCode.UNPLACEABLE,
        PlaneError.CALL_INDETERMINATE: ExitCode.INDETERMINATE,
        PlaneError.UNSETTLED: ExitCode.INDETERMINATE,
        PlaneError.CALL_UNREACHABLE: ExitCode.NO_CLUSTER,
        PlaneError.STALE_STATE: ExitCode.DAMAGED,
    }
    for code in PlaneError:
        failure = failure_of(AskFailed(AskFailure.REFUSED, Address("controller/plane"), code.value, "why"))
        assert failure is not None
        assert failure.exit_code is expected[code], code


def test_a_refused_package_names_what_helps() -> None:
    for code, word in {"untrusted-signer": "trust.json", "missing-signature": "sign", "file-missing": "pack"}.items():
        reason = f"it is as it is [{code}]"
        failure = failure_of(AskFailed(AskFailure.REFUSED, Address("controller/plane"), "package", reason))
        assert failure is not None
        assert word in failure.remedy


def test_a_file_that_cannot_be_written_is_named_and_a_full_disk_told_apart() -> None:
    lost = failure_of(FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/x"))
    full = failure_of(OSError(errno.ENOSPC, "No space left on device", "reef/keys"))
    assert lost is not None
    assert full is not None
    assert (lost.exit_code, lost.text) == (ExitCode.USAGE, "/proc/x: No such file or directory")
    assert (full.exit_code, full.code) == (ExitCode.REFUSED, "disk_full")
    assert failure_of(OSError(errno.EBADF, "Bad file descriptor")) is None


def test_a_defect_is_not_dressed_up() -> None:
    assert failure_of(RuntimeError("a defect")) is None
