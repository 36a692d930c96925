# SPDX-License-Identifier: Apache-2.0
"""Replace CUDA terms by ROCm terms for traces of AMD GPUs, which have no CUPTI, nsys or ncu."""

from __future__ import annotations

import re

from profiling_lab.trace.source import Tables

ROCM_METHOD = "software (activity records of roctracer or rocprofiler)"
# hipLaunchKernel, hipMemcpyAsync; kernels of Tensile and of the libraries that are built with it.
_HIP_CALL = re.compile(r"^hip[A-Z]")
_ROCM_KERNEL = re.compile(r"^Cijk_|rocprim::|ck::tensor_operation|__amd_rocclr_|^miopen", re.IGNORECASE)
_ROCM_GPU = re.compile(r"AMD|Instinct|Radeon|^gfx\d", re.IGNORECASE)

# Recording hints, then terms. Longer patterns come before patterns that match a part of them.
_WORDS = (
    (
        r"`profiling-lab record`[;,] (or )?(with )?nsys --python-backtrace\S+( --\S+)*",
        "torch.profiler with with_stack=True",
    ),
    (r"`profiling-lab record`, `nsys profile[^`]*`, or torch\.profiler", "torch.profiler"),
    (r"`profiling-lab record`, nsys from 2021 on, or torch\.profiler", "torch.profiler"),
    (r"torch\.profiler, or nsys with --pytorch=\S+", "torch.profiler"),
    (r"`nsys profile[^`]*`, or torch\.profiler", "torch.profiler"),
    (
        r"an export of nsys 2021\.2 or later, or torch\.profiler[^,;.]*( of torch 1\.9 or "
        r"later)?",
        "torch.profiler",
    ),
    (r"`profiling-lab record`, or nsys \d+", "`rocprofv3`, and a run without a profiler"),
    (r"`ncu` with the metric \S+", "the counters of `rocprof-compute profile`"),
    (r"\(cuDNN, FlashAttention-3\)", "(AOTriton, Composable Kernel)"),
    (r"CUDNN_LOGLEVEL_DBG", "MIOPEN_LOG_LEVEL=6"),
    (r"CUDA_MODULE_LOADING=EAGER", "HIP_ENABLE_DEFERRED_LOADING=0"),
    (r"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    (r"\b[Tt]ensor cores\b", "matrix cores"),
    (r"\bcuDNN\b", "MIOpen"),
    (r"\bNCCL\b", "RCCL"),
    (r"\bcuda(Memcpy|Memset|Malloc|Free|StreamWaitEvent)", r"hip\1"),
    (r"(?<![.\w])CUDA(?=$|[ :,.;])", "HIP"),
)
_PATTERNS = tuple((re.compile(pattern), words) for pattern, words in _WORDS)


def is_rocm(tables: Tables) -> bool:
    """Whether the GPUs are AMD's, by the names of calls, kernels and GPUs."""
    if any(_HIP_CALL.search(name) for name in tables.calls.names):
        return True
    if any(_ROCM_KERNEL.search(name) for name in tables.operations.names):
        return True
    return any(_ROCM_GPU.search(gpu.name) for gpu in tables.gpus)


def in_words_of_rocm(text: str) -> str:
    """A sentence about CUDA, rewritten for ROCm."""
    for pattern, words in _PATTERNS:
        text = pattern.sub(words, text)
    return text
