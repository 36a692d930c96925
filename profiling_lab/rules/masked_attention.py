# SPDX-License-Identifier: Apache-2.0
"""Which functions give attention a mask as a tensor? It then computes what the mask leaves out, too.

scaled_dot_product_attention(attn_mask=...) cannot take FlashAttention, which knows no such mask. It takes the
kernels of cuDNN or the memory-efficient ones, which read the mask for every head. Told what a mask means
(is_causal, lengths, a block mask), a kernel skips the pairs that it leaves out.

No kernel's name says whether it reads a mask. But a boolean one is converted to the dtype of the scores in
each call, at the line of the attention: by `where`, in older torch by `masked_fill`. A mask of numbers is
not seen. Small masks, as in decoding, do not count. Which pairs a mask leaves out is in no recording: what is
saved is said for a causal one, half of them. Counted with Nsight Compute, the causal kernels of cuDNN and the
memory-efficient ones compute 0.51 to 0.53 of all pairs, forward and backward (roofline_accuracy.jsonl in
benchmarks/results). In time it is more: on an H200 a causal call, forward and backward, conversion included,
takes 0.41 of a masked one's in the median of seven shapes, 0.32 to 0.55 (masked_attention.jsonl there).
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer, shorter
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import KNOWN, names_tell_little
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.small_grids import blocks_of
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64
from profiling_lab.trace.phases import Phase

SHARE = Threshold("share", "attention with a mask", 0.05, "of the GPU time, from", "as unfused_attention")
LARGE = Threshold("large", "the mask", 2048, "blocks of 512, from", "ours: 1,024 rows and columns")
TAKES_MASKS = r"(?i)(?<![a-z])fmha_cutlass|cudnn\w*sdpa"
CONVERTS = r"where_kernel_impl.*lambda\(bool, |masked_fill_kernel.*, bool\)"
WINS_FRAC = 0.5
REMEDY = (
    "say what the mask means, and attention skips what it leaves out: is_causal=True, nested tensors instead "
    "of padding, FlexAttention with a block mask for others; what is saved is said for a causal mask"
)


def check(view: View) -> RuleResult:
    attention, converts = view.kernels_named(TAKES_MASKS), view.kernels_named(CONVERTS)
    if not (attention.any() and converts.any()):
        return names_tell_little(view) or ()
    blocks, duration, findings = blocks_of(view), view.operations.duration_ns, []
    if np.isinf(blocks[converts]).any():
        return Abstain("the trace does not say how many blocks its kernels have", "`profiling-lab record`")
    rows = _with_mask(view, attention, converts & (blocks >= view[LARGE]))
    for _, mine in grouped(rows, view.function_of_line[view.operation_place[rows]]):
        total_ns, place = int(duration[mine].sum()), view.hottest_line(mine, duration[mine])
        if place is None or total_ns < view[SHARE] * view.gpu_ns:
            continue
        reads, makes = mine[attention[mine]], mine[converts[mine]]
        saved_ns = WINS_FRAC * int(duration[reads].sum()) + int(duration[makes].sum())
        backward = (view.attribution.phase[mine] == Phase.BACKWARD).any()
        findings.append(
            view.finding(
                f"{place.function} gives attention a mask as a tensor: {len(reads):,} kernels compute what "
                f"it leaves out, too, and {len(makes):,} convert it: {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time"
                + ", forward and backward"
                * bool(backward),
                cost_ns=gpu_time(view, mine),
                cost_of="GPU time of attention, and of converting the mask",
                place=place,
                rows=mine,
                weight=duration[mine],
                remedy=REMEDY,
                confidence="low",
                wins_frac=saved_ns / max(total_ns, 1),
                saving=shorter(reads, 1 - WINS_FRAC) | fewer(makes),
            )
        )
    return findings or view.too_few_lines("which function gives attention a mask") or ()


def _with_mask(view: View, attention: Mask, converts: Mask) -> I64:
    """The kernels of attention and of its masks, at the lines where every call converts one."""
    place, known = view.operation_place, view.operation_place >= 0
    forward = known & (view.attribution.phase == Phase.FORWARD)
    calls, masks = (np.bincount(place[m & forward], minlength=view.lines) for m in (attention, converts))
    return np.flatnonzero(known & (attention | converts) & ((calls > 0) & (masks >= calls))[place])


RULE = Rule(
    "masked_attention",
    "Which functions give attention a mask as a tensor?",
    (SHARE, LARGE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    adds=True,
    severity_at_most="medium",
    wins_frac=WINS_FRAC,
)
