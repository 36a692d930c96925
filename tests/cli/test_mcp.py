# SPDX-License-Identifier: Apache-2.0
"""profiling-lab mcp: the tools as the protocol's own client sees them, their budget, and what may be read."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder
from package_root import PACKAGE_ROOT

from profiling_lab.cli import COMMANDS, main
from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.mcp.compact import FEWEST_TOKENS
from profiling_lab.mcp.root import Root
from profiling_lab.mcp.tools import Tools

MS = 1_000_000
NOT_SERVED = {"demo", "exercise", "doctor", "record", "attach", "detach", "status", "recover", "merge", "ab"}
NOT_SERVED |= {"report", "export", "mcp", "peaks", "interconnect", "bench", "ncu"}
needs_mcp = pytest.mark.skipif(find_spec("mcp") is None, reason="the package mcp is not installed")


def trace(path: Path, gelu_ns: int = MS, lines: int = 40) -> Path:
    builder = TraceBuilder()
    for number in range(6):
        builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
        for line in range(1, lines):
            builder.launch("gemm<float>", 2 * MS - line, stack=f"/app/model.py:{line} Net.forward")
        builder.launch("gelu", gelu_ns, stack="/app/model.py:87 Net.forward")
        builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    return builder.write(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    (root / "sub").mkdir(parents=True)
    trace(root / "a.sqlite")
    trace(root / "sub" / "b.sqlite", 200 * MS)
    trace(tmp_path / "secret.sqlite")
    (root / "link.sqlite").symlink_to(tmp_path / "secret.sqlite")
    (root / "job").mkdir()
    (root / "job" / "rank0.sqlite").symlink_to(tmp_path / "secret.sqlite")
    (root / "notes.txt").write_text("thesis")
    return root


@pytest.fixture
def tools(folder: Path) -> Tools:
    return Tools(Root(str(folder)))


def test_every_command_that_reads_is_served(tools: Tools) -> None:
    names = {tool.__name__.replace("_", "-") for tool in tools.all()}
    assert names - {"recordings"} == set(COMMANDS) - NOT_SERVED
    assert all(tool.__doc__ for tool in tools.all())


def test_recordings_are_listed_with_what_may_be_read_alone(tools: Tools) -> None:
    names = [line.split(" | ")[0] for line in tools.recordings().splitlines()]
    assert sorted(names) == ["a.sqlite", "sub/b.sqlite"]


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("../secret.sqlite", UsageError, "is outside of"),
        ("/etc/passwd", UsageError, "is outside of"),
        ("link.sqlite", UsageError, "is outside of"),
        ("job", UsageError, "is outside of"),
        ("job/rank0.sqlite", UsageError, "is outside of"),
        ("none.sqlite", UnreadableInputError, "there is no none.sqlite"),
        ("a.sqlite\0", UsageError, "zero byte"),
    ],
)
def test_nothing_else_is_read(tools: Tools, name: str, kind: type[LabError], sentence: str) -> None:
    for ask in (
        lambda: tools.lines(name),
        lambda: tools.diff([name], ["a.sqlite"]),
        lambda: tools.ranks([name, "a.sqlite"]),
    ):
        with pytest.raises(LabError, match=re.escape(sentence)) as error:
            ask()
        assert isinstance(error.value, kind) and "\n" not in str(error.value)


def test_file_that_is_no_recording_is_one_sentence(tools: Tools) -> None:
    with pytest.raises(UnreadableInputError, match=r"notes\.txt") as error:
        tools.lines("notes.txt")
    assert "\n" not in str(error.value)


def test_root_must_be_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--root", str(tmp_path / "none")]) == 4
    assert "--root expects a folder" in capsys.readouterr().err
    with pytest.raises(NotEnoughDataError, match="no recording is in"):
        Tools(Root(str(tmp_path))).recordings()


def test_missing_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "profiling_lab.mcp.server", raising=False)
    assert main(["mcp", "--root", str(folder)]) == 2
    assert "pip install 'profiling-lab[mcp]'" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", [FEWEST_TOKENS, 400, 1000, 4000])
@pytest.mark.parametrize("name", ["lines", "kernels", "check", "gaps", "steps", "apis", "info", "diff"])
def test_answers_keep_to_their_budget(tools: Tools, name: str, tokens: int) -> None:
    ask: Callable[..., str] = getattr(tools, name)
    given = (["a.sqlite"], ["sub/b.sqlite"]) if name == "diff" else ("a.sqlite",)
    answer = ask(*given, tokens=tokens)
    assert len(answer) <= 3 * tokens
    assert ("left out" in answer) is (answer != ask(*given, tokens=10**6))


def test_what_is_left_out_ranks_lower_and_is_counted(tools: Tools) -> None:
    whole = tools.lines("a.sqlite", tokens=10**6).splitlines()
    rows = [line for line in whole if "model.py:" in line]
    assert len(rows) == 40 and "left out" not in whole[-1]
    cut = tools.lines("a.sqlite", tokens=500).splitlines()
    kept = [line for line in cut if "model.py:" in line]
    assert kept == rows[: len(kept)] and 5 < len(kept) < 40
    assert f"rows {len(kept) + 1} to 40, the last ones" in cut[-1] and "500 tokens" in cut[-1]


def test_too_small_a_budget_is_refused(tools: Tools) -> None:
    with pytest.raises(UsageError, match="tokens must be at least 200, not 3"):
        tools.lines("a.sqlite", tokens=3)


def test_part_of_a_recording(tools: Tools) -> None:
    whole, part = tools.lines("a.sqlite"), tools.lines("a.sqlite", step="2")
    assert whole != part and "step" in part
    with pytest.raises(LabError, match="step"):
        tools.lines("a.sqlite", step="99")


# --- the protocol ---


def call(folder: Path, *asked: tuple[str, dict[str, Any]]) -> tuple[Any, list[tuple[bool, str]]]:
    """What the server says about itself and its tools, and its answers, on standard input and output."""
    from mcp import Client, StdioServerParameters

    environment = {"PYTHONPATH": os.pathsep.join([str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")])}
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "profiling_lab", "mcp", "--root", str(folder)],
        env={**os.environ, **environment},
        cwd=folder,  # -m would find the package's sources in the clone
    )

    async def talk() -> tuple[Any, list[tuple[bool, str]]]:
        async with Client(command) as client:
            listed = (await client.list_tools()).tools
            answers = [await client.call_tool(name, arguments) for name, arguments in asked]
        return listed, [(bool(a.is_error), "".join(c.text for c in a.content)) for a in answers]

    return asyncio.run(talk())


@needs_mcp
def test_a_client_is_served(folder: Path, tools: Tools) -> None:
    listed, answers = call(
        folder,
        ("recordings", {}),
        ("lines", {"file": "a.sqlite", "tokens": 500}),
        ("check", {"file": "a.sqlite"}),
        ("diff", {"before": ["a.sqlite"], "after": ["sub/b.sqlite"], "gate": "3%"}),
        ("lines", {"file": "../secret.sqlite"}),
        ("lines", {"file": "a.sqlite", "by": "nonsense"}),
        ("lines", {}),
    )
    assert {tool.name for tool in listed} == {tool.__name__ for tool in tools.all()}
    by_name = {tool.name: tool for tool in listed}
    assert all(tool.annotations.read_only_hint for tool in listed)
    assert "tokens" in by_name["lines"].input_schema["properties"]
    assert by_name["lines"].input_schema["required"] == ["file"]
    assert [failed for failed, _ in answers] == [False] * 4 + [True] * 3
    assert answers[1] == (False, tools.lines("a.sqlite", tokens=500))
    assert answers[3][1].startswith("SLOWER: ") and "FAILED" in answers[3][1]
    assert "is outside of" in answers[4][1] and len(answers[4][1].splitlines()) == 1


@needs_mcp
def test_server_ends_with_its_client(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "profiling_lab", "mcp", "--root", str(folder)],
        env={**os.environ, "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        cwd=folder,
        input="",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_memory_of_two_recordings(tmp_path: Path) -> None:
    packed = Path(__file__).parents[1] / "data" / "memory_h200"
    for name in ("eager", "list_of_activations"):
        (tmp_path / f"{name}.sqlite").write_bytes(
            gzip.decompress((packed / f"{name}.sqlite.gz").read_bytes())
        )
    tools = Tools(Root(str(tmp_path)))
    sides = ["eager.sqlite"], ["list_of_activations.sqlite"]
    answer = tools.diff(*sides, memory=True, gate_memory="3%")
    assert "peak memory 1.2 GiB -> 1.2 GiB, +56.0 MiB" in answer and "memory_programs.py:86" in answer
    assert "gate-memory +3% (36.5 MiB): +56.0 MiB: FAILED" in answer
    assert "gate-memory +3% (36.5 MiB): +56.0 MiB: FAILED" in tools.diff(*sides, gate_memory="3%")
    with pytest.raises(UsageError, match="gate is about the times"):
        tools.diff(*sides, memory=True, gate="3%")
