# SPDX-License-Identifier: Apache-2.0
"""The guide says only what is true: its output is printed anew, its programs run, its commands too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from generated_page import TOOLS, assert_current
from needs import needs
from nsight_options import METRICS, NCU, NCU_VALUES, NSYS, STALLS, problem
from package_root import PACKAGE_ROOT

from docs import shown_commands
from profiling_lab.exercises import entries

REPO = Path(__file__).resolve().parents[2]
GUIDE = REPO / "docs" / "guide"
PAGES = sorted(GUIDE.rglob("*.md"))
NVIDIA = ("nsys ", "ncu ", "nsys-ui ", "ncu-ui ")
FINDING = ("profiling-lab check ", "profiling-lab exercise check ")  # where exit code 1 is an answer
GENERATED = re.compile(
    r"<!-- (?:prints|source): .*? -->\n```.*?```\n|<!-- figures: \w+ -->\n.*?<!-- end of figures -->", re.S
)


def relative(page: Path) -> str:
    return page.relative_to(GUIDE).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """Typed by hand: what a script writes is checked where it comes from."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", GENERATED.sub("", page.read_text()))


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "bash") for line in block.splitlines()]


def needs_gpu(line: str) -> bool:
    return re.search(r"# GPU\b", line) is not None


every_page = pytest.mark.parametrize("page", PAGES, ids=relative)


