# SPDX-License-Identifier: Apache-2.0
"""A recording keeps the text of the lines it names, as they ran, with the statements that they are parts of:
no other line, and never a changed one.
"""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from recorder.jobs import Job, prepare

from profiling_lab.cli import main
from profiling_lab.errors import UsageError
from profiling_lab.recording import source_text
from profiling_lab.recording.convert import convert
from profiling_lab.recording.live.request import Request
from profiling_lab.recording.merging.merge import merge
from profiling_lab.recording.meta_names import SOURCE
from profiling_lab.trace import Trace

FOREVER_NS = 1 << 62
# A module of the program, on the path of the script.
LAYER = """
def layer(fake):
    fake.kernel("layer")   # the text
    return 1               # runs, and launches nothing
"""
LINE = 'fake.kernel("layer")   # the text'
OPTIONAL = "SELECT count(*) FROM sqlite_master WHERE name = 'PYREC_SOURCE'"


@pytest.fixture
def job(tmp_path: Path, fake_library: Path) -> Job:
    return prepare(tmp_path, fake_library)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "layers.py"
    path.write_text(LAYER)
    return path


def texts(path: Path) -> dict[tuple[str, int], str]:
    with Trace.open(path) as trace:
        return {(Path(file).name, line): text for (file, line), text in trace.source_texts.items()}


def read(path: Path, lines: int = 9, meta: dict[str, str] | None = None) -> list[str]:
    """What the recorder reads of a file, by line, that was changed before the program started."""
    known = json.loads(source_text.conditions()[SOURCE]) | {"started_ns": FOREVER_NS}
    meta = {SOURCE: json.dumps(known)} if meta is None else meta
    return list(source_text.texts(meta, 0, [(str(path), n) for n in range(lines + 1)]).values())


def test_the_lines_of_all_frames_and_no_other(run: Any, query: Any, tmp_path: Path, module: Path) -> None:
    run("""
import layers
with profiling_lab.record(OUT) as recorder:
    unused = 1
    layers.layer(fake)
""")
    found = texts(tmp_path / "out.sqlite")
    assert found["layers.py", 3] == LINE
    assert found["script.py", 5] == "layers.layer(fake)"
    files = {file for file, _ in found}
    assert {n for file, n in found if file in ("layers.py", "script.py")} == {3, 5}
    assert "fake_driver.py" in files, "a library's line may be chosen with --own"
    frames = query("SELECT DISTINCT s.value, f.line FROM PYREC_FRAME f JOIN StringIds s ON s.id = f.fileId")
    assert set(found) == {(Path(file).name, line) for file, line in frames}


@pytest.mark.parametrize("how", ["record(OUT, source=False)", "record(OUT, stacks=False)"])
def test_switched_off_there_is_no_table(run: Any, query: Any, tmp_path: Path, module: Path, how: str) -> None:
    run(f"import layers\nwith profiling_lab.{how}: layers.layer(fake)")
    assert query(OPTIONAL) == [(0,)] and texts(tmp_path / "out.sqlite") == {}
    assert LINE.encode() not in (tmp_path / "out.sqlite").read_bytes()


