# SPDX-License-Identifier: Apache-2.0
"""profiling-lab energy"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import VM, TraceBuilder
from made_traces.energy import Phase, Run, recording, simulate

import profiling_lab
from profiling_lab.cli import main
from profiling_lab.errors import UsageError

PHASES = [Phase(1, 650, 180_000_000), Phase(2, 350, 120_000_000, 20_000_000), Phase(3, 220, 90_000_000)]
HOW = "record with `profiling-lab record --energy`"


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(PHASES, 20, 7)


@pytest.fixture(scope="module")
def recorded(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(run).write(tmp_path_factory.mktemp("energy") / "run.sqlite")


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["energy", *map(str, arguments), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def test_each_line_has_its_joules(recorded: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, recorded)
    rows = {row["line"]: row for row in data["rows"] if row["line"]}
    assert set(rows) == {1, 2, 3}
    for line, row in rows.items():
        assert abs(row["joules"] - run.joules[line]) <= row["error_j"] + 0.01 * run.joules[line]
        assert row["power_w"] == pytest.approx(row["joules"] / row["gpu_ns"] * 1e9)
        assert row["function"] == f"part{line}" and row["phase"] == "forward" and row["needs_s"] is None
    assert [row["line"] for row in data["rows"]][:3] == [1, 2, 3], "by joules"
    told = [row for row in data["rows"] if row["joules"] is not None]
    assert sum(row["joules"] for row in told) <= data["summary"]["joules"] * 1.001
    assert sum(row["gpu_ns"] for row in data["rows"]) == pytest.approx(data["summary"]["devices"][0]["ns"])


def test_steps_sum_to_the_counter(recorded: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = answer(capsys, recorded)["summary"]["devices"]
    wall_s = (run.end_ns[-1] - run.start_ns[0]) * 1e-9
    assert device["steps"] == len(run.step_start_ns)
    assert device["step_j"] * device["steps"] == pytest.approx(device["joules"], rel=0.01)
    assert device["joules"] == pytest.approx(device["mean_w"] * wall_s, rel=0.01)
    assert 0 < device["step_error_j"] < 0.05 * device["step_j"]


def test_joules_per_sample_and_flops_per_watt(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = recording(run)
    for flops in (3_000_000_000_000, None, 1_000_000_000_000):
        builder.operator("aten::mm", 1_000, flops=flops, stack="/app/train.py:8 main > /app/model.py:1 part1")
    summary = answer(capsys, builder.write(tmp_path / "run.sqlite"), "--samples-per-step", 64)["summary"]
    assert summary["sample_j"] == pytest.approx(summary["step_j"] / 64, rel=1e-4)
    assert summary["tflops_per_w"] == pytest.approx(4 / summary["step_j"], rel=1e-4)


def test_table(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", str(recorded), "--samples-per-step", "64"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "W on average of at most 700 W; idle 4." in out and "J per sample (steps: ranges named" in out
    assert "MHz SM clock, 3,201 MHz memory clock, 40 to 50" in out and "power cap in" in out
    assert "the counter changes every " in out and "99% confidence" in out
    assert "/app/model.py:1 part1 forward" in out


def test_a_part_of_the_recording(recorded: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, recorded, "--step", "5:25")
    (device,) = data["summary"]["devices"]
    wall_ns = int(run.step_start_ns[25] - run.step_start_ns[5])
    assert device["steps"] == 20 and device["ns"] == pytest.approx(wall_ns, rel=0.01)
    few = answer(capsys, recorded, "--step", "5:7")
    (device,) = few["summary"]["devices"]
    assert device["joules"] > 0 and "to distinguish lines takes 40 at least, 4 s" in device["why_no_lines"]
    assert all(row["joules"] is None and row["needs_s"] is None for row in few["rows"])
    assert device["joules"] == pytest.approx(device["steps"] * device["step_j"], rel=0.02)


def test_two_gpus(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = recording(run)
    other = recording(simulate(PHASES, 20, 8), pid=200, device=0)
    for table, rows in other.rows.items():
        if table != "NVTX_EVENTS":
            builder.rows.setdefault(table, []).extend(rows)
    data = answer(capsys, builder.write(tmp_path / "run.sqlite"))
    assert {device["pid"] for device in data["summary"]["devices"]} == {100, 200}
    assert data["summary"]["joules"] == pytest.approx(
        sum(device["joules"] for device in data["summary"]["devices"])
    )


def test_without_the_counter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = "/app/train.py:8 main"
    plain = TraceBuilder().launch("gemm", 1000, stack=stack).write(tmp_path / "plain.sqlite")
    assert main(["energy", str(plain)]) == 3
    assert f"holds no energy counter: {HOW}" in capsys.readouterr().err
    refused = TraceBuilder().launch("gemm", 1000, stack=stack)
    refused.row("PYREC_META", name="energy_state", value="GPU 0: Not Supported")
    assert main(["energy", str(refused.write(tmp_path / "refused.sqlite"))]) == 3
    assert "the recorder says: GPU 0: Not Supported" in capsys.readouterr().err
    nsys = TraceBuilder(form="nsys").launch("gemm", 1000, stack=stack).write(tmp_path / "nsys.sqlite")
    assert main(["energy", str(nsys)]) == 3
    assert "only `profiling-lab record --energy` reads it" in capsys.readouterr().err


def test_samples_of_another_time_or_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder().launch("gemm", 1000, stack="/app/train.py:8 main")
    for device, start in ((0, 10**12), (1, 0)):
        for i in range(5):
            builder.row(
                "PYREC_ENERGY", start=start + i * 10**8, spread=1, globalPid=VM | 100 << 24, deviceId=device,
                energyMj=1000 * i,
            )  # fmt: skip
    assert main(["energy", str(builder.write(tmp_path / "run.sqlite"))]) == 3
    assert "had its energy read then" in capsys.readouterr().err


def test_damaged_rows_are_left_out(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = recording(run)
    good = dict(builder.rows["PYREC_ENERGY"][60])
    for values in ({"energyMj": -5}, {"energyMj": None}, {"energyMj": 1 << 62}, {"start": -(1 << 62)}):
        builder.row("PYREC_ENERGY", **good | values)
    builder.row("PYREC_ENERGY", **good | {"spread": -9, "powerMw": 1 << 62, "temperatureC": None})
    data = answer(capsys, builder.write(tmp_path / "run.sqlite"))
    assert data["rows"][0]["joules"] == pytest.approx(run.joules[1], rel=0.03)


def test_the_report_has_the_figures(recorded: Path, tmp_path: Path) -> None:
    assert main(["report", str(recorded), "-o", str(tmp_path / "run.html")]) == 0
    assert "9.11 kJ, 452 W on average, 182 J per step" in (tmp_path / "run.html").read_text()


def test_options(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["energy", str(recorded), "--samples-per-step", "0"])
    assert ended.value.code == 2 and "a number of at least 1" in capsys.readouterr().err
    with profiling_lab.open(recorded) as trace:
        table = trace.energy(samples_per_step=2, limit=1)
        assert len(table.result.rows) == 1 < table.result.total_matched
        with pytest.raises(UsageError, match="samples_per_step must be at least 1, not 0"):
            trace.energy(samples_per_step=0)


def test_it_is_dormant_s_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--dormant", "--energy", "train.py"]) == 2
    assert "--dormant records nothing by itself" in capsys.readouterr().err
