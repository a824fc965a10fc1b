"""Memory that training gives back and asks for again in every update, on a CPU.

The tensors of an update are large. The C library of Linux hands memory of that size back to the system as soon as a
tensor dies, and the system clears every page of it before it gives it out again: a fifth of the time of a large update
went into that. Kept by the process, it is there at once.
"""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # names of settings, malloc.h
NEVER, NONE = -1, 0


def keep_memory() -> None:
    """Let glibc keep freed memory. Other C libraries, and settings of the environment, are left alone."""
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    is_configured = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if libc is None or is_configured or not hasattr(libc, "gnu_get_libc_version"):
        return
    libc.mallopt(TRIM_THRESHOLD, NEVER)
    libc.mallopt(MMAP_MAX, NONE)