CHANGES = {
    "rewritten": "path.write_text(other)",
    "with the time of the old file": "old = path.stat(); path.write_text(other); "
    "os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))",
    "replaced by an older file": "new = Path('new'); new.write_text(other); os.utime(new, (0, 0)); "
    "new.replace(path)",
    "removed": "path.unlink()",
    "a folder": "path.unlink(); path.mkdir()",
    "a pipe": "path.unlink(); os.mkfifo(path)",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changed_has_no_text(run: Any, tmp_path: Path, module: Path, change: str) -> None:
    run(f"""
import layers
from pathlib import Path
path, other = Path("layers.py"), "\\n\\nsome(other) + line\\n"
time.sleep(0.05)  # more than the resolution of the time at which the process started
with profiling_lab.record(OUT):
    layers.layer(fake)
    {change}
""")
    found = texts(tmp_path / "out.sqlite")
    assert ("script.py", 7) in found and not [key for key in found if key[0] == "layers.py"], found


def test_a_fork_runs_the_code_of_its_parent(run: Any, tmp_path: Path, module: Path) -> None:
    """The file is older than the fork, and newer than what the fork runs."""
    run("""
import layers
from pathlib import Path
time.sleep(0.05)
Path("layers.py").write_text("\\n\\nsome(other) + line\\n")
time.sleep(0.05)
if os.fork() == 0:
    with profiling_lab.record(OUT): layers.layer(fake)
    os._exit(0)
assert os.wait()[1] == 0
""")
    found = texts(tmp_path / "out.sqlite")
    assert ("script.py", 8) in found and ("layers.py", 3) not in found


def test_unknown_start_of_the_program(monkeypatch: pytest.MonkeyPatch, module: Path) -> None:
    assert read(module, meta=source_text.conditions()) == [], "the test is older than its module"
    monkeypatch.setattr(Path, "read_text", lambda *_: "")
    assert json.loads(source_text.conditions()[SOURCE])["started_ns"] is None
    assert read(module, meta=source_text.conditions()) == []


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"\xef\xbb\xbfa = 1\r\n\r\n\t b(a) \r\n", ["a = 1", "b(a)"]),
        ("# -*- coding: latin-1 -*-\nf('é')\n".encode("latin-1"), ["# -*- coding: latin-1 -*-", "f('é')"]),
        ("a\x0cb\nc\u2028d\n\x1b[31mred\x07\n".encode(), ["a b", "c d", "[31mred"]),
        (b"x" * 500 + b"\nlast line without end", ["x" * 200, "last line without end"]),
        (b"a = 1\nf('\xe9')\n", []),
        (b"# coding: no-such-coding\na\n", []),
        (b"\0" * 100, []),
        (b"", []),
    ],
)
def test_what_is_read_of_a_file(tmp_path: Path, content: bytes, shown: list[str]) -> None:
    (tmp_path / "a.py").write_bytes(content)
    assert read(tmp_path / "a.py") == shown


WRAPPED = """def step(model, x, y):
    loss = f(  # of one batch
        model(x),
        y, 'a "b"',
    )
    for part in parts(
        x,
    ):
        part.add_(
            1
        )
    return [
        loss]; other(
        x)
"""


def test_a_statement_of_several_lines_is_whole_at_each(tmp_path: Path) -> None:
    """The line of a call may be any of them. Compound statements have their lines alone."""
    (tmp_path / "a.py").write_text(WRAPPED)
    whole = """loss = f(model(x), y, 'a "b"')"""
    assert read(tmp_path / "a.py", 14) == [
        "def step(model, x, y):",
        *([whole] * 4),
        "for part in parts(",
        "x,",
        "):",
        *(["part.add_(1)"] * 3),
        "return [loss]",
        "other(x)",
        "other(x)",
    ]


