"""Fixtures and options that all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that train for minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real speech, if available: $HEADSYNC_DATA, or the folder `shared/data` beside the checkout."""
    folder = Path(os.environ.get("HEADSYNC_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(
            f"needs real speech: set HEADSYNC_DATA to a folder with AudioMNIST and speechocean762 ({folder} is absent)"
        )
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests run in parallel; each uses one thread."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def nothing_left_open() -> Iterator[None]:
    """Report unclosed resources of a test file in that file, not at the next garbage collection."""
    yield
    gc.collect()
