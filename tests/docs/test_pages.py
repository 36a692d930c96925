# SPDX-License-Identifier: Apache-2.0
"""Every page is short, and every link of every page leads somewhere."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from profiling_lab.cli import module_of

REPO = Path(__file__).resolve().parents[2]
NOTEBOOK = REPO / "docs" / "notebook"
LINES_AT_MOST = 150

MANUAL = sorted(
    page
    for folder in ("csrc", "docs")
    for page in (REPO / folder).rglob("*.md")
    if NOTEBOOK not in page.parents
)
EXERCISES = (REPO / "profiling_lab" / "exercises").rglob("*.md")
PAGES = [*MANUAL, *sorted(NOTEBOOK.glob("*.md")), *sorted(REPO.glob("*.md")), *sorted(EXERCISES),
         *sorted((REPO / "tests").rglob("*.md"))]  # fmt: skip
PAGES = [page for page in PAGES if ".pytest_cache" not in page.parts]


def relative(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


def prose(page: Path) -> str:
    """The page without its examples."""
    return re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", page.read_text())


def anchors(page: Path) -> set[str]:
    """The headings, as GitHub and the documentation site call them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"(?m)^#+ (.+)$", text)
    }


@pytest.mark.parametrize("page", MANUAL, ids=relative)
def test_a_page_of_the_manual_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= LINES_AT_MOST, "what was tried goes to docs/notebook"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http", "api/", "../api/")):
            continue
        name, _, anchor = target.partition("#")
        to = (page.parent / name).resolve() if name else page
        assert to.exists(), target
        if anchor and to.suffix == ".md":
            assert anchor in anchors(to), target


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_to_elsewhere_are_well_formed(page: Path) -> None:
    """Of the form only: no test of ours may depend on other people's servers."""
    for target in re.findall(r"\]\((http[^)]*)\)", prose(page)):
        assert re.fullmatch(r"https://[a-z0-9.-]+\.[a-z]{2,}(:\d+)?(/[^\s<>\"]*)?", target), target
        assert not target.endswith((".", ",", ";")), target


NAMED_FILE = re.compile(r"`(?!Python\.h`)([\w./-]+\.(?:cpp|h|c|cu|cuh|py|toml|yml|jsonl|sqlite))`")
ROOTS = ("csrc", "profiling_lab", "tests", "benchmarks", "tools")


@pytest.mark.parametrize("page", [*MANUAL, REPO / "README.md", REPO / "CONTRIBUTING.md"], ids=relative)
def test_files_that_are_named_exist(page: Path) -> None:
    """A path from the root, or from the page's folder as the maps of csrc have them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    for name in NAMED_FILE.findall(text):
        if name.split("/")[0] in ROOTS:
            assert (REPO / name).exists(), name
        elif page.is_relative_to(REPO / "csrc") and Path(name).suffix in (".cpp", ".h", ".c", ".cu", ".cuh"):
            near = (
                page.parent / name,
                REPO / "csrc" / name,
                page.parent.parent / name,
                REPO / "csrc" / "ops" / name,
            )
            somewhere = (REPO / "csrc").rglob(name) if "/" not in name else ()
            assert any(path.exists() for path in near) or any(somewhere), name
        elif page.is_relative_to(REPO / "csrc") and name.startswith("test_"):
            assert any((REPO / "tests").rglob(name)), name


SCRIPTS_OWN = {"--epochs", "--lr", "--nproc-per-node", "--num_gpus"}  # of the programs that are recorded


def test_options_in_examples_exist() -> None:
    for page in [*MANUAL, REPO / "README.md"]:
        for name, rest in re.findall(r"(?m)^(?:    |\$ )?profiling-lab ([a-z-]+)([^#\n]*)", page.read_text()):
            parser = argparse.ArgumentParser()
            import_module(f"profiling_lab.cli.{module_of(name)}").add_arguments(parser)
            known = {option for action in options_of(parser) for option in action.option_strings}
            ours = rest.partition(" -- ")[0]  # behind it stand the program's own options
            named = set(re.findall(r"(?<= )--[a-z][a-z_-]*", ours))
            assert named <= known | SCRIPTS_OWN, f"{relative(page)}: profiling-lab {name}{rest}"


def options_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from options_of(one)
