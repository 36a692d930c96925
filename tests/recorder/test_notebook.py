# SPDX-License-Identifier: Apache-2.0
"""A recording in the cells of a notebook, with the real kernel under the fake CUPTI."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.lines import lines
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership

HERE = Path(__file__).resolve().parent


@pytest.fixture
def run_cells(tmp_path: Path, fake_library: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs cells in one kernel, in order; what they print comes back."""
    for module in ("ipykernel", "nbformat", "nbclient"):
        pytest.importorskip(module, reason=f"{module} is not installed, which runs notebooks")
    import nbclient
    import nbformat

    paths = [str(PACKAGE_ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PROFILING_LAB_CUPTI", str(fake_library))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def run(*sources: str) -> list[str]:
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        notebook = nbformat.v4.new_notebook(cells=cells)
        client = nbclient.NotebookClient(
            notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
        return ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]

    return run


def test_lines_of_cells_go_by_the_cells_number(run_cells: Any, tmp_path: Path) -> None:
    run_cells(
        "import profiling_lab\nfrom fake_driver import Fake\nfake = Fake()",
        "def train():\n    fake.kernel('a')",
        "with profiling_lab.record('run.sqlite') as r:\n    train()\n    fake.kernel('b')",
    )
    with Trace.open(tmp_path / "run.sqlite") as trace:
        # The fake driver stands for torch, so the caller is the program's innermost line.
        keys = {row.key.split(" < ", 1)[1] for row in lines(trace, depth=3).rows}
        assert keys == {"In[2]:2 < In[3]:2", "In[3]:3"}
        texts = {key: text for key, text in trace.source_texts.items() if key[0].startswith("In[")}
    assert texts == {
        ("In[2]", 2): "fake.kernel('a')",
        ("In[3]", 2): "train()",
        ("In[3]", 3): "fake.kernel('b')",
    }


def test_a_cell_that_records_can_be_run_twice(run_cells: Any, tmp_path: Path) -> None:
    cell = "with profiling_lab.record('run.sqlite', overwrite=True) as r: fake.kernel('a')\nprint(r.path)"
    said = run_cells("import profiling_lab\nfrom fake_driver import Fake\nfake = Fake()", cell, cell)
    assert [Path(text.strip()).name for text in said[1:]] == ["run.sqlite"] * 2
    with sqlite3.connect(tmp_path / "run.sqlite") as file:
        files = {name for (name,) in file.execute("SELECT value FROM StringIds WHERE value LIKE 'In[%'")}
    assert files == {"In[3]"}


def test_torchs_schedule_in_a_cell(run_cells: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    cell = """
with profile(schedule=schedule(wait=0, warmup=1, active=1, repeat=1), path='run.sqlite') as prof:
    for step in range(4):
        fake.kernel(f"step{step}")
        prof.step()
print(prof.path.name)
"""
    first = "from fake_driver import Fake\nfake = Fake()\nfrom profiling_lab import profile"
    said = run_cells(f"{first}\nfrom torch.profiler import schedule", cell, cell)
    assert [text.strip().splitlines()[-1] for text in said[1:]] == ["run.sqlite", "run-2.sqlite"]


@pytest.mark.parametrize(
    "file", ["/tmp/ipykernel_4242/1234567.py", "<ipython-input-3-abcdef>", "<stdin>", "In[3]"]
)
def test_cells_are_the_users_own_code(file: str) -> None:
    assert Ownership().is_own(file)


def test_outside_of_ipython_there_are_no_cells(run: Any, query: Any) -> None:
    run("""
from types import SimpleNamespace
from profiling_lab.recording import cells
assert cells.numbers() == {}
sys.modules["IPython"] = SimpleNamespace(get_ipython=lambda: None)
assert cells.numbers() == {}, "imported by a library, and no notebook"
with profiling_lab.record(OUT): fake.kernel("a")
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]
