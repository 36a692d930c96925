# SPDX-License-Identifier: Apache-2.0
"""Public programs are recorded and compared with plain runs; here with programs of a few lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO
from package_root import PACKAGE_ROOT

from profiling_lab.errors import UsageError

FOLDER = REPO / "benchmarks" / "programs"

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def scripts_import_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_every_entry_is_complete_and_fits_its_licence() -> None:
    catalogue = import_module("catalogue")
    kinds = import_module("prepare").KINDS
    programs = catalogue.load([])
    assert len(programs) >= 20 and len({p.name for p in programs}) == len(programs)
    for program in programs:
        assert len(program.commit) == 40 and program.source.count("/") == 1, program
        assert program.licence in ("MIT", "BSD-3-Clause", "Apache-2.0"), program
        for line in program.prepare:
            first, *rest = line.split()
            assert first.endswith(".py") or (first == "make" and rest[0] in kinds and int(rest[2]) >= 0), line
    with pytest.raises(UsageError, match="no program is called moon"):
        catalogue.load(["moon"])


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("loss 0.123, 45.6 ms", "loss 1e-3, 7 ms", True),
        ("loss 0.5", "loss nan", True),
        ("saved model", "saved nothing", False),
        ("a\nb", "a", False),
        (
            " 1%|▏  | 1/9 [00:01<00:09, 1.0it/s]\r 9%|██| 9/9 [00:02<?, 2.9s/it]",
            " 9%|██▌| 9/9 [00:01, 4it/s]",
            False,
        ),
        (
            "10%|█ | 1/9 [0:01<0:08, 2.1it/s]\r99%|██| 9/9 [0:02<0:00, 2.9s/it]",
            "99%|█| 9/9 [1:01<0:00, 4it/s]",
            True,
        ),
        ("x at 0x7fd1", "x at 0x12ab\nprofiling-lab: recorded 1 s of train.py", True),
    ],
)
def test_outputs_are_the_same_but_for_numbers(before: str, after: str, same: bool) -> None:
    assert (not import_module("output").difference(before, after)) == same


@pytest.mark.parametrize("kind", ["mnist", "words", "characters", "names", "character_tokens", "folder"])
def test_data_is_made(kind: str, tmp_path: Path) -> None:
    import_module("prepare").KINDS[kind](tmp_path / "data", 300)
    assert (tmp_path / "data").exists()


CATALOGUE = """
[[program]]
name = "good"
source = "a/b"
commit = "c"
licence = "MIT"
folder = "good/inner"
prepare = ["make names names.txt 5"]
run = "main.py --steps 3"
tiny = "main.py --steps 1"

[[program]]
name = "broken"
source = "a/b"
commit = "c"
licence = "MIT"
folder = "good/inner"
run = "main.py"
tiny = "main.py --fail"

[[program]]
name = "absent"
source = "a/b"
commit = "c"
licence = "MIT"
folder = "none"
run = "main.py"
tiny = "main.py"

[[program]]
name = "told"
source = "a/b"
commit = "c"
licence = "MIT"
folder = "good/inner"
run = "main.py"
tiny = "main.py --tell"
"""

PROGRAM = """
import sys, time
if "--fail" in sys.argv: sys.exit("no such thing")
if "--tell" in sys.argv: print("profiled" if "profiling_lab" in sys.modules else "plain")
else: print(f"took {time.time()} s", open("names.txt").read().count(chr(10)))
open("wrote", "w").close()
sys.exit(0)
"""


def test_programs_run_in_turns_and_one_that_fails_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "programs" / "good" / "inner").mkdir(parents=True)
    (tmp_path / "programs" / "good" / "inner" / "main.py").write_text(PROGRAM)
    (tmp_path / "catalogue.toml").write_text(CATALOGUE)
    out = tmp_path / "results.jsonl"
    code = (
        "import sys, catalogue, run; from pathlib import Path; load = catalogue.load\n"
        "run.load = lambda names: load(names, Path('catalogue.toml'))\n"
        f"sys.argv = ['run.py', '--programs', 'programs', '--out', {str(out)!r}, '--cpu', '--turns', '1']\n"
        "sys.argv += ['--timeout', '900']\nsys.exit(run.main())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(FOLDER), str(PACKAGE_ROOT)))}

    def run() -> Any:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    done = run()
    assert done.returncode == 0, done.stderr
    assert "absent: there is no" in done.stderr
    assert "broken: does not run here (exit code 1): no such thing" in done.stderr
    values = {
        (line["case"]["program"], line["metric"]): line["value"]
        for line in map(json.loads, out.read_text().splitlines())
    }
    assert (
        values["good", "exit_code_same"]
        == values["good", "stdout_same"]
        == values["good", "stderr_same"]
        == 1
    )
    assert values["good", "kernels"] if ("good", "kernels") in values else values["good", "file"] > 0
    assert values["told", "exit_code_same"] == 1 and values["told", "stdout_same"] == 0
    assert "told stdout: +profiled" in out.with_suffix(".txt").read_text()
    assert {name for name, _ in values} == {"good", "told"}
    assert not (tmp_path / "programs" / "good" / "inner" / "wrote").exists(), "it runs in a copy"
    assert "| good | same | same |" in done.stdout and "| told | same | stdout differs |" in done.stdout
    before = out.read_text()
    assert "good" not in run().stdout and out.read_text() == before, "what is done is not run again"


def test_a_program_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    module = import_module("run")
    trial = module.Trial.__new__(module.Trial)
    trial._folder, trial._environment, trial._timeout = tmp_path, dict(os.environ), 0.1
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(9999)'])"
    with pytest.raises(module.Failed, match=r"took more than 0.1 s"):
        trial._process([sys.executable, "-c", code])


def test_the_page_has_the_table_of_the_results() -> None:
    results = REPO / "benchmarks" / "results" / "programs.jsonl"
    page = (REPO / "docs" / "record_programs.md").read_text()
    shown = page.split("<!-- programs -->\n")[1].split("<!-- /programs -->")[0]
    if not results.is_file():
        assert shown == "Not measured yet.\n"
        return
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert shown == import_module("run").table(lines)
