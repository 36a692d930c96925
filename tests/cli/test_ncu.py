# SPDX-License-Identifier: Apache-2.0
"""profiling-lab ncu, with a stand-in for ncu that gives the launches of a real export of an H200."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from builders import TraceBuilder

import profiling_lab
from profiling_lab.analysis.ncu.figures import BASIC
from profiling_lab.cli import main
from profiling_lab.doctor import tools

EXPORT = Path(profiling_lab.__file__).parent / "exercises/e33_low_memory_throughput/recorded/starter_h200.csv"
FAKE = Path(__file__).parent / "fake_ncu.py"
LINE = "/app/model.py:5"
PROGRAM = "import os, sys; print('training'); sys.exit(int(os.environ.get('FAKE_EXIT', '0')))"


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """What the program of the export does, per step: scores and, in backward, mix are of line 5, softmax of
    line 6. Grids and blocks are those of the export.
    """
    builder = TraceBuilder()
    for step in range(3):
        start = builder.now_ns
        up, down = "/app/model.py:5 attend", "/app/model.py:6 attend"
        builder.launch("scores_kernel(const float *)", 900_000, stack=up, blocks=16, peek=step + 1)
        builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1] |= {"gridY": 1024, "blockX": 256}
        builder.launch("softmax_kernel(float *)", 12_000, stack=down, blocks=1024)
        builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1] |= {"blockX": 256}
        builder.launch("mix_kernel(float *)", 240_000, blocks=1024, thread=2, node=step, node_name="Mix")
        builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1] |= {"blockX": 256}
        builder.range(f"ProfilerStep#{step}", start, builder.now_ns)
    return str(builder.write(tmp_path / "run.sqlite"))


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in: launches.csv, metrics.txt, arguments.json."""
    folder = tmp_path / "fake"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "ncu"
    program.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    program.chmod(0o755)
    shutil.copy(EXPORT, folder / "launches.csv")
    header, units, *rows = EXPORT.read_text().splitlines()
    assert len(rows) == 6
    (folder / "launches.csv").write_text("\n".join([header, units, *rows, *rows[:3]]))  # three steps
    (folder / "metrics.txt").write_text(
        "Device NVIDIA H200\n---\nsm__ops_path_tensor_src_bf16_dst_fp32  Counter  # of ops\n"
        "smsp__sass_thread_inst_executed_op_hadd_pred_on  Counter inst\n"
    )
    monkeypatch.setenv("FAKE_NCU", str(folder))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return folder


def run(*arguments: str) -> int:
    return main(["ncu", *arguments, "--", sys.executable, "-c", PROGRAM])


