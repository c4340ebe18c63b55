"""The folder of an instance: laid out whole or not at all (G 5.6).

<root>/<instance id>/             0755
    <program>                     0555, the bytes verified
    data/                         0700, the workload's working directory
    stage.json                    what was staged
    lock, run/                    the shim's, see `runtime.shim.client`
<root>/.<instance id>.<new|old>   coming or going; cleared when the launcher starts
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from messages.ports import PortRefusal, StageInstance
from runtime.packages.blobs import BlobFault
from runtime.packages.files import sync_directory
from runtime.ports.probe import MACHINES

NOARCH = "noarch"
ELF_MACHINES = {"x86_64": (2, 62), "aarch64": (2, 183), "armv7": (1, 40)}
"""ELF class (1: 32 bits, 2: 64 bits) and machine of each architecture a package may name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT)

Materialise = Callable[[str, Path, int], None]
"""`ContentStore.materialise`: write a blob, by its SHA-256, to a new file of that mode."""


class LauncherFault(Exception):
    """The launcher did not do what was asked; nothing was changed."""

    def __init__(self, code: PortRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class Staging:
    """Folders of instances under `root`. `user`: uid and gid of workloads, None: the agent's own. Methods raise
    `LauncherFault`."""

    def __init__(self, root: Path, materialise: Materialise, user: tuple[int, int] | None) -> None:
        self.root = root.absolute()
        self._materialise = materialise
        self._user = user

    def open(self) -> None:
        """Make the root and clear what a former launcher was about to make or remove."""
        with faults(self.root):
            self.root.mkdir(parents=True, exist_ok=True, mode=0o755)
            for leftover in self.root.glob(".*"):
                shutil.rmtree(leftover)

    def stage(self, order: StageInstance) -> None:
        """Lay out one instance."""
        target = self.path(order.instance_id)
        if target.exists():
            raise LauncherFault(PortRefusal.EXISTS, f"{order.instance_id} is staged already")
        if _NAME.fullmatch(order.program_name) is None or order.program_name in ("data", "run", "lock", "stage.json"):
            raise LauncherFault(PortRefusal.ADMISSION, f"{order.program_name[:64]!r} cannot be the name of a program")
        check_interpreter(order)
        fresh = self.root / f".{order.instance_id}.new"
        with faults(fresh):
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o755)
            try:
                (fresh / "data").mkdir(mode=0o700)
                if self._user is not None:
                    os.chown(fresh / "data", *self._user)
                program = fresh / order.program_name
                self._materialise(order.sha256, program, 0o555)
                check_program(program, order.arch)
                (fresh / "stage.json").write_bytes(msgspec.json.encode(order))
                sync_directory(fresh)
                fresh.rename(target)
                sync_directory(self.root)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                raise

    def order(self, instance_id: str) -> StageInstance:
        """What was staged."""
        path = self.path(instance_id) / "stage.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=StageInstance)
        except (FileNotFoundError, NotADirectoryError):
            raise LauncherFault(PortRefusal.NOT_FOUND, f"no instance {instance_id} is staged") from None
        except msgspec.MsgspecError as error:
            raise LauncherFault(
                PortRefusal.DAMAGED, f"{path}: {error}; unload the instance and place it again"
            ) from None

    def command(self, order: StageInstance, arguments: list[str]) -> list[str]:
        """The workload's command line; the program is an absolute path."""
        interpreter = [] if order.interpreter is None else [order.interpreter]
        return [*interpreter, str(self.path(order.instance_id) / order.program_name), *arguments]

    def remove(self, instance_id: str) -> None:
        """Take the folder away, at once for everybody who looks."""
        target, old = self.path(instance_id), self.root / f".{instance_id}.old"
        with faults(target):
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            sync_directory(self.root)
            shutil.rmtree(old)

    def names(self) -> list[str]:
        """Every staged instance."""
        with faults(self.root):
            return sorted(one.name for one in self.root.iterdir() if not one.name.startswith("."))

    def path(self, instance_id: str) -> Path:
        if _NAME.fullmatch(instance_id) is None:
            raise LauncherFault(PortRefusal.INVALID, f"{instance_id[:64]!r} is no instance id: letters, digits, . _ -")
        return self.root / instance_id


def check_interpreter(order: StageInstance) -> None:
    """A script needs an interpreter that is there, a program of a real architecture none."""
    if order.arch != NOARCH:
        if order.interpreter is not None:
            raise LauncherFault(PortRefusal.ADMISSION, f"an {order.arch} program is run by no interpreter")
        here = MACHINES.get(platform.machine(), platform.machine())
        if order.arch != here:
            raise LauncherFault(PortRefusal.ADMISSION, f"the program is for {order.arch}, this machine is {here}")
        return
    if order.interpreter is None:
        raise LauncherFault(PortRefusal.ADMISSION, "a noarch program needs the interpreter that the node's fact names")
    if not (order.interpreter.startswith("/") and os.access(order.interpreter, os.X_OK)):
        reason = f"the interpreter {order.interpreter} cannot be run here: advertise the facts of this node again"
        raise LauncherFault(PortRefusal.ADMISSION, reason)


def check_program(program: Path, arch: str) -> None:
    """The header of a native program names the architecture it was signed for."""
    if arch == NOARCH:
        return
    with program.open("rb") as file:
        head = file.read(20)
    if arch not in ELF_MACHINES:
        raise LauncherFault(PortRefusal.ADMISSION, f"{arch} programs cannot be run natively")
    if len(head) < 20 or head[:4] != b"\x7fELF":
        raise LauncherFault(PortRefusal.ADMISSION, f"the program is no ELF file, though signed for {arch}")
    wanted = ELF_MACHINES[arch]
    found = (head[4], int.from_bytes(head[18:20], "big" if head[5] == 2 else "little"))
    if found != wanted:
        raise LauncherFault(
            PortRefusal.ADMISSION,
            f"the program is ELF class {found[0]} for machine {found[1]}; {arch} is class {wanted[0]}, {wanted[1]}",
        )


@contextmanager
def faults(path: Path) -> Iterator[None]:
    """Say I/O errors and those of the content store in the port's terms."""
    try:
        yield
    except BlobFault as fault:
        raise LauncherFault(fault.code, fault.reason) from None
    except OSError as error:
        code = PortRefusal.DISK_FULL if error.errno in _FULL else PortRefusal.IO_ERROR
        raise LauncherFault(code, f"{path}: {error.strerror or error}") from None


__all__ = ["LauncherFault", "Materialise", "Staging", "check_interpreter", "check_program", "faults"]
