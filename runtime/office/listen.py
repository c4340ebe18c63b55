"""Taking an address (design 5): ipc paths are locked, dead sockets removed, living ones and files never touched."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

IPC_PATH_MAX = 107
"""Bytes of a path in `sockaddr_un` on Linux, its final NUL not counted."""


class ListenFault(Exception):
    """The address cannot be taken; the text says why and what to do."""


class IpcClaim:
    """Holds the lock beside an ipc path from before the bind until `release`; a second bind would steal the path."""

    def __init__(self, path: str) -> None:
        if len(os.fsencode(path)) > IPC_PATH_MAX:
            raise ListenFault(
                f"ipc path {path} has {len(os.fsencode(path))} bytes, at most {IPC_PATH_MAX} fit: "
                "set run_dir in cluster.toml to a shorter folder"
            )
        self.path = Path(path)
        self._lock_path = Path(f"{path}.lock")
        self._lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._lock).st_nlink == 0:
                raise BlockingIOError  # its holder has just removed it: the next to come makes another
            self._remove_dead()
        except BlockingIOError:
            os.close(self._lock)
            raise ListenFault(
                f"{path} is in use by another process: stop it (sennit down) or use another run_dir"
            ) from None
        except BaseException:
            os.close(self._lock)
            raise

    def _remove_dead(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ListenFault(f"{self.path} is a file, not a socket of ours: move it away or use another run_dir")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
            else:
                raise ListenFault(f"{self.path} is in use by another process: stop it (sennit down)")

    def release(self) -> None:
        """Remove socket and lock files; the lock is held until they are gone."""
        self.path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
