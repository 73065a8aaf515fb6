"""A POSIX ACL as the kernel has it (include/uapi/linux/posix_acl_xattr.h): setfacl need not be installed."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


def let_write(directory: Path, user: int) -> None:
    """``directory`` is 0755, but that ``user`` may write to it as well: ``setfacl -m u:USER:rwx``."""
    entries = ((_USER_OBJ, 7, _NOBODY), (_USER, 7, user), (_GROUP_OBJ, 5, _NOBODY), (_MASK, 7, _NOBODY))
    packed = b"".join(struct.pack("<HHI", *entry) for entry in (*entries, (_OTHER, 5, _NOBODY)))
    try:
        os.setxattr(directory, "system.posix_acl_access", struct.pack("<I", _VERSION) + packed)
    except OSError as error:
        pytest.skip(f"{directory}: {error.strerror}: this file system has no ACLs")
