"""The one exception of packages: a stable code, and a text that says what, why and what to do (G 4.6)."""

from __future__ import annotations

from messages.packages import PackageErrorCode


class PackageFault(Exception):
    """A package, key or trust file was not accepted. `code` is stable; `text` is for people."""

    def __init__(self, code: PackageErrorCode, text: str) -> None:
        super().__init__(f"{text} [{code.value}]")
        self.code = code
        self.text = text


def manifest_invalid(why: str) -> PackageFault:
    return PackageFault(PackageErrorCode.MANIFEST_INVALID, f"manifest invalid: {why}")


def cog_invalid(why: str) -> PackageFault:
    return PackageFault(PackageErrorCode.COG_INVALID, f"cog.toml invalid: {why}")


def key_invalid(why: str) -> PackageFault:
    return PackageFault(PackageErrorCode.KEY_INVALID, why)


def input_invalid(why: str) -> PackageFault:
    return PackageFault(PackageErrorCode.INPUT_INVALID, why)


def file_missing(path: str) -> PackageFault:
    return PackageFault(PackageErrorCode.FILE_MISSING, f"package file missing: {path}")


def file_tampered(path: str, expected: str, got: str) -> PackageFault:
    return PackageFault(
        PackageErrorCode.FILE_TAMPERED,
        f"package file tampered: {path} (expected {expected}, got {got}); fetch or pack it again",
    )


def io_error(path: str, why: str) -> PackageFault:
    return PackageFault(PackageErrorCode.IO_ERROR, f"io error on {path}: {why}")
