# SPDX-License-Identifier: Apache-2.0
"""The remedy for each cause of idle time, and its name in one word."""

from __future__ import annotations

from profiling_lab.analysis.gaps.causes import Cause

_OF_HOST_WORK = (
    "move this work to another process, to the GPU or ahead of time, do it for many at once, or less often"
)
REMEDIES = {
    Cause.PROFILER: "none: this is profiler overhead; record less to reduce it",
    Cause.CODE_LOADING: "warm up before you measure; CUDA_MODULE_LOADING=EAGER, or cache compiled kernels",
    Cause.START_UP: "none: it happens once; warm up before you measure, or exclude it from the recording",
    Cause.ALLOCATOR: "allocate once and reuse (see allocation_churn)",
    Cause.WAIT: "synchronise less often, and launch the next work before you synchronise (see sync_calls)",
    Cause.AFTER_WAIT: _OF_HOST_WORK,
    Cause.DATA_LOADING: "load in the background: num_workers, pin_memory, prefetch_factor",
    Cause.LOADING_WORKERS: "more workers, or less work in each: prepare data once, on disk, and split it "
    "among the workers before it is decoded",
    Cause.GIL_WAIT: "move that thread's Python work to another process",
    Cause.GARBAGE_COLLECTION: "gc.freeze() after set-up; collect between steps, and less often",
    Cause.COMPILATION: "compile once: mark changing sizes as dynamic (torch.compile(dynamic=True)), or pad "
    "batches to one size; TORCH_LOGS=recompiles shows the reason",
    Cause.OFF_CPU: "keep a CPU core free for the launching thread: fewer workers, fewer threads "
    "(OMP_NUM_THREADS)",
    Cause.SYSTEM_CALL: "keep file, socket and lock operations off the launching thread",
    Cause.CUDA_CALL: "make this call once, before the loop",
    Cause.HOST_CODE: _OF_HOST_WORK,
    Cause.EVENT_WAIT: "shorten the work before the event, or launch it earlier (see stream_chain)",
}
WORDS = {
    Cause.HOST_CODE: "host_work",
    Cause.AFTER_WAIT: "host_work",
    Cause.GARBAGE_COLLECTION: "garbage_collection",
    Cause.COMPILATION: "recompilation",
    Cause.DATA_LOADING: "dataloader",
    Cause.LOADING_WORKERS: "dataloader",
    Cause.GIL_WAIT: "gil_wait",
    Cause.ALLOCATOR: "allocation_churn",
    Cause.CODE_LOADING: "code_loading",
    Cause.WAIT: "sync_calls",
}

ENDED_BY_A_LAUNCH = (Cause.HOST_CODE, Cause.AFTER_WAIT, Cause.CUDA_CALL)
"""these end with a launch; short ones are launch overhead, which other rules report"""
