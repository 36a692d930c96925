# SPDX-License-Identifier: Apache-2.0
"""profiling-lab lines"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for line in range(1, 36):
        builder.launch(
            "gemm", 1000 * line, stack=f"/app/train.py:8 main > /app/model.py:{line} Net.forward", peek=line
        )
    builder.launch("gemm_t", 50_000, node=34, node_name="MmBackward0", thread=2, peek=0)
    return builder.write(tmp_path / "run.sqlite")


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main([str(part) for part in argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_table_opens_with_coverage_and_says_that_it_is_cut(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "lines", recording)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert (
        lines[0]
        == "run.sqlite: 680.000 µs of GPU time in 36 operations, summed; busy 680.000 µs of 690.000 µs"
    )
    assert lines[1] == "100.0 % has a line of your code; 7.4 % is backward joined with its forward line"
    assert lines[2] == "of all GPU time 92.6 % forward, 7.4 % backward"
    assert lines[4].split() == [
        "line",
        "function",
        "forward",
        "µs",
        "backward",
        "µs",
        "total",
        "µs",
        "kernels",
        "of",
        "GPU",
        "time",
    ]
    assert lines[5].split() == [
        "/app/model.py:35",
        "Net.forward",
        "35.000",
        "50.000",
        "85.000",
        "2",
        "12.5",
        "%",
    ]
    assert lines[-1] == "30 of 35 rows; --limit 0 shows all"


def test_json_has_everything_under_stable_keys(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "lines", recording, "--format", "json", "--limit", "0", "--depth", "2")
    envelope = json.loads(out)
    assert (envelope["schema"], envelope["command"]) == ("profiling-lab/1", "lines")
    assert len(envelope["data"]["rows"]) == 35 and envelope["data"]["truncated"] is False
    assert envelope["data"]["rows"][0] == {
        "key": "/app/model.py:35 < /app/train.py:8",
        "function": "Net.forward",
        "file": "/app/model.py",
        "line": 35,
        "forward_ns": 35_000,
        "backward_ns": 50_000,
        "recompute_ns": 0,
        "optimizer_ns": 0,
        "unknown_ns": 0,
        "gpu_ns": 85_000,
        "inclusive_ns": 85_000,
        "kernels": 2,
        "copies": 0,
        "share_frac": 0.125,
        "callers": [{"function": "main", "file": "/app/train.py", "line": 8}],
        "executed": [],
    }
    assert envelope["coverage"]["gpu_ns"] == 680_000
    assert envelope["coverage"]["unattributed"] == []


def test_options_reach_the_analysis(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "lines", recording, "--format", "csv", "--by", "file", "--own", "train.py")
    assert [row["key"] for row in csv.DictReader(io.StringIO(out))] == ["/app/train.py"]
    _, out, _ = run(capsys, "lines", recording, "--format", "csv", "--phase", "backward")
    assert [row["line"] for row in csv.DictReader(io.StringIO(out))] == ["35"]
    _, out, _ = run(capsys, "lines", recording, "--phase", "backward")
    assert "forward µs" not in out.replace("backward µs", "")


@pytest.mark.parametrize("by", ["line", "function", "file", "module", "kernel"])
@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_every_grouping_in_every_form(
    recording: Path, capsys: pytest.CaptureFixture[str], by: str, form: str
) -> None:
    status, out, err = run(capsys, "lines", recording, "--by", by, "--format", form, "--limit", "2")
    assert status == 0 and err == "" and ("gemm" if by == "kernel" else "model.py") in out


def test_paths_under_the_current_folder_are_shown_relative(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TraceBuilder().launch("k", 1, stack=f"{tmp_path}/model.py:3 f").write(tmp_path / "run.sqlite")
    monkeypatch.chdir(tmp_path)
    assert "\nmodel.py:3 " in run(capsys, "lines", path)[1]
    _, out, _ = run(capsys, "lines", path, "--format", "csv")
    assert f"{tmp_path}/model.py:3," in out, "keys do not depend on where one stands"


TORCH = "/v/site-packages/torch"
STEP = f"/app/train.py:4 main > {TORCH}/optim/optimizer.py:500 wrapper > {TORCH}/optim/sgd.py:90 SGD.step"
AGAIN = f"/app/train.py:3 main > {TORCH}/autograd/graph.py:800 _engine_run_backward > "


@pytest.fixture
def every_phase(tmp_path: Path) -> Path:
    """Forward, its recomputation, backward that runs Python, and the optimizer."""
    builder = TraceBuilder().launch("x", 1_000, stack="/app/train.py:1 main", peek=0)
    builder.launch("fwd", 10_000, stack="/app/train.py:2 main > /app/swish.py:3 Swish.forward", peek=1)
    recomputed = f"{AGAIN}{TORCH}/utils/checkpoint.py:900 unpack_hook > /app/swish.py:3 Swish.forward"
    builder.launch("fwd", 11_000, stack=recomputed, node=0, node_name="SwishBackward", peek=1)
    own = f"{AGAIN}{TORCH}/autograd/function.py:300 apply > /app/swish.py:9 Swish.backward"
    builder.launch("bwd", 20_000, stack=own, node=0, node_name="SwishBackward", peek=1)
    builder.launch("sgd", 5_000, stack=STEP, peek=1)
    return builder.write(tmp_path / "phases.sqlite")


def test_each_phase_has_its_column_and_python_in_backward_both_lines(
    every_phase: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "lines", every_phase)
    phases, _, title, first, below = out.splitlines()[2:7]
    assert phases == "of all GPU time 23.4 % forward, 42.6 % backward, 23.4 % recompute, 10.6 % optimizer"
    assert title.split()[2:12:2] == ["forward", "backward", "recompute", "optimizer", "total"]
    shown = "/app/swish.py:3 Swish.forward 10.000 20.000 11.000 0 41.000 3 87.2 %"
    assert first.split() == shown.split()
    assert below.strip() == "backward executed at /app/swish.py:9 Swish.backward: 20.000 µs in 1 operation"
    _, out, _ = run(capsys, "lines", every_phase, "--format", "json")
    rows = {row["line"]: row for row in json.loads(out)["data"]["rows"]}
    place = {"function": "Swish.backward", "file": "/app/swish.py", "line": 9}
    assert rows[3]["executed"] == [place | {"gpu_ns": 20_000, "operations": 1}]
    assert (rows[3]["recompute_ns"], rows[4]["optimizer_ns"]) == (11_000, 5_000)
    assert json.loads(out)["data"]["summary"] == {
        "forward_ns": 11_000,
        "backward_ns": 20_000,
        "recompute_ns": 11_000,
        "optimizer_ns": 5_000,
        "unknown_ns": 0,
    }
    _, out, _ = run(capsys, "lines", every_phase, "--phase", "optimizer", "--format", "csv")
    assert [row["line"] for row in csv.DictReader(io.StringIO(out))] == ["4"]


def test_inclusive_time_and_order(every_phase: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*argv: str) -> list[tuple[str, str, str]]:
        _, out, _ = run(capsys, "lines", every_phase, "--format", "csv", *argv)
        rows = csv.DictReader(io.StringIO(out))
        return [(row["key"].removeprefix("/app/"), row["gpu_ns"], row["inclusive_ns"]) for row in rows]

    assert listed() == [
        ("swish.py:3", "41000", "41000"),
        ("train.py:4", "5000", "5000"),
        ("train.py:1", "1000", "1000"),
    ]
    assert listed("--sort", "inclusive")[1:3] == [("train.py:2", "0", "30000"), ("train.py:3", "0", "11000")]
    assert [row[0] for row in listed("--sort", "key")] == ["swish.py:3", "train.py:1", "train.py:4"]


def test_layers_differ_by_the_lines_that_call_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = f"{TORCH}/nn/modules/module.py:1790 Module._call_impl"
    net = f"/app/train.py:9 main > {call} > /app/model.py:5 Net.forward"
    stack = f"{net} > {call} > {TORCH}/nn/modules/linear.py:134 Linear.forward"
    path = TraceBuilder().launch("k", 7, stack=stack).launch("k", 3, stack=net).write(tmp_path / "t.sqlite")
    _, out, _ = run(capsys, "lines", path, "--by", "layer")
    assert [line.split("  ")[0] for line in out.splitlines()[-2:]] == [
        "Net:9 > Linear:5 (/app/model.py)",
        "Net:9 (/app/train.py)",
    ]


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_tree(every_phase: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    status, out, err = run(capsys, "lines", every_phase, "--tree", "--format", form)
    assert (status, err) == (0, "")
    if form == "table":
        shown = [(len(line) - len(line.lstrip()), line.split()[0]) for line in out.splitlines()[4:]]
        assert shown[:4] == [
            (0, "all"),
            (2, "/app/train.py:2"),
            (4, "/app/swish.py:3"),
            (2, "/app/train.py:3"),
        ]
    if form == "md":
        assert "\n| \u00a0\u00a0\u00a0\u00a0/app/swish.py:3 | " in out, "common spaces are swallowed"
    if form == "json":
        rows = json.loads(out)["data"]["rows"]
        assert rows[0]["inclusive_ns"] == 47_000 == sum(row["self_ns"] for row in rows)
        assert rows[2]["key"] == "/app/train.py:2 > /app/swish.py:3"
        assert (rows[2]["parent"], rows[2]["depth"], rows[2]["backward_ns"]) == ("/app/train.py:2", 2, 20_000)
    _, out, _ = run(
        capsys, "lines", every_phase, "--tree", "--depth", "1", "--min-share", "50%", "--format", "csv"
    )
    assert [row["key"] for row in csv.DictReader(io.StringIO(out))] == ["", "/app/train.py:2"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--tree", "--by", "file"], "--by cannot be combined with --tree"),
        (["--tree", "--sort", "key"], "--sort cannot be combined with --tree"),
        (["--min-share", "3"], "--min-share works only with --tree"),
    ],
)
def test_options_that_do_not_go_together(
    recording: Path, capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    status, out, err = run(capsys, "lines", recording, *argv)
    assert (status, out) == (2, "") and says in err


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["nowhere.sqlite"], 4, "there is no such file"),
        (["{run}", "--by", "range"], 3, "no NVTX ranges"),
    ],
)
def test_errors_are_one_sentence_on_stderr(
    recording: Path, capsys: pytest.CaptureFixture[str], argv: list[str], status: int, says: str
) -> None:
    found, out, err = run(capsys, "lines", *(part.format(run=recording) for part in argv))
    assert (found, out) == (status, "") and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["--depth", "0"], ["--limit", "-1"], ["--by", "moon"], ["--min-share", "101"]]
)
def test_usage_errors(recording: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["lines", str(recording), *argv])
    assert caught.value.code == 2


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lines", "--help"])
    assert "profiling-lab lines run.sqlite" in capsys.readouterr().out
