# SPDX-License-Identifier: Apache-2.0
"""Traces of AMD's GPUs are told of AMD's tools"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_chrome import event

from profiling_lab.analysis.info import info
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.rules import RULES, Checked, run
from profiling_lab.rules.finding import with_effects
from profiling_lab.trace import Trace
from profiling_lab.trace.platform import in_words_of_jax, in_words_of_rocm

NVIDIA = re.compile(
    r"(?i:cupti|nsys|\bncu\b|nsight|profiling-lab record|tensor core)|cuDNN|\bNCCL\b|CUDA graph|CUDA call|"
    r"CUDA_MODULE|CUDA_LAUNCH"
)
TORCH = re.compile(
    r"(?i:torch|nsys)|non_blocking|num_workers|pin_memory|DataLoader|\bDDP|FSDP|no_sync|profiling-lab record"
)


def trace_of(path: Path, prefix: str, gemm: str) -> Trace:
    """300 launches that the GPU waits for, products, waits and copies."""
    events = []
    for i in range(300):
        t = 100.0 * i
        name = gemm if i % 3 else "elementwise_kernel"
        events += [
            event("cuda_runtime", f"{prefix}LaunchKernel", t, 30, correlation=3 * i),
            event("kernel", name, t + 32, 8, 7, 0, correlation=3 * i, device=0, stream=7),
            event("cuda_runtime", f"{prefix}MemcpyAsync", t + 41, 9, correlation=3 * i + 1),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", t + 52, 6, 7, 0, correlation=3 * i + 1),
            event("cuda_runtime", f"{prefix}DeviceSynchronize", t + 60, 20, correlation=3 * i + 2),
        ]
    path.write_text(json.dumps({"traceEvents": events}))
    return Trace.open(path)


def said(checked: Checked) -> str:
    """All that `check` says of it."""
    findings = with_effects(checked.findings)
    texts = [f"{finding.what} {finding.remedy} {finding.cost_of}" for finding in findings]
    return "\n".join(texts + [f"{abstain.reason} {abstain.to_record}" for _, abstain in checked.abstained])


def test_an_amd_trace_hears_of_its_own_tools(tmp_path: Path) -> None:
    with trace_of(tmp_path / "amd.json", "hip", "Cijk_Ailk_Bljk_SB_MT128x64") as trace:
        text = said(run(trace, RULES))
        assert not NVIDIA.search(text), NVIDIA.findall(text)
        assert "torch.profiler" in text and "HIP graph" in text
        assert "roctracer" in info(trace).method
        for ask in (lambda: lines(trace), lambda: top_kernels(trace, group_by="shape")):
            with pytest.raises(NotEnoughDataError) as refused:
                ask()
            assert not NVIDIA.search(str(refused.value))


def test_an_nvidia_trace_hears_of_its_own(tmp_path: Path) -> None:
    with trace_of(tmp_path / "nvidia.json", "cuda", "volta_sgemm_128x64_nt") as trace:
        text = said(run(trace, RULES))
        assert "CUDA graph" in text and "profiling-lab record" in text and "tensor cores" in text
        assert "CUPTI" in info(trace).method and "nsys" in text


def sentences(repo: Path) -> Iterator[tuple[str, str]]:
    """The constants of the rules that are said: name of the file, and text."""
    for path in sorted((repo / "profiling_lab/rules").glob("*.py")):
        module = importlib.import_module(f"profiling_lab.rules.{path.stem}")
        texts = [value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)]
        texts += getattr(module, "REMEDIES", {}).values()
        yield from ((path.name, t) for t in texts if " " in t and not t.startswith("(?i)"))


def test_remedies_have_words_for_both(repo: Path) -> None:
    """A new remedy in the words of CUDA needs those of ROCm in trace/platform_words.py."""
    told = [(name, in_words_of_rocm(text)) for name, text in sentences(repo)]
    assert not [(name, text) for name, text in told if NVIDIA.search(text)]


def test_remedies_have_words_for_jax(repo: Path) -> None:
    """A remedy that names torch needs a line too, unless its rule looks for code of torch."""
    of_torch = ("data_parallel.py", "ddp_backend.py", "memory_fragmented.py", "memory_workspace.py")
    of_torch += (
        "accumulated.py",
        "long_filters.py",
        "mirrored_spectrum.py",
        "slow_scatter.py",
        "sorted_adds.py",
        "repeated_backward.py",
        "summed_gradients.py",
        "unfolded_norms.py",
        "unused_gradients.py",
    )
    told = [(name, in_words_of_jax(text)) for name, text in sentences(repo) if name not in of_torch]
    assert told and not [(name, text) for name, text in told if TORCH.search(text)]
