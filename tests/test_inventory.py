# SPDX-License-Identifier: Apache-2.0
"""Every registered thing is complete, and nothing complete is unregistered."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from profiling_lab.cli import COMMANDS, module_of
from profiling_lab.ops import OPS
from profiling_lab.rules import RULES, Rule

REPO = Path(__file__).resolve().parents[1]

# The line of an op in each of its registries.
OP_REGISTRIES = {
    "csrc/ops/CMakeLists.txt": r"^plab_op\({}[ )]",
    "csrc/ops/registry.h": r"^  OP\({}\)",
    "profiling_lab/ops/__init__.py": r'^    "{}": \(',
}


@pytest.mark.parametrize("slug", OPS)
def test_op_is_complete(slug: str) -> None:
    folder = REPO / "csrc" / "ops" / slug
    for name in (f"{slug}.h", f"{slug}.cpp", "README.md"):
        assert (folder / name).is_file(), f"{slug} lacks csrc/ops/{slug}/{name}"
    assert (folder / "cpu.cpp").is_file() or list(folder.glob("cpu/*.cpp")), f"{slug} has no CPU code"
    assert list(folder.glob("*.cu")), f"{slug} has no CUDA kernel"
    assert (REPO / "profiling_lab" / "ops" / f"{slug}.py").is_file()
    assert (REPO / "tests" / "ops" / f"test_{slug}.py").is_file()
    for registry, line in OP_REGISTRIES.items():
        assert re.search(line.format(slug), (REPO / registry).read_text(), re.M), (
            f"{slug} is not in {registry}"
        )
    module = import_module(f"profiling_lab.ops.{slug}")
    assert module.CASE.slug == slug and slug in module.__all__


def test_every_op_folder_is_registered() -> None:
    folders = {p.name for p in (REPO / "csrc" / "ops").iterdir() if p.is_dir()}
    assert folders == set(OPS)


def test_contributors_are_told_every_registry_of_an_op() -> None:
    (row,) = (r for r in (REPO / "CONTRIBUTING.md").read_text().splitlines() if r.startswith("| an op |"))
    for place in ("csrc/ops/<op>/", "profiling_lab/ops/<op>.py", "tests/ops/test_<op>.py", *OP_REGISTRIES):
        assert f"`{place}`" in row


@pytest.mark.parametrize("name", [module_of(command) for command in COMMANDS])
def test_command_is_complete(name: str) -> None:
    module = import_module(f"profiling_lab.cli.{name}")
    assert module.HELP and module.HELP[0].islower() and not module.HELP.endswith(".")
    assert "profiling-lab" in module.EXAMPLES
    assert callable(module.add_arguments) and callable(module.run)
    assert (REPO / "tests" / "cli" / f"test_{name}.py").is_file()


def test_every_command_file_is_registered() -> None:
    files = {p.stem for p in (REPO / "profiling_lab" / "cli").glob("*.py")} - {"__init__"}
    assert {name for name in files if not name.startswith("_")} == set(map(module_of, COMMANDS))


# What rules are made of; every other file of the package is a rule.
PARTS_OF_RULES = {"__init__", "accumulated", "finding", "longer_calls", "rule", "run", "settings", "view"}
PARTS_OF_RULES |= {"blocking_calls", "host_waits", "kernel_families", "launch_queue", "load"}
PARTS_OF_RULES |= {
    "copy_cost",
    "costs",
    "platform_words",
    "fold",
    "gains",
    "gap_words",
    "small_grids",
    "steady",
}
PARTS_OF_RULES |= {
    "batched",
    "callers",
    "chains",
    "copy_reasons",
    "gap_pieces",
    "independent_lines",
    "independent_loops",
    "launch_loops",
    "unaligned_products",
}
PARTS_OF_RULES |= {"backward_calls", "call_sites", "factorisations", "passes", "same_results"}
PARTS_OF_RULES |= {"factored_again", "pure_lines", "recurrences", "shared_gradients", "stale_gradients"}
PARTS_OF_RULES |= {"call_texts", "expressions", "one_hot_uses", "same_calls", "sort_uses", "statements"}
PARTS_OF_RULES |= {
    "casts_around",
    "converted_copies",
    "draws",
    "forward_nodes",
    "input_gradients",
    "joined_parts",
    "layers_behind",
    "long_filters",
    "loop_waits",
    "made_of_shapes",
    "neighbours",
    "own_frames",
    "picked_positions",
    "picked_rows",
    "product_order",
    "repeated_rows",
    "sorted_adds",
    "sorted_again",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_is_complete(rule: Rule) -> None:
    module = import_module(f"profiling_lab.rules.{rule.name}")
    assert module.RULE is rule and module.__doc__
    assert rule.question.endswith("?")
    assert rule.thresholds and all(t.what and t.unit and t.source for t in rule.thresholds)
    assert len((REPO / "profiling_lab" / "rules" / f"{rule.name}.py").read_text().splitlines()) <= 100
    tests = (REPO / "tests" / "rules" / f"test_{rule.name}.py").read_text()
    for answer in ("fires|bound|charges", "silent", "abstains"):
        assert re.search(rf"def test_\w*({answer})", tests), f"{rule.name} lacks a test: {answer}"


def test_every_rule_file_is_registered() -> None:
    files = {p.stem for p in (REPO / "profiling_lab" / "rules").glob("*.py")}
    assert files - PARTS_OF_RULES == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)