def test_output_code_and_figures_are_current(tmp_path: Path) -> None:
    assert_current("guide_page.py", tmp_path)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages read, in which commands may write."""
    folder = tmp_path_factory.mktemp("guide")
    make = "import pathlib, sys, guide_page; guide_page.recordings(pathlib.Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", make, str(folder)],
        env=os.environ | {"PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{TOOLS}"},
        cwd=folder,  # in the source tree, -c would find its package, without what is compiled
        check=True,
    )
    for name in ("benchmarks", "docs", "tests"):
        (folder / name).symlink_to(REPO / name)
    shown_commands.programs(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=relative)
def test_commands_run_as_they_stand(
    page: Path, recordings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in commands(page):
        if line.startswith(NVIDIA) or needs_gpu(line):
            continue
        done = shown_commands.run(line, recordings, monkeypatch, capsys)
        allowed = (0, 1) if line.startswith(FINDING) else (0,)
        assert done.returncode in allowed, f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"


@every_page
def test_scripts_that_need_a_gpu_have_these_options(page: Path) -> None:
    for line in commands(page):
        if needs_gpu(line) and (script := re.match(r"python (\S+\.py)", line)):
            text = (REPO / script[1]).read_text()
            for option in re.findall(r" (--[\w-]+)", line.partition("#")[0]):
                assert f'"{option}"' in text, f"{script[1]} {option}"


@every_page
def test_commands_of_nsight_are_right(page: Path) -> None:
    for line in commands(page):
        if line.startswith(NVIDIA):
            assert problem(line) is None, f"{line}: {problem(line)}"
            assert re.search(r"# (nsys|ncu)\b", line), f"say that it needs the tool: {line}"


@pytest.mark.parametrize(
    "line",
    [
        "nsys profile --gpu-metrics-device=all python train.py",
        "nsys profile --python-backtrace-depth=10 python train.py",
        "nsys profile --sample=cpu python train.py",
        "nsys profile --force-overwrite true python train.py",
        "nsys export --type=json report.nsys-rep",
        "nsys compare a.nsys-rep b.nsys-rep",
        "nsys profile --trace=cuda",
        "ncu --set full script.py",
        "ncu --set default python train.py",
        "ncu --section WarpStateStatistics python train.py",
        "ncu --metrics l2_hit_rate python train.py",
        "ncu --metrics dram__bytes.sum, gpu__time_duration.sum python train.py",
        "ncu --compare a b",
    ],
)
def test_commands_that_are_often_written_wrong_are_found(line: str) -> None:
    assert problem(line) is not None


def test_programs_run_as_they_stand(tmp_path: Path) -> None:
    """All in one process, for importing torch takes longer than any of them."""
    pytest.importorskip("torch")
    names = []
    for page in PAGES:
        for number, program in enumerate(blocks(page, "python")):
            names.append(f"{relative(page).replace('/', '_')}_{number}.py")
            (tmp_path / names[-1]).write_text(program)
    each = (
        "import runpy, sys\nfor name in sys.argv[1:]: print(name); runpy.run_path(name, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", each, *names],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert all(name in done.stdout for name in names)


@every_page
def test_metrics_are_known(page: Path) -> None:
    named = re.findall(r"`((?:sm|smsp|l1tex|lts|dram|gpu|launch)__[\w.]+)`", page.read_text())
    whole = {name for name in named if name not in ("dram__throughput", "sm__throughput")}
    assert whole <= METRICS, whole - METRICS


def test_stalls_are_known() -> None:
    table = (GUIDE / "interpreting.md").read_text().partition("| reason |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == STALLS


MEASURED = re.compile(
    r"\d[\d.,]*\s?(?:ns|us|µs|ms|s|seconds|minutes|hours|[KMGT]i?B/s|[MGT]?FLOP/s|times as fast|x)\b"
)
DEFINED = re.compile(r"`[^`\n]*`|n times the work")


@every_page
def test_no_measured_number_is_typed_by_hand(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", GENERATED.sub("", page.read_text()))
    assert MEASURED.findall(DEFINED.sub("", text)) == []


def test_a_measured_number_would_be_found() -> None:
    assert MEASURED.findall("takes 5 ms, 1.5 TB/s, 3 seconds, 2x") == ["5 ms", "1.5 TB/s", "3 seconds", "2x"]


@every_page
def test_exercises_are_named_as_the_catalogue_has_them(page: Path) -> None:
    slugs = {each.number: each.slug for each in entries()}
    for slug, number in re.findall(r"`([\w-]+)` \(E(\d\d)\)", page.read_text()):
        assert slugs[int(number)] == slug


def test_the_first_page_leads_to_all() -> None:
    linked = set(re.findall(r"\]\(([\w/-]+\.md)", (GUIDE / "index.md").read_text()))
    chapter = set(re.findall(r"\]\(([\w/-]+\.md)", (GUIDE / "bottlenecks" / "index.md").read_text()))
    pages = {relative(page) for page in PAGES}
    assert pages - {"index.md"} <= linked | {f"bottlenecks/{name}" for name in chapter}


def test_there_is_something_to_run() -> None:
    """Guards the tests above: a change of the fences must not leave them with nothing."""
    assert sum(len(commands(page)) for page in PAGES) >= 40
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 12
    assert sum(page.read_text().count("<!-- prints: ") for page in PAGES) >= 25


@pytest.mark.gpu
def test_the_installed_nsys_has_these_options() -> None:
    for command, options in NSYS.items():
        done = subprocess.run([needs("nsys"), command, "--help"], capture_output=True, text=True)
        for option in options:
            assert option in done.stdout, f"nsys {command} {option}"


@pytest.mark.gpu
def test_the_installed_ncu_has_these_options_sections_and_metrics() -> None:
    def said(*words: str) -> str:
        return subprocess.run([needs("ncu"), *words], capture_output=True, text=True).stdout

    options, sections, sets = said("--help"), said("--list-sections"), said("--list-sets")
    assert [name for name in NCU if name.removeprefix("-").lstrip("-") not in options] == []
    assert [name for name in NCU_VALUES["--section"] if name not in sections] == []
    assert [name for name in NCU_VALUES["--set"] if name not in sets] == []
    every = "".join(
        said("--query-metrics", "--chips", "gh100", "--query-metrics-collection", collection)
        for collection in ("profiling", "launch", "occupancy", "source")
    )
    every += said("--list-metrics", "--set", "full")
    assert [name for name in METRICS if name.split(".")[0] not in every] == []
