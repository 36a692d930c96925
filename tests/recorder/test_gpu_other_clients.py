# SPDX-License-Identifier: Apache-2.0
"""Other tools that trace the GPU, attached before us or after: named in one sentence, and nothing is damaged.

torch.profiler before, inside and after a recording is in test_gpu_recording.py.
"""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from needs import needs

pytestmark = pytest.mark.gpu

# The program asks for a recording, is told why there is none, and goes on with its work on the GPU.
REFUSED = """
a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
try:
    with profiling_lab.record(OUT): pass
except profiling_lab.errors.LabError as error: print("refused:", error)
assert not os.path.exists(OUT) and not os.path.exists(OUT + ".spool")
b = (a @ a).cos(); torch.cuda.synchronize()
print("sum", bool(torch.isfinite(b).all()))
"""


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What the program was told, in one line."""
    (line,) = (text for text in done.stdout.splitlines() if text.startswith("refused:"))
    assert "sum True" in done.stdout, done.stdout
    print(line)
    return line


def test_under_nsys(run_gpu: Any, tmp_path: Path) -> None:
    report = tmp_path / "theirs.nsys-rep"
    nsys = (needs("nsys"), "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", "-o", str(report))
    assert "Nsight Systems" in sentence(run_gpu(REFUSED, under=nsys))
    export = ("nsys", "export", "--type=sqlite", "-o", str(tmp_path / "theirs.sqlite"), str(report))
    subprocess.run(export, check=True, capture_output=True)
    with sqlite3.connect(tmp_path / "theirs.sqlite") as file:
        ((kernels,),) = file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert kernels >= 4, "nsys recorded what came before us and after"


def test_under_ncu(run_gpu: Any) -> None:
    ncu = (needs("ncu"), "--launch-count", "1", "--metrics", "gpu__time_duration.sum")
    done = run_gpu(REFUSED, under=ncu)
    assert "Nsight Compute" in sentence(done)
    assert "gpu__time_duration" in done.stdout, "ncu measured its kernel"


def test_under_compute_sanitizer(run_gpu: Any) -> None:
    done = run_gpu(REFUSED, under=(needs("compute-sanitizer"), "--tool", "memcheck"))
    assert "compute-sanitizer" in sentence(done)
    assert "ERROR SUMMARY: 0 errors" in done.stdout


def test_the_command_ends_with_the_sentence_before_the_script_runs(run_gpu: Any, tmp_path: Path) -> None:
    nsys = (needs("nsys"), "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none",
            "-o", str(tmp_path / "theirs"))  # fmt: skip
    (tmp_path / "train.py").write_text("print('the script ran')")
    done = run_gpu(
        """
import runpy
sys.argv = ["profiling-lab", "record", "-o", OUT, "train.py"]
runpy.run_module("profiling_lab", run_name="__main__")
""",
        ok=False,
        under=nsys,
    )
    assert "Nsight Systems" in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "the script ran" not in done.stdout


PROTON = "import triton.profiler as proton\n"


def test_proton_before_us_is_named(run_gpu: Any) -> None:
    pytest.importorskip("triton.profiler")
    done = run_gpu(f"{PROTON}proton.start('theirs')\n{REFUSED}proton.finalize()\n")
    text = sentence(done)
    assert "CUPTI is held by" in text and "Triton's Proton is loaded here" in text


def test_after_proton_has_ended_we_record_or_say_who_holds_cupti(run_gpu: Any) -> None:
    pytest.importorskip("triton.profiler")
    done = run_gpu(f"""
{PROTON}
a = torch.randn(256, 256, device="cuda")
proton.start("theirs"); (a @ a).sin(); proton.finalize()
try:
    with profiling_lab.record(OUT) as recorder: (a @ a).sin(); torch.cuda.synchronize()
    assert recorder.summary.kernels >= 2 and recorder.summary.dropped == 0, recorder.summary
    print("recorded")
except profiling_lab.errors.LabError as error: print("refused:", error)
assert torch.isfinite((a @ a).sum())
""")
    print(done.stdout)
    assert "recorded" in done.stdout or "CUPTI is held by" in done.stdout


def test_proton_that_comes_later_does_not_harm_the_recording(run_gpu: Any) -> None:
    pytest.importorskip("triton.profiler")
    done = run_gpu(f"""
{PROTON}
a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
with profiling_lab.record(OUT, flush_period_ms=200) as recorder:
    (a @ a).sin()
    try: proton.start("theirs")
    except Exception as error: print("Proton was refused:", str(error)[:200])
    for _ in range(10): (a @ a).sin()
    torch.cuda.synchronize()
    try: proton.finalize()
    except Exception as error: print("Proton was refused:", str(error)[:200])
    (a @ a).sin(); torch.cuda.synchronize()
print(recorder.summary.kernels, recorder.summary.dropped, recorder.summary.reasons)
assert recorder.summary.kernels >= 24 and recorder.summary.kernels % 12 == 0, recorder.summary
assert recorder.summary.reasons == {{}}, recorder.summary
""")
    print(done.stdout)
