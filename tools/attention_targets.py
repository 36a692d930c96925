# SPDX-License-Identifier: Apache-2.0
"""The targets of attention, and what the last runs reached: the table of attention's page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

Line = dict[str, Any]
Case = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times one rate is another, and where."""

    value: float
    case: Case

    @property
    def where(self) -> str:
        length = self.case["rows"]
        rows = f"{length // 1024}k" if length % 1024 == 0 else str(length)
        direction = "" if self.case["direction"] == "forward" else " backward"
        dtype = "" if self.case["dtype"] == "bfloat16" else f" {self.case['dtype']}"
        return (
            f"d{self.case['head_dim']} {'causal' if self.case['causal'] else 'full'} {rows}{direction}{dtype}"
        )


def ratios(lines: list[Line], ours: str, other: str, **only: Any) -> list[Ratio]:
    """Of the rates of two providers at the same problems; `only` are values of the case."""
    rates: dict[tuple[Any, ...], dict[str, Line]] = {}
    for line in lines:
        if line["metric"] == "rate" and all(line["case"].get(k) == v for k, v in only.items()):
            rates.setdefault(tuple(sorted(line["case"].items())), {})[line["provider"]] = line
    return [
        Ratio(at[ours]["value"] / at[other]["value"], at[ours]["case"])
        for at in rates.values()
        if ours in at and other in at
    ]


def beside(lines: list[Line], **changes: tuple[Any, Any]) -> list[Ratio]:
    """Of `flash`'s rates where the case has the first value and, all else equal, the second."""
    rates = {tuple(sorted(line["case"].items())): line for line in lines if line["provider"] == "flash"}
    found = []
    for line in rates.values():
        if all(line["case"][name] == new for name, (new, _) in changes.items()):
            base = line["case"] | {name: old for name, (_, old) in changes.items()}
            if other := rates.get(tuple(sorted(base.items()))):
                found.append(Ratio(line["value"] / other["value"], line["case"]))
    return found


def spread(found: list[Ratio], least: float) -> str:
    """Mean and lowest, and what is below `least`."""
    worst = min(found, key=lambda ratio: ratio.value)
    below = sum(round(ratio.value, 3) < least for ratio in found)
    text = f"{geometric_mean(ratio.value for ratio in found):.3f}; lowest {worst.value:.3f} ({worst.where})"
    return f"{text}, {below} of {len(found)} below" if below else text


def verdict(met: bool) -> str:
    return "met" if met else "missed"


def judged(found: list[Ratio], least: float, mean: float | None = None) -> str:
    """Every one and the geometric mean must reach their mark, as printed; a mark without one for the mean may
    be met in the mean alone.
    """
    average = round(geometric_mean(ratio.value for ratio in found), 3)
    everywhere = all(round(ratio.value, 3) >= least for ratio in found)
    if mean is None and not everywhere and average >= least:
        return "met in the mean"
    return verdict(everywhere and average >= (least if mean is None else mean))


def targets(grid: list[Line], suite: Callable[[str], list[Line]], build: list[Line]) -> list[list[str]]:
    """Rows of case, wanted, reached, verdict; a row is left out where its benchmark has no lines."""
    rows: list[list[str]] = []

    def row(case: str, wanted: str, found: list[Ratio], least: float, mean: float | None = None) -> None:
        if found:
            rows.append([case, wanted, spread(found, least), judged(found, least, mean)])

    def cudnn(**only: Any) -> list[Ratio]:
        return ratios(grid, "flash", "sdpa-cudnn", **only)

    def count(case: str, wanted: str, found: list[Ratio]) -> None:
        if found:
            good = sum(ratio.value >= 1 for ratio in found)
            text = f"{good} of {len(found)}; geometric mean {geometric_mean(r.value for r in found):.3f}"
            rows.append([case, wanted, text, verdict(good == len(found))])

    row("forward, 36 points", "1.05 x cuDNN in the geometric mean, 0.97 everywhere",
        cudnn(direction="forward"), 0.97, 1.05)  # fmt: skip
    for causal, length, least in ((False, 8192, 1.08), (True, 8192, 1.12), (True, 2048, 1.08)):
        found = cudnn(direction="forward", head_dim=128, causal=causal, rows=length)
        if found:
            text = f"{found[0].value:.3f}"
            rows.append([f"forward {found[0].where}", f"{least} x cuDNN", text, judged(found, least)])
    row("forward d64", "1.15 x cuDNN", cudnn(direction="forward", head_dim=64), 1.15)
    row("backward, 36 points", "1.05 x cuDNN in the geometric mean, 0.95 everywhere",
        cudnn(direction="backward"), 0.95, 1.05)  # fmt: skip
    row("backward d256", "1.15 x cuDNN", cudnn(direction="backward", head_dim=256), 1.15)
    deterministic = suite("deterministic")
    row("deterministic backward", "1.15 x cuDNN's deterministic one",
        ratios(deterministic, "flash-deterministic", "sdpa-cudnn-deterministic"), 1.15)  # fmt: skip
    grouped = [r for r in beside(suite("gqa"), kv_heads=(8, 64)) if r.case["direction"] == "backward"]
    row("grouped queries, 64 on 8, backward", "0.97 of the same flops without groups", grouped, 0.97)
    varlen = suite("varlen")
    row("variable lengths", "0.97 of a batch of fixed length", ratios(varlen, "flash-varlen", "flash"), 0.97)
    odd = suite("odd")
    row("odd lengths, 2100 and 7800", "0.97 of even ones",
        [*beside(odd, rows=(2100, 2048)), *beside(odd, rows=(7800, 7680))], 0.97)  # fmt: skip
    portable = suite("portable")
    row("sm_80 path", "FlashAttention-2's speed", ratios(portable, "flash-sm80", "sdpa-flash"), 1.0)
    row("CPU from 512 rows on", "the math backend's speed", ratios(suite("cpu"), "flash", "sdpa-math"), 1.0)
    seconds = sum(line["value"] for line in build if line["metric"] == "cpu_time") / 2
    memory = max((line["value"] for line in build if line["metric"] == "peak_memory"), default=0.0)
    if seconds:
        text = f"{seconds / 60:.1f} minutes, {memory / 1e9:.2f} GB"
        met = seconds < 240 and memory < 1.5e9
        rows.append(["build on two cores", "4 minutes, 1.5 GB a compiler", text, verdict(met)])

    for direction in ("forward", "backward"):
        found = ratios(grid, "flash", "flash-attn-4", direction=direction)
        count(f"further target: {direction}", "at least FlashAttention-4 at every point", found)
    product = [line["value"] for line in grid if line["metric"] == "matmul_rate"]
    rate = {
        (line["case"]["direction"], line["case"]["head_dim"], line["case"]["causal"], line["case"]["rows"]):
        line["value"] for line in grid if line["metric"] == "rate" and line["provider"] == "flash"
    }  # fmt: skip
    if product and ("forward", 128, False, 8192) in rate:
        share = rate["forward", 128, False, 8192] / product[0]
        text = "0.95 of the product of two 8192 x 8192 matrices"
        rows.append(["further target: forward d128 full 8k", text, f"{share:.3f}", verdict(share >= 0.95)])
    if ("backward", 256, True, 8192) in rate:
        found_rate = rate["backward", 256, True, 8192]
        rows.append(
            [
                "further target: backward d256 causal 8k",
                "430 TFLOP/s",
                f"{found_rate:.0f}",
                verdict(found_rate >= 430),
            ]
        )
    row("further target: deterministic backward", "0.95 of ours that is not",
        ratios(deterministic, "flash-deterministic", "flash"), 0.95)  # fmt: skip
    return rows
