"""The peak memory of this process."""

import resource
from pathlib import Path


def peak_mb():
    """Peak memory of this program alone; `getrusage` includes that of the program that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
