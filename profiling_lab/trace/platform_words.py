# SPDX-License-Identifier: Apache-2.0
"""What is said instead of the words for CUDA and torch: patterns, and their replacements, in order.

Recording hints come before terms, and longer patterns before patterns that match a part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Words: TypeAlias = Sequence[tuple[str, str]]

# What rocprofv3 can record itself; the rest is said as for every trace of an AMD GPU.
ROCPROF: Words = (
    (
        r"`profiling-lab record`, `nsys profile [^`]*`, or torch\.profiler with ProfilerActivity\.CUDA",
        "`rocprofv3 --hip-trace`, or torch.profiler with ProfilerActivity.CUDA",
    ),
    (
        r"`profiling-lab record --memory`, `nsys profile --cuda-memory-usage=true`, or torch\.profiler",
        "`rocprofv3 --memory-allocation-trace`, or torch.profiler",
    ),
    (
        r"nsys records them with --trace=cuda, torch\.profiler with ProfilerActivity\.CPU",
        "`rocprofv3 --hip-trace` records them",
    ),
    (
        r"start the recording earlier, before these calls",
        "`rocprofv3 --hip-trace`, from before these calls on",
    ),
    (
        r"steps: prof\.step\(\), or one NVTX range per step",
        "`rocprofv3 --marker-trace`, and one ROCTx range per step",
    ),
    (r"\bNVTX\b", "ROCTx"),
)

# For every trace of an AMD GPU.
ROCM: Words = (
    (r"`profiling-lab record --memory`, `nsys profile --cuda-memory-usage=true`, or ", ""),
    (r"`profiling-lab record --memory`, a snapshot", "a snapshot"),
    (r"`profiling-lab record --memory`", "a snapshot of torch.cuda.memory._dump_snapshot"),
    (
        r"only `profiling-lab record --work` counts it",
        "`rocprof-compute profile --roof-only` draws a roofline of the kernels",
    ),
    (
        r"`profiling-lab record`[;,] (or )?(with )?nsys --python-backtrace\S+( --\S+)*",
        "torch.profiler with with_stack=True",
    ),
    (r"`profiling-lab record`, `nsys profile[^`]*`, or torch\.profiler", "torch.profiler"),
    (r"`profiling-lab record`, nsys from 2021 on, or torch\.profiler", "torch.profiler"),
    (r"nsys and --pytorch=\S+, or torch\.profiler", "torch.profiler"),
    (r"torch\.profiler, or nsys with --pytorch=\S+", "torch.profiler"),
    (r"`nsys profile[^`]*`, or torch\.profiler", "torch.profiler"),
    (
        r"`profiling-lab record --sample-python`, or give nsys --python-sampling=true",
        "torch.profiler with with_stack=True records the stacks of its operators",
    ),
    (r"`profiling-lab record --sample-python`", "a sampling profiler such as py-spy"),
    (
        r"`profiling-lab record`, or give nsys --python-backtrace=\S+ --cudabacktrace=\S+ \([^)]*\)",
        "torch.profiler, profile(with_stack=True)",
    ),
    (
        r"nsys records them with --trace=cuda, torch\.profiler with ProfilerActivity\.CPU",
        "torch.profiler records them with ProfilerActivity.CUDA",
    ),
    (
        r"nsys has them with --trace=cuda,nvtx, exported with --include-blobs=true",
        "torch.profiler notes them with record_shapes=True",
    ),
    (
        r"record --sample-python, or nsys with --python-sampling=true",
        "a sampling profiler such as py-spy shows them",
    ),
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
    (r"CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING"),
    (r"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    (r"\b[Tt]ensor cores\b", "matrix cores"),
    (r"\bcuDNN\b", "MIOpen"),
    (r"\bNCCL\b", "RCCL"),
    (r"\bcuda(Memcpy|Memset|Malloc|Free|StreamWaitEvent)", r"hip\1"),
    (r"(?<![.\w])CUDA(?=$|[ :,.;])", "HIP"),
)

# For programs that XLA compiles. Whatever names torch or its tools needs a line here.
_HLO = "jax.profiler with the HLO of the programs (enable_hlo_proto, on by default)"
XLA: Words = (
    (
        r"`profiling-lab record`, `nsys profile [^`]*`, or torch\.profiler with ProfilerActivity\.CUDA",
        "jax.profiler on a GPU",
    ),
    (r"`profiling-lab record`[;,] (or )?(with )?nsys --python-backtrace\S+( --\S+)*", _HLO),
    (r"`profiling-lab record`, or give nsys --python-backtrace=\S+ --cudabacktrace=\S+ \([^)]*\)", _HLO),
    (r"`profiling-lab record`, nsys from 2021 on, or torch\.profiler", "jax.profiler on an NVIDIA GPU"),
    (r"torch\.profiler, or nsys with --pytorch=\S+", "jax.profiler.TraceAnnotation in each part of the step"),
    (
        r"`profiling-lab record --memory`, `nsys profile --cuda-memory-usage=true`, or torch\.profiler with "
        r"profile_memory=True",
        "jax.profiler on a GPU, with XLA's own allocator",
    ),
    (r"`profiling-lab record --memory`(, a snapshot.*)?", "jax.profiler.save_device_memory_profile"),
    (r"no history of torch's allocator", "no history of the allocator by line"),
    (r"only `profiling-lab record --work` counts it", "XLA counts it: jax.stages.Compiled.cost_analysis()"),
    (r"an export of nsys 2021\.2 or later, or torch\.profiler of torch 1\.9 or later", "a later JAX"),
    (
        r"nsys records them with --trace=cuda, torch\.profiler with ProfilerActivity\.CPU",
        "jax.profiler records them on a GPU",
    ),
    (
        r"nsys has them with --trace=cuda,nvtx, exported with --include-blobs=true",
        "XLA's profiler does not note them",
    ),
    (
        r"steps: prof\.step\(\), or one NVTX range per step",
        "jax.profiler.StepTraceAnnotation around each step",
    ),
    (r"`profiling-lab record`, or nsys \d+", "a run without a profiler, to compare its time"),
    (
        r"record with (nsys and --pytorch=autograd-shapes-nvtx, or )?torch\.profiler with record_shapes=True",
        "XLA's profiler does not note them",
    ),
    (r"so the DataLoader's range is missing too", "so loading of data is not known"),
    (r"no NVTX ranges", "no annotations"),
    (r"\bNVTX range", "annotation"),
    (
        r"a CUDA graph \(torch\.compile\(mode='reduce-overhead'\)(, torch\.cuda\.graph)?\)",
        "command buffers (--xla_gpu_enable_command_buffer)",
    ),
    (r"replay them as a CUDA graph", "run them in command buffers (--xla_gpu_enable_command_buffer)"),
    (r"\(torch\.compile, a custom kernel\)", "(one jax.jit around them, a Pallas kernel)"),
    (r"\(torch\.compile\)", "(one jax.jit around them)"),
    (
        r"fused=True or foreach=True, torch\._foreach_\* in one of your own",
        "one jax.jit around the optimizer's update",
    ),
    (r"fuse them: torch\.compile, or a fused op \([^)]*\)", "fuse them: one jax.jit, or a Pallas kernel"),
    (
        r"in torch, find the tensors whose sizes change,.* drop torch\.cuda\.empty_cache\(\), or set \S+",
        "keep XLA_PYTHON_CLIENT_PREALLOCATE on",
    ),
    (
        r"non_blocking=True needs pinned memory: tensor\.pin_memory\(\), or DataLoader\(pin_memory=True\)",
        "call jax.device_put for the next batch before the current step is waited for",
    ),
    (
        r"pin the host memory \(tensor\.pin_memory\(\), DataLoader\(pin_memory=True\)\), and copy with "
        r"non_blocking=True",
        "put the host's arrays into pinned memory (memory_kind='pinned_host')",
    ),
    (
        r" \(DDP bucket_cap_mb, gradient_as_bucket_view, FSDP prefetch\), send less \(bf16 gradients, "
        r"no_sync while accumulating\)",
        " (--xla_gpu_enable_latency_hiding_scheduler=true), send less (bf16 gradients)",
    ),
    (
        r"make the last bucket small \(DDP's bucket_cap_mb and first_bucket\), reduce in bf16, step the "
        r"optimizer by bucket, or accumulate gradients under no_sync",
        "--xla_gpu_enable_latency_hiding_scheduler=true, reduce in bf16, or accumulate gradients",
    ),
    (
        r"load in the background: (DataLoader\(num_workers=4 or more, [^)]*\)|num_workers, pin_memory, "
        r"prefetch_factor)",
        "load in the background, and call jax.device_put for the next batch early",
    ),
    (
        r"\(torch\.from_numpy\(a\)\.float\(\), dtype=torch\.float32\)",
        "(dtype=jnp.float32, jax_enable_x64 off)",
    ),
    (r", and let torch\.autocast cover whole blocks instead of single operations", ""),
    (
        r"mark changing sizes as dynamic \(torch\.compile\(dynamic=True\)\), or pad batches to one size; "
        r"TORCH_LOGS=recompiles",
        "pad batches to one size; jax_log_compiles",
    ),
    (
        r"copy it with non_blocking=True and read it later",
        "copy it with copy_to_host_async() and read it later",
    ),
    (
        r"copy with non_blocking=True and pinned memory \(see pageable_copy\)",
        "copy with copy_to_host_async()",
    ),
    (
        r"convert model and input once to channels_last: \.to\(memory_format=torch\.channels_last\)",
        "lay out model and input as NHWC",
    ),
    (r", a sharded optimizer \(FSDP\),", ", a sharded optimizer,"),
    (
        r"prefetch the next batch on a side stream: .*",
        "call jax.device_put for the next batch before the current step is waited for",
    ),
    (
        r"torch\.backends\.cudnn\.benchmark = True \(with fixed sizes\), .*",
        "lay out model and input as NHWC, use bfloat16; --xla_gpu_autotune_level chooses the algorithm",
    ),
    (r"cudaMemcpyAsync; in torch non_blocking=True with pinned memory", "jax.device_put, copy_to_host_async"),
    (
        r"torch\.autocast\('cuda', torch\.bfloat16\), or torch\.set_float32\S+ for TF32",
        "bfloat16, or jax.default_matmul_precision('tensorfloat32')",
    ),
    (r"torch\.autocast\('cuda', torch\.float16\) with torch\.amp\.GradScaler", "float16 with scaled losses"),
)
