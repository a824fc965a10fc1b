"""Memory that is kept between updates: seen from outside, in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from headsync.training.allocator import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.set_num_threads(1)
for again in range(6):
    before = faults()
    x = torch.zeros(2**24).add_(1)
    del x
print(faults() - before)
"""
PAGES = 2**26 // 4096 // 2**9 // 2  # half of those of the tensor, were they huge ones


def faults(how: str, **environment: str) -> int:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, how]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**given, **environment})
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_reused() -> None:
    assert faults("keep") < PAGES < faults("leave")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_settings_of_the_environment_have_precedence() -> None:
    assert faults("keep", MALLOC_MMAP_THRESHOLD_="1000000") > PAGES
