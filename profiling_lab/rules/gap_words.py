# SPDX-License-Identifier: Apache-2.0
"""What to do about each cause of idle time, and its name in a word."""

from __future__ import annotations

from profiling_lab.analysis.gaps.causes import Cause

_OF_HOST_WORK = "do it in another process or ahead of time, on the GPU, or less often"
REMEDIES = {
    Cause.PROFILER: "none: that is the recording; record less, and trust the other causes more",
    Cause.CODE_LOADING: "warm up before you measure; CUDA_MODULE_LOADING=EAGER, or keep compiled kernels",
    Cause.START_UP: "none: it is paid once; warm up before you measure, or leave it out of the recording",
    Cause.ALLOCATOR: "allocate once and reuse (see allocation_churn)",
    Cause.WAIT: "wait less often, and launch the next work before you wait (see sync_calls)",
    Cause.AFTER_WAIT: _OF_HOST_WORK,
    Cause.DATA_LOADING: "load in the background: num_workers, pin_memory, prefetch_factor",
    Cause.GIL_WAIT: "move that thread's Python work to a process",
    Cause.GARBAGE_COLLECTION: "gc.freeze() after set-up; collect between steps, and rarely",
    Cause.COMPILATION: "compile once: mark sizes that change as dynamic (torch.compile(dynamic=True)), pad "
    "batches to one size; TORCH_LOGS=recompiles says why",
    Cause.OFF_CPU: "leave the launching thread a CPU: fewer workers, fewer threads (OMP_NUM_THREADS)",
    Cause.SYSTEM_CALL: "keep files, sockets and locks off the thread that launches",
    Cause.CUDA_CALL: "make this call once, before the loop",
    Cause.HOST_CODE: _OF_HOST_WORK,
    Cause.EVENT_WAIT: "make what it waits for shorter or earlier (see stream_chain)",
}
WORDS = {
    Cause.HOST_CODE: "host_work",
    Cause.AFTER_WAIT: "host_work",
    Cause.GARBAGE_COLLECTION: "garbage_collection",
    Cause.COMPILATION: "recompilation",
    Cause.DATA_LOADING: "dataloader",
    Cause.GIL_WAIT: "gil_wait",
    Cause.ALLOCATOR: "allocation_churn",
    Cause.CODE_LOADING: "code_loading",
    Cause.WAIT: "sync_calls",
}

ENDED_BY_A_LAUNCH = (Cause.HOST_CODE, Cause.AFTER_WAIT, Cause.CUDA_CALL)
"""these end with a launch, which is an idle time of its own kind where it is short"""
