from __future__ import annotations

import json
from enum import IntEnum

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


def test_a_defect_is_not_dressed_up() -> None:
    assert failure_of(RuntimeError("a defect")) is None
