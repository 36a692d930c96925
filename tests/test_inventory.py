# SPDX-License-Identifier: Apache-2.0
"""Every registered thing is complete, and nothing complete is unregistered."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from profiling_lab.cli import COMMANDS
from profiling_lab.ops import OPS

REPO = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("slug", OPS)
def test_op_is_complete(slug: str) -> None:
    folder = REPO / "csrc" / "ops" / slug
    for name in (f"{slug}.h", f"{slug}.cpp", "cpu.cpp", "README.md"):
        assert (folder / name).is_file(), f"{slug} lacks csrc/ops/{slug}/{name}"
    assert list(folder.glob("*.cu")), f"{slug} has no CUDA kernel"
    assert (REPO / "profiling_lab" / "ops" / f"{slug}.py").is_file()
    assert (REPO / "tests" / "ops" / f"test_{slug}.py").is_file()
    assert (
        f"/{slug}/" in (REPO / "csrc" / "ops" / "CMakeLists.txt").read_text()
        or slug in (REPO / "csrc" / "ops" / "CMakeLists.txt").read_text()
    )
    module = import_module(f"profiling_lab.ops.{slug}")
    assert module.CASE.slug == slug


def test_every_op_folder_is_registered() -> None:
    folders = {p.name for p in (REPO / "csrc" / "ops").iterdir() if p.is_dir()}
    assert folders == set(OPS)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_complete(name: str) -> None:
    module = import_module(f"profiling_lab.cli.{name}")
    assert module.HELP and module.HELP[0].islower() and not module.HELP.endswith(".")
    assert "profiling-lab" in module.EXAMPLES
    assert callable(module.add_arguments) and callable(module.run)
    assert (REPO / "tests" / "cli" / f"test_{name}.py").is_file()


def test_every_command_file_is_registered() -> None:
    files = {p.stem for p in (REPO / "profiling_lab" / "cli").glob("*.py")} - {"__init__"}
    assert {name for name in files if not name.startswith("_")} == set(COMMANDS)
