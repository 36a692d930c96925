# SPDX-License-Identifier: Apache-2.0
"""What the rules say about real traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling_lab.rules import RULES, Abstain, Checked, Finding, run
from profiling_lab.rules.finding import with_effects
from profiling_lab.rules.host_waits import other_waits, reads_of_a_value
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace

RECORDED = "profiling_lab/exercises/e17_python_backtrace/recorded"


def checked(path: Path, *, whole: bool = False) -> tuple[Checked, dict[str, list[Finding]], dict[str, str]]:
    """What was found, by rule, and why rules could not tell. Each rule must have exactly one answer."""
    with Trace.open(path) as trace:
        result = run(trace, RULES, whole=whole)
    found: dict[str, list[Finding]] = {}
    for finding in with_effects(result.findings):
        found.setdefault(finding.rule, []).append(finding)
        assert finding.cost_ns >= 0 and finding.evidence and finding.events >= len(finding.evidence)
    abstained = {rule: abstain.reason for rule, abstain in result.abstained}
    assert all(abstain.to_record for _, abstain in result.abstained)
    assert sorted([*found, *result.silent, *abstained]) == sorted(rule.name for rule in RULES)
    return result, found, abstained


def test_our_recording_of_the_demo(repo: Path) -> None:
    result, found, abstained = checked(repo / RECORDED / "demo_h200.sqlite")
    (line,), (kernel,) = found["dominant_line"], found["dominant_kernel"]
    assert (Path(line.place.file).name, line.place.line) == ("model.py", 87)
    assert "heavy_layer_slow_kernel takes 44.2 %" in kernel.what and kernel.place.line == 87
    (item,) = found["implicit_sync"]
    assert item.events == 2 and item.place.line == 59  # float(loss)
    (waits,) = found["sync_calls"]
    assert waits.what.startswith("8 waits for a copy to end"), "x.to(device) of pageable memory"
    (copies,) = found["pageable_copy"]
    assert copies.events == 8 and copies.place.line == 55
    assert [f.rule for f in result.findings[:2]] == ["tensor_cores", "dominant_line"]
    assert [f.rule for f in line.effects] == ["dominant_kernel"], "a kernel at a line is told with the line"
    (products,) = found["tensor_cores"]
    assert products.cost_ns == pytest.approx(40.0e6, rel=0.01), "fp32 without TF32, with attention"
    assert line.per_step_ns == pytest.approx(9.95e6, rel=0.01) and result.steps == 4
    of_memory = {f"memory_{what}" for what in ("full", "growth", "fragmented", "gradients", "workspace")}
    # the recording is older than the text of the lines in a file
    of_text = {
        "unused_results",
        "frozen_network",
        "one_hot",
        "unused_products",
        "joined_products",
        "picked_late",
    }
    assert set(abstained) == {"dataloader", "slow_steps"} | of_text | of_memory
    assert "profiler_overhead" in result.silent, "0.3 µs for each of 1,099 calls"


def test_no_value_of_a_threshold_breaks_a_rule(repo: Path) -> None:
    with Trace.open(repo / RECORDED / "demo_h200.sqlite") as trace:
        view = View(trace)
        for rule in RULES:
            names = [threshold.name for threshold in rule.thresholds]
            for value in (0.0, 1e-9, 1e9, 1e300):
                for chosen in (*([name] for name in names), names):
                    view.settings = dict.fromkeys(chosen, value)
                    verdict = rule.check(view)
                    assert isinstance(verdict, Abstain) or all(finding.events for finding in verdict)


def test_nsys_recording_of_the_demo(repo: Path) -> None:
    _, found, abstained = checked(repo / RECORDED / "nsys_h200.sqlite")
    assert found["dominant_line"][0].place.line == 87 and found["implicit_sync"][0].place.line == 59
    # nsys has no Python stack for launches of the autograd thread: less than half has a line.
    assert "49.4 % of the GPU time has a line" in abstained["tiny_kernels"]
    assert "profiler_overhead" in abstained


def test_two_h100_that_copy(captures: Path) -> None:
    path = captures / "fsdp_inference_2xh100.sqlite"
    result, found, abstained = checked(path, whole=True)
    assert len(found["bound"]) == 2
    for finding in found["bound"]:
        assert "copy-bound (pid 11" in finding.what and "97.0 % of the recording" in finding.what
        assert "ms because the command buffer was full" in finding.what
    # 912 ms of launch calls look like launch overhead; no rule may say so.
    assert not any("launch-bound" in finding.what for finding in result.findings)
    assert {"low_utilisation", "gpu_gaps", "gap_cause"} <= set(result.silent), "the GPUs idle for under 1 %"
    assert [finding.what.split(" ms")[0][-7:] for finding in found["queue_full"]] == ["455.908", "456.062"]
    assert all(f.severity == "low" for f in found["queue_full"]), "the GPU is behind: it loses nothing by it"
    assert all(f.cost_ns < 43e6 for f in found["serial_copy"]), "42 ms of other work hide no second of copies"
    assert (
        len(found["serial_copy"]) == 2
        and "no kernel has the name of a communication kernel" in abstained["communication"]
    )
    with Trace.open(path) as trace:
        view = View(trace)
        # 8 waits of the host; 236 waits of streams for events are none.
        waits = [*reads_of_a_value(view)[1], *other_waits(view)]
        held_ns = (view.calls.end_ns - view.calls.start_ns)[waits]
    assert len(waits) == 8 and held_ns.sum() == 856_929_451
    assert found["implicit_sync"][0].events == 4


def test_small_kernels_are_launch_bound(captures: Path) -> None:
    _, found, abstained = checked(captures / "autograd_nvtx_h200.sqlite", whole=True)
    causes = {finding.what.split(": ")[1]: finding.cost_ns for finding in found["gap_cause"]}
    assert set(causes) == {"host code", "loading GPU code", "inside a CUDA call (mostly cudaLaunchKernel)"}
    assert sum(finding.cost_ns for finding in found["gpu_gaps"]) == pytest.approx(130.6e6, rel=0.01)
    assert "launch-bound: outside of long gaps the GPU idles 93." in found["bound"][0].what
    assert found["bound"][0].cost_ns == pytest.approx(10.4e6, rel=0.02), "130 ms of long gaps are no launches"
    assert "sync_calls" not in found, "the wait of 112 ms was over before the first kernel"
    for finding in found["gap_cause"]:
        assert len({event.row for event in finding.evidence}) == len(finding.evidence), "each operation once"
    assert "recompute" in abstained and "dominant_line" in abstained, "the file has no stacks"


def test_the_dataloader_before_and_not_after(captures: Path) -> None:
    before, after = (
        checked(captures / f"resnet50_num_workers_{workers}.pt.trace.json.gz", whole=True)
        for workers in (0, 4)
    )
    (finding,) = before[1]["dataloader"]
    assert "waited 415.791 ms for its DataLoader in 6 calls" in finding.what
    assert Path(finding.place.file).name == "resnet50_profiler_api.py" and finding.place.line == 42
    assert finding.cost_ns == pytest.approx(287e6, rel=0.01)
    idle = [sum(f.cost_ns for f in result[1].get("low_utilisation", ())) for result in (before, after)]
    assert idle[0] > 4 * idle[1]
    assert "dataloader" in after[0].silent
    loading = [[f for f in result[1]["gap_cause"] if "data loading" in f.what] for result in (before, after)]
    assert loading[0][0].cost_ns == pytest.approx(284e6, rel=0.01) and loading[0][0].place.line == 42
    assert loading[1] == []
    for result in (before, after):
        (products,), (passing,) = result[1]["tensor_cores"], result[1]["memory_bound"]
        assert "matrix multiplications and convolutions without tensor cores, 1,596 kernels" in products.what
        assert "float16" in products.remedy, "a V100 has tensor cores for neither bfloat16 nor TF32"
        assert passing.cost_ns == pytest.approx(186e6, rel=0.01), (
            "192 with those on a few SMs, 188 with those that end as soon as they have begun"
        )
    # Copies of pageable memory are named in both, with the line that makes them.
    for result in (before, after):
        assert [(f.events, f.place.line) for f in result[1]["pageable_copy"]] == [(12, 44)]
