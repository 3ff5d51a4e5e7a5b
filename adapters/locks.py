"""Locks on files, by which processes keep out of each other's way. The kernel frees one when its holder dies.

A shared folder must know flock (NFS does since Linux 2.6.12).
"""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import IO

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""What a file system without locks answers: NFS without its lock service, some FUSE and cluster file systems."""


def acquire(file: IO[str], shared: bool, wait: bool) -> bool:
    """Lock an open file until it is closed; False where another process has it and `wait` is off.

    Raises:
        ValueError: the file system has no locks; it names the folder and the remedy.
        OSError: anything else, with the file's name.
    """
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise OSError(error.errno, error.strerror, file.name) from None
        raise ValueError(
            f"{Path(file.name).parent}: its file system has no file locks ({error.strerror}); name a folder on another "
            "one with --storage DIR, or have it mounted with locks (NFS without 'nolock', Lustre with 'flock')."
        ) from None
    return True