def test_forward_and_backward_of_a_line(recording: str, ncu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(recording, "--line", "model.py:5", "--format", "json") == 0
    out, err = capfd.readouterr()
    data = json.loads(out)
    assert "training" in err, "the program's output is not the answer"
    options, program = json.loads((ncu / "arguments.json").read_text())
    assert program == [sys.executable, "-c", PROGRAM]
    assert options["--kernel-name"] == ["regex:^(scores_kernel|mix_kernel)$"]
    assert (options["--launch-skip"], options["--launch-count"]) == (["2"], ["2"]), "the second step, whole"
    assert options["--page"] == ["raw"] and options["--print-units"] == ["base"] and "--csv" in options
    assert options["--section"] == ["SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats"]
    more = "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum,sm__ops_path_tensor_src_bf16_dst_fp32.sum"
    assert options["--metrics"] == [f"{','.join(BASIC)},{more}"], "what this GPU has, and nothing else"
    forward, backward = data["data"]["rows"]
    assert (forward["phase"], forward["kernel"], forward["recorded_ns"]) == (
        "forward",
        "scores_kernel",
        2_700_000,
    )
    assert (backward["phase"], backward["kernel"], backward["recorded_ns"]) == (
        "backward",
        "mix_kernel",
        720_000,
    )
    assert forward["sectors_per_load"] == pytest.approx(31.89) and forward["ncu_ns"] == 1_060_896, (
        "that launch alone"
    )
    assert backward["dram_frac"] == 0.9301 and backward["occupancy_frac"] == 0.9614
    assert backward["sm_frac"] is None and backward["tensor_flops"] is None, "the export does not have them"
    summary = data["data"]["summary"]
    assert (summary["profiled"], summary["of_other_lines"], summary["gpu"]) == (2, 0, "NVIDIA H200")
    assert summary["recorded_ns"] == {"forward": 2_700_000, "backward": 720_000} and summary["notes"] == []


def test_table(recording: str, ncu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(recording, "--line", LINE) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "model.py:5 attend: 2.700 ms forward, 720.000 µs backward in kernels, recorded" in out
    assert "counters of NVIDIA H200" in out and "2 launches profiled, 0 of them of other lines" in out
    assert "scores_kernel" in out and "31.9" in out and "67.2 %" in out


def test_one_phase(recording: str, ncu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(recording, "--line", LINE, "--phase", "backward") == 0
    options, _ = json.loads((ncu / "arguments.json").read_text())
    assert options["--kernel-name"] == ["regex:^(mix_kernel)$"] and options["--launch-count"] == ["1"]
    assert "scores" not in capfd.readouterr().out


def test_the_exit_code_of_the_program_stands(
    recording: str, ncu: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_EXIT", "7")
    assert run(recording, "--line", LINE) == 7
    assert "scores_kernel" in capfd.readouterr().out, "what was profiled is shown all the same"
    (ncu / "refuse.txt").write_text("==ERROR== The application returned an error code (7).\n")
    assert run(recording, "--line", LINE) == 7
    assert "ncu: ncu profiled nothing of /app/model.py:5" in capfd.readouterr().err


def test_no_permission(
    recording: str, ncu: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (ncu / "refuse.txt").write_text(
        "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA "
        "GPU Performance Counters on the target device 0.\n"
    )
    for code in ("0", "1"):
        monkeypatch.setenv("FAKE_EXIT", code)
        assert run(recording, "--line", LINE) == 3
        (told,) = [line for line in capfd.readouterr().err.splitlines() if "ERR_NVGPUCTRPERM" in line]
        assert "not allowed to read the hardware counters" in told and "`profiling-lab doctor`" in told


def test_a_program_that_launches_less_now(
    recording: str, ncu: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    header, units, *rows = EXPORT.read_text().splitlines()
    (ncu / "launches.csv").write_text("\n".join([header, units, *rows[:4]]))  # mix is launched once
    assert run(recording, "--line", LINE) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "1 launches of these kernels, 1 fewer than one recorded step" in out
    assert "not in the report: backward mix_kernel" in out
    (ncu / "launches.csv").write_text("\n".join([header, units, *rows[:2]]))
    assert run(recording, "--line", LINE) == 3
    err = capfd.readouterr().err
    assert "in the recording 2 launches of scores_kernel, mix_kernel came before" in err
    assert "it says: No kernels were profiled." in err


def test_a_program_whose_launches_have_another_shape(
    recording: str, ncu: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (ncu / "launches.csv").read_text()
    (ncu / "launches.csv").write_text(re.sub(r'("mix_kernel.*?)"\(1024, 1, 1\)"', r'\1"(512, 1, 1)"', text))
    assert run(recording, "--line", LINE) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "matched by kernel and shape alone; 1 of them have a shape that was not recorded" in out
    assert "1 may be of this line or of another: not counted here" in out


def test_the_command_alone(recording: str, ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recording, "--line", LINE, "--dry-run", "--launches", "1", "--kill") == 0
    out = capsys.readouterr().out
    assert (
        "--kernel-name 'regex:^(scores_kernel|mix_kernel)$' --launch-skip 2 --launch-count 1 --kill yes"
        in out
    )
    assert "--log-file report.csv" in out and not (ncu / "arguments.json").exists()


def test_without_ncu(
    recording: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "find_tool", lambda name: (None, False))
    assert run(recording, "--line", LINE) == 3
    assert "ncu is not installed" in capsys.readouterr().err
    assert run(recording, "--line", LINE, "--dry-run") == 0
    assert capsys.readouterr().out.startswith("ncu --csv --page raw")


def test_an_export_made_elsewhere(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ncu", recording, "--line", LINE, "--from", str(EXPORT), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(row["kernel"], row["launches"]) for row in data["data"]["rows"]] == [
        ("scores_kernel", 2), ("mix_kernel", 2),
    ]  # fmt: skip
    assert data["data"]["summary"]["of_other_lines"] == 2 and data["trace"]["report"] == EXPORT.name


def test_a_kept_report(recording: str, ncu: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.csv"
    assert run(recording, "--line", LINE, "-o", str(kept)) == 0
    printed = capfd.readouterr().out
    assert run(recording, "--line", LINE, "-o", str(kept)) == 2
    assert "exists already" in capfd.readouterr().err
    assert main(["ncu", recording, "--line", LINE, "--from", str(kept)]) == 0
    assert capfd.readouterr().out == printed


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--line", LINE], 2, "expected a program after --, or --from REPORT, got neither"),
        (["--line", LINE, "--from", "r.csv", "--", "x"], 2, "got both"),
        (["--line", LINE, "--from", "no.csv"], 4, "there is no report no.csv"),
        (["--line", LINE, "--from", "no.csv", "-o", "x"], 2, "cannot be combined"),
        (["--line", "model.py:9", "--", "x"], 2, "did you mean /app/model.py:5 or /app/model.py:6?"),
        (["--line", "model", "--", "x"], 2, "expected a line such as model.py:87"),
    ],
)
def test_what_does_not_work(
    arguments: list[str], code: int, says: str, recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ncu", recording, *arguments]) == code
    assert says in capsys.readouterr().err


def test_in_python(recording: str) -> None:
    with profiling_lab.open(recording) as trace:
        table = trace.ncu("model.py:5", EXPORT, phase="backward")
    assert [row.kernel for row in table] == ["mix_kernel"]
    assert table.result.rows[0].figures.occupancy_limit_frac == 1.0


def test_another_program_has_the_word_for_itself(recording: str, ncu: Path) -> None:
    """What follows -- is the program's, its own -- too."""
    words = [sys.executable, "-c", PROGRAM, "--", "--line", "x"]
    assert main(["ncu", recording, "--line", LINE, "--", *words]) == 0
    assert json.loads((ncu / "arguments.json").read_text())[1] == words
