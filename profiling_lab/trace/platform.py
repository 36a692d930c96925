# SPDX-License-Identifier: Apache-2.0
"""Say in the words of a trace's own platform how to record what is missing, and what to do.

Traces of AMD GPUs have no CUPTI, nsys or ncu. What a trace of rocprofv3 or of JAX lacks is recorded with
these, and a JAX program has no use for an option of torch.
"""

from __future__ import annotations

import re

from profiling_lab.trace.platform_words import ROCM, ROCPROF, XLA, Words
from profiling_lab.trace.source import Tables

ROCM_METHOD = "software (activity records of roctracer or rocprofiler)"
# hipLaunchKernel, hipMemcpyAsync; kernels of Tensile and of the libraries that are built with it.
_HIP_CALL = re.compile(r"^hip[A-Z]")
_ROCM_KERNEL = re.compile(r"^Cijk_|rocprim::|ck::tensor_operation|__amd_rocclr_|^miopen", re.IGNORECASE)
_ROCM_GPU = re.compile(r"AMD|Instinct|Radeon|^gfx\d", re.IGNORECASE)

_BY_RECORDER: dict[str, Words] = {"rocprofv3": ROCPROF, "XLA": XLA}


def is_rocm(tables: Tables) -> bool:
    """Whether the GPUs are AMD's, by the recorder, or the names of calls, kernels and GPUs."""
    if tables.recorder == "rocprofv3":
        return True
    if any(_HIP_CALL.search(name) for name in tables.calls.names):
        return True
    if any(_ROCM_KERNEL.search(name) for name in tables.operations.names):
        return True
    return any(_ROCM_GPU.search(gpu.name) for gpu in tables.gpus)


def in_words_of_rocm(text: str) -> str:
    """A sentence about CUDA, rewritten for ROCm."""
    return replaced(text, ROCM)


def in_words_of_jax(text: str) -> str:
    """A sentence about torch and its tools, rewritten for a program of JAX."""
    return replaced(text, XLA)


def words_of(tables: Tables) -> Words:
    """What is said instead of CUDA's words and its tools', for the recorder and the GPUs of this trace."""
    return (*_BY_RECORDER.get(tables.recorder, ()), *(ROCM if is_rocm(tables) else ()))


def in_words_of(tables: Tables, text: str) -> str:
    """A sentence about CUDA and its tools, rewritten for the recorder and the GPUs of this trace."""
    return replaced(text, words_of(tables))


def replaced(text: str, words: Words) -> str:
    for pattern, other in words:
        text = re.sub(pattern, other, text)
    return text
