# SPDX-License-Identifier: Apache-2.0
"""docs/models.md, serving.md and distributed.md: their programs run, what they print is printed, and their
lists are those of the code."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_torch
from docs.forked import outcomes
from package_root import PACKAGE_ROOT
from tiny_models import MODELS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
PROGRAMS = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())
SERVING, DISTRIBUTED = (
    re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.with_name(f"{page}.md").read_text())
    for page in ("serving", "distributed")
)
NAMES = [
    "layout",
    "lengths",
    "blocks",
    "transformers",
    "flops",
    "cache",
    "prompts",
    "dtensor",
    "ring",
    "merge",
]
BY_NAME = dict(zip(NAMES, PROGRAMS + SERVING + DISTRIBUTED, strict=True))
(PRINTED,) = re.findall(r"(?ms)^```text\n\$ [^\n]*\n(.*?)^```$", PAGE.read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """By name the wait status of each program, and what it printed."""
    folder = tmp_path_factory.mktemp("programs")
    pytest.importorskip("torch")
    found = outcomes({folder / name: BY_NAME[name] for name in NAMES if not missing(BY_NAME[name])})
    return {path.name: outcome for path, outcome in found.items()}


def missing(program: str) -> str:
    if "transformers" in program and find_spec("transformers") is None:
        return "transformers is not installed"
    if "distributed" in program and find_spec("torch.distributed.tensor") is None:
        return "torch.distributed is not built"
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_programs_run_as_they_stand(name: str, ran: dict[str, tuple[int, str]]) -> None:
    if why := missing(BY_NAME[name]):
        pytest.skip(why)
    status, printed = ran[name]
    assert status == 0, printed


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_what_is_explained(tmp_path: Path) -> None:
    (program,) = (p for p in PROGRAMS if "transformers" in p)
    with_dropout = (
        program + "\nfor layer in model.model.layers:\n    layer.self_attn.attention_dropout = 0.1\n"
    )
    script = tmp_path / "program.py"
    script.write_text(with_dropout + "model.train()(ids)")
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PROFILING_LAB_EXPLAIN": "1"}
    done = warm_torch.run([str(script)], tmp_path, environment)
    lines = [line for line in done.stderr.splitlines() if line.startswith("profiling_lab: ")]
    assert lines == PRINTED.splitlines(), done.stderr


def test_the_architectures_are_those_tested() -> None:
    (listed,) = re.findall(r"(?s)included: (.*?)\s\(`tests/integrations", PAGE.read_text())
    names = sorted(re.sub(r"\W", "", name).lower() for name in listed.split(","))
    assert names == sorted(re.sub(r"(For.*|LMHeadModel)$", "", tiny.model).lower() for tiny in MODELS)
