# SPDX-License-Identifier: Apache-2.0
"""The accuracy study of roofline, as far as it goes without a GPU: its operators, and the reading of ncu."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

REPO = Path(__file__).resolve().parents[2]

COLUMNS = "dram__bytes_read.sum dram__bytes_write.sum lts__t_sectors_srcunit_tex_op_write.sum tensor.sum"
CSV = f"""==PROF== Connected to process 7
"ID","Process ID","Kernel Name",{",".join(f'"{name}"' for name in COLUMNS.split())}
"","","","byte","byte","sector","inst"
"0","7","at::cuda::spin_kernel(long)","0","0","0","0"
"1","7","void gemm<float>(int, int)","1,000","100","20","5,000"
"2","7","void reduce(int)","500","10,000","n/a","n/a"
"3","7","at::cuda::spin_kernel(long)","0","0","0","0"
"4","7","at::cuda::spin_kernel(long)","0","0","0","0"
"5","7","void cut(int)","1","1","1","1"
"""


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    import roofline_accuracy

    yield roofline_accuracy
    for name in ("roofline_accuracy", "roofline_pairs", "roofline_models"):
        sys.modules.pop(name, None)


def test_kernels_between_markers(study: Any, tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(CSV)
    found = list(study.between_markers(study.read_csv(path)))
    assert [[row["ID"] for row in kernels] for kernels in found] == [["1", "2"], []]  # the last is cut
    # of 20 sectors 640 bytes were written: 100 have left the L2 cache, and up to 300 may still be in it
    work = study.measured_work(found[0], ["tensor.sum"], 600)
    assert work == {"read_bytes": 1500, "written_bytes": 400 + 10_000, "flops": 5000}


def test_a_line_for_each_quantity_and_the_errors_by_kind(study: Any, capsys: Any) -> None:
    case = {"kind": "copy", "op": "clone", "shape": "8", "dtype": "bfloat16"}
    counted = {"read_bytes": 100, "written_bytes": 100, "flops": 50}
    lines: list[tuple[str, str, float]] = []
    file = study.argparse.Namespace(
        add=lambda _, __, who, metric, value, ___: lines.append((who, metric, value))
    )
    study.write(file, case, counted, "sampled", {"read_bytes": 110.0, "written_bytes": 90.0})
    assert lines == [
        ("modelled", "read_bytes", 100), ("modelled", "written_bytes", 100),
        ("sampled", "read_bytes", 110.0), ("sampled", "written_bytes", 90.0),
    ]  # fmt: skip
    errors = study.Errors()
    errors.add(case, counted, {"read_bytes": 150.0, "written_bytes": 100.0})
    errors.add(case, counted, {"flops": 40.0})
    errors.add(case, counted, {"read_bytes": 0.0, "written_bytes": 0.0})  # nothing to compare with
    errors.show()
    text = capsys.readouterr().out
    assert "read_bytes 0.667, written_bytes 1.000, bytes 0.800" in text and "flops 1.250" in text
    assert "copy                 3  20.0 %, 25.0 %" in text


def test_a_measurement_that_hangs_is_stopped(study: Any) -> None:
    assert study.run_for([sys.executable, "-c", "import time; time.sleep(60)"], 0.2) != 0
    assert study.run_for([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3


def test_a_file_of_errors_has_no_kernels(study: Any, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text("==ERROR== ERR_NVGPUCTRPERM\n")
    assert list(study.read_csv(path)) == []
    assert "ERR_NVGPUCTRPERM" in capsys.readouterr().out


def test_which_counters_exist(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["dram__bytes_read", "dram__bytes_write", "sm__ops_path_tensor_src_bf16_dst_fp32"]
    known += [f"{known[-1]}_sparsity_off", "sm__ops_path_tensor_src_tf32_dst_fp32_sparsity_off"]
    text = "Device NVIDIA GH100\n" + "".join(f"{name}      Counter   byte   # of bytes\n" for name in known)
    monkeypatch.setattr(study.subprocess, "run", lambda *_, **__: study.argparse.Namespace(stdout=text))
    wanted, tensor = study.metrics_of("ncu")
    assert tensor == [
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
        "sm__ops_path_tensor_src_tf32_dst_fp32_sparsity_off.sum",
    ]
    assert wanted == ["dram__bytes_read.sum", "dram__bytes_write.sum", *tensor]


def test_there_are_enough_pairs_and_kinds_take_turns(study: Any) -> None:
    import roofline_pairs

    from profiling_lab.work.kinds import KINDS

    pairs = roofline_pairs.pairs()
    assert len(pairs) >= 150 and len({pair.kind for pair in pairs}) >= 15
    assert {pair.kind for pair in roofline_pairs.pairs(True)} <= set(KINDS)
    assert len({pair.kind for pair in study.interleaved(pairs)[:15]}) == 15
    assert len(study.interleaved(pairs)) == len(pairs)
    options = {"models": False, "with_models": True, "compiled": False, "only": None, "begin": 0}
    order = study.chosen_pairs(study.argparse.Namespace(**options, flops=False))
    assert [pair.kind for pair in order].index("model") == 150 and len(order) == len(pairs) + 5
    some = study.chosen_pairs(study.argparse.Namespace(**options, flops=True))
    assert {pair.kind for pair in some} == {*study.WITH_FLOPS, "model"}


def test_models_count_what_their_layers_multiply(study: Any) -> None:
    """Each of two blocks of a transformer has 12 width^2 weights, which meet every token three times."""
    import roofline_models

    from profiling_lab.work import WorkCounter

    width, rows = 64, 16
    with torch.device("meta"):
        model = roofline_models.Gpt(2, width=width, heads=4, rows=rows)
        tokens = torch.zeros(2, rows, dtype=torch.long)
        with WorkCounter() as counter:
            model(tokens, tokens).backward()
    assert not counter.failures
    products = 2 * 2 * rows * (2 * 12 * width * width + 50304 * width)
    attention = (
        2 * 4 * (2 * 2 * rows * rows * (width // 4) * 2) * 2 / 2
    )  # without its mask: meta is not fused
    flops = sum(one.work.flops or 0 for one in counter.calls)
    assert flops == pytest.approx(3 * (products + 2 * attention), rel=0.05)