def test_statements_of_libraries_have_their_lines_alone(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "b.py"
    library.parent.mkdir()
    library.write_text(WRAPPED)
    assert read(library, 3) == ["def step(model, x, y):", "loss = f(  # of one batch", "model(x),"]


def test_code_that_does_not_parse_has_its_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(WRAPPED + "def\n")
    assert read(tmp_path / "a.py", 3)[1:] == ["loss = f(  # of one batch", "model(x),"]


def test_what_is_not_read(tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read(module)) == 3
    big = tmp_path / "big.py"
    with big.open("wb") as file:
        file.write(b"a\n")
        file.truncate(1 << 40)
    for path in (big, Path("/dev/zero"), Path("/proc/self/mem"), tmp_path, Path("a\0b"), Path("a\udc80b")):
        assert read(path) == [], path
    monkeypatch.chdir(tmp_path)
    assert read(Path("layers.py")) == [], "relative to an unknown folder"


@pytest.mark.parametrize("noted", ["[", "[]", "{}", "1", '{"machine": 1}', '{"started_ns": 1}'])
def test_a_damaged_note_is_no_note(module: Path, noted: str) -> None:
    assert read(module, meta={SOURCE: noted}) == []
    for value in ("x", None, True, [1]):
        known = json.loads(source_text.conditions()[SOURCE]) | {"started_ns": value}
        assert read(module, meta={SOURCE: json.dumps(known)}) == []


def unconverted(run: Any, folder: Path, options: str = "") -> Path:
    """The capture of a process that ended before it wrote its file."""
    run(f"""
import layers
recorder = profiling_lab.recording.Recorder(OUT{options}); recorder.start()
layers.layer(fake)
recorder.stop_capture()
os._exit(0)
""")
    return folder / "out.sqlite.spool"


def test_recovered(
    run: Any,
    tmp_path: Path,
    module: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spool, out = unconverted(run, tmp_path), tmp_path / "out.sqlite"
    assert main(["recover", str(spool)]) == 0
    assert texts(out)["layers.py", 3] == LINE
    assert main(["lines", str(out), "--own", "layers.py"]) == 0
    assert LINE in capsys.readouterr().out
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    convert(spool, out)
    assert texts(out) == {}, "this machine may have another file of this name"
    monkeypatch.undo()
    module.write_text(LAYER)
    convert(spool, out)
    assert ("layers.py", 3) not in texts(out), "written anew since"


def test_a_recovered_file_obeys_the_switch(run: Any, tmp_path: Path, module: Path) -> None:
    convert(unconverted(run, tmp_path, ", source=False"), tmp_path / "out.sqlite")
    assert texts(tmp_path / "out.sqlite") == {}


def test_the_option_reaches_children(job: Job) -> None:
    job.write("child.py", "import cupy\ncupy.Fake().kernel('child')\n")
    start = "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\n"
    job.write("parent.py", f"import cupy\ncupy.Fake().kernel('parent')\n{start}")
    for option, kept in (((), True), (("--no-source",), False)):
        done = job.record(*option, "--overwrite", "-o", "{pid}.sqlite", "parent.py")
        assert done.returncode == 0, done.stderr
        files = list(job.folder.glob("*.sqlite"))
        assert len(files) == 2, done.stderr
        found = [text for path in files for text in texts(path).values()]
        expected = ("cupy.Fake().kernel('child')", "cupy.Fake().kernel('parent')")
        assert [text in found for text in expected] == [kept, kept], option
        for path in files:
            path.unlink()


def test_merged_ranks(run: Any, tmp_path: Path, module: Path) -> None:
    """Equal lines once; a line of which the ranks have different versions has no text."""
    parts = [tmp_path / f"rank{rank}.sqlite" for rank in (0, 1)]
    for rank, path in enumerate(parts):
        run(
            f"import layers\nwith profiling_lab.record({str(path)!r}):\n"
            f"    layers.layer(fake)\n    fake.kernel('rank {rank}')",
            env={"RANK": str(rank), "WORLD_SIZE": "2"},
        )
    merge(parts, tmp_path / "job.sqlite")
    found = texts(tmp_path / "job.sqlite")
    assert found["layers.py", 3] == LINE
    assert found["script.py", 4] == "layers.layer(fake)"
    assert ("script.py", 5) not in found, "the script was another one"
    with sqlite3.connect(tmp_path / "job.sqlite") as file:
        assert file.execute("SELECT count(*) FROM PYREC_SOURCE WHERE text = ?", (LINE,)).fetchall() == [(1,)]
    with sqlite3.connect(parts[0]) as file:
        file.execute("DROP TABLE PYREC_SOURCE")
    merge(parts, tmp_path / "job.sqlite")
    assert texts(tmp_path / "job.sqlite")["script.py", 5] == "fake.kernel('rank 1')"


def test_attach_asks_for_a_recording_without_texts() -> None:
    """The listener passes every option of the request to its Recorder."""
    asked = Request(path="/run.sqlite", source=False)
    assert Request.of(asked.as_message()).source is False
    assert Request.of({"path": "/run.sqlite"}).source is True
    with pytest.raises(UsageError, match="source"):
        Request.of({"path": "/run.sqlite", "source": "no"})
