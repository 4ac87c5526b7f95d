"""Files and folders private to this user, in places that others may write to, such as /dev/shm.

A user who can write to such a folder can create a link, or a file or folder with open permissions, under a name that is
known or can be guessed. So no link is followed, and an existing file is used only if this user owns it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

_ALONE = 0o600
_ALONE_FOLDER = 0o700
_OTHERS = 0o077


def lock_private_file(path: Path) -> int | None:
    """Opens a file of this user for reading and writing, and locks it; never waits.

    Args:
        path: of the file.

    Returns:
        The descriptor; None if another process has the lock, the file is gone, or it is not a regular file of this user
        under one name.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a link, another user's, or gone
        return None
    with contextlib.suppress(OSError):
        if _is_private_file(os.fstat(file)):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), path.lstat()):
                os.fchmod(file, _ALONE)  # an earlier version may have created it with other permissions
                return file
    os.close(file)
    return None


def make_locked_file(path: Path, text: str) -> int:
    """Creates a file that only this user may open, and locks it; it appears under its name locked and complete.

    Args:
        path: of the file; another file of this name is replaced.
        text: its content.

    Returns:
        The descriptor.

    Raises:
        OSError: the folder cannot be written to.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _ALONE)
    try:
        os.fchmod(file, _ALONE)  # independent of the umask
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with os.fdopen(file, "w", encoding="utf-8", closefd=False) as written:
            written.write(text)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        os.close(file)
        raise
    return file


def make_private_folder(path: Path) -> None:
    """Creates a folder that only this user may read, unless it exists.

    Args:
        path: of the folder; its ancestors are created with the usual permissions.

    Raises:
        OSError: it cannot be created.
        PermissionError: something else has its name: a link, or a folder that another user owns or may read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(_ALONE_FOLDER)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        raise PermissionError(
            f"{path} must be a folder that user {os.geteuid()} owns and nobody else may look into, and it is "
            f"{stat.filemode(status.st_mode)} of user {status.st_uid}. Remove it."
        )


def _is_private_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()
