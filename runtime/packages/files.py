"""Files read and written with care: no link followed, no name left behind half written (design 9, G 4.6).

Reading walks every component of a path from an open directory with `O_NOFOLLOW`, so neither a link in the tree nor
one put there meanwhile leads outside. Writing goes to a new file beside the target, is synced, renamed, and the
directory synced: after a crash there is the old content or the new, never a mixture.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.packages.fault import file_missing, io_error
from actors.packages.text import is_safe_path

CHUNK_BYTES = 1024 * 1024


@contextmanager
def open_inside(directory: Path, path: str) -> Iterator[int]:
    """A descriptor of the regular file `path` (relative, `/`) under `directory`; nothing on the way may be a link.

    Raises `PackageFault`: `file-missing`, or `io-error` for links, pipes, devices, folders and anything else.
    """
    if not is_safe_path(path):
        raise io_error(path[:64], "unsafe path")
    *folders, name = path.split("/")
    held: list[int] = []
    try:
        try:
            here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.append(here)
            for folder in folders:
                here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                held.append(here)
            # O_NONBLOCK: a pipe in the place of a file must not hold the reader
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
            held.append(descriptor)
        except FileNotFoundError:
            raise file_missing(path) from None
        except OSError as error:
            raise io_error(path, _why(error)) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise io_error(path, "not a regular file")
        yield descriptor
    finally:
        for descriptor in reversed(held):
            os.close(descriptor)


def read_inside(directory: Path, path: str, limit_bytes: int) -> bytes:
    """The bytes of a file under `directory`, at most `limit_bytes`: by its metadata, then by what is really read."""
    with open_inside(directory, path) as descriptor:
        if os.fstat(descriptor).st_size > limit_bytes:
            raise io_error(path, f"larger than {limit_bytes} bytes")
        data = b"".join(chunks(descriptor, path, limit_bytes + 1))
        if len(data) > limit_bytes:
            raise io_error(path, f"larger than {limit_bytes} bytes")
        return data


def chunks(descriptor: int, path: str, limit_bytes: int) -> Iterator[bytes]:
    """What the file holds from where it stands, at most `limit_bytes`, in pieces of at most 1 MiB."""
    left = limit_bytes
    while left:
        try:
            data = os.read(descriptor, min(left, CHUNK_BYTES))
        except OSError as error:
            raise io_error(path, _why(error)) from None
        if not data:
            return
        left -= len(data)
        yield data


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte; `os.write` may take fewer."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def create_new(path: Path, data: bytes, mode: int) -> None:
    """A file that must not exist yet, durable when this returns. Raises `FileExistsError` or another `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)  # whatever the umask
        write_all(descriptor, data)
        os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def replace(path: Path, data: bytes, mode: int) -> None:
    """The whole content of `path`, old or new after a crash, never a mixture."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    create_new(fresh, data, mode)
    try:
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a link; a package holds regular files only"
    if error.errno == errno.ENOTDIR:
        return "a folder on the way is a link or a file"
    if error.errno == errno.ENXIO:
        return "not a regular file"
    return error.strerror or str(error)
