# SPDX-License-Identifier: Apache-2.0
"""Markers, the GPU gate and the paths every test may use."""

from __future__ import annotations

import contextlib
import gc
import gzip
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):  # where no test of a property can run
    import hypothesis

    # A loaded machine may take long for an example; faulthandler_timeout ends what hangs.
    hypothesis.settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any machine")

REPO = Path(__file__).resolve().parents[1]
CAPTURES = REPO / "tests" / "data" / "captures"

# Workers that each use all cores wait for one another at the end of every parallel loop. OpenMP reads this
# when torch is imported, which the conftest.py of a folder below may do before pytest_configure.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail, instead of skipping, every test that needs a GPU where there is none "
        "(tests of several GPUs are skipped where there is one)",
    )


def _gpus() -> tuple[int, str]:
    """How many GPUs torch can use, and the reason where it is none."""
    try:
        import torch
    except ImportError:
        return 0, "torch is not installed"
    if torch.version.cuda is None:
        return 0, f"torch {torch.__version__} is a CPU build"
    count = torch.cuda.device_count()
    return count, "" if count else "no NVIDIA GPU was found"


def pytest_xdist_auto_num_workers() -> int | None:
    """For `pytest -n auto`: one process where there is a GPU, which tests that measure do not share."""
    return 1 if _gpus()[0] else None


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, and every child would inherit that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests of a file share what they compiled; each process would compile it for itself.
    if getattr(config.option, "dist", "no") in ("load", "worksteal"):
        config.option.dist = "loadfile"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """The tests and torch are there to the end: no collection of garbage has to look at them again and again,
    which would be a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Since torch 2.11 or so its profiler keeps CUPTI for the rest of the process, and others want to record.
    items.sort(key=lambda item: item.get_closest_marker("keeps_cupti") is not None)
    wanted = {"gpu": 1, "multigpu": 2}
    if not any(item.get_closest_marker(name) for item in items for name in wanted):
        return
    count, reason = _gpus()
    required = 1 if config.getoption("--require-gpu") else 0
    for item in items:
        need = max((n for name, n in wanted.items() if item.get_closest_marker(name)), default=0)
        if need > max(count, required):
            item.add_marker(pytest.mark.skip(reason=reason or f"needs {need} GPUs, found {count}"))


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the exercises of the person who runs the tests are is noted in their state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _same_search_path() -> Iterator[None]:
    """A script that a test loads may extend sys.path. Later tests must not find the source tree there."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(scope="session")
def repo() -> Path:
    """The checkout the tests belong to."""
    return REPO


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real traces of nsys and of torch.profiler, unpacked. tests/data/captures/README.md says what they are.

    All tests share them: whoever changes a file, changes a copy of it.
    """
    folder = tmp_path_factory.mktemp("captures")
    for packed in CAPTURES.glob("*.gz"):
        if packed.suffixes[-2:] == [".json", ".gz"]:  # read as it is
            shutil.copy(packed, folder)
        else:
            (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder
