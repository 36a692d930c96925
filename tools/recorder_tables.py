# SPDX-License-Identifier: Apache-2.0
"""What recording costs, by program and by kind of call."""

from __future__ import annotations

from results_lines import base, every_line, table

COPY = ", process "  # of several processes of one program: the second and later ones


def recorder_overhead() -> list[str]:
    """All lines of the file: one run of this benchmark measures one program in one way."""
    lines = every_line("recorder_overhead")
    if not lines:
        return []
    found: dict[tuple[str, str], dict[str, float]] = {}
    for line in lines:
        found.setdefault((line["case"]["workload"], line["provider"]), {})[line["metric"]] = line["value"]
    value = {key: metrics for key, metrics in found.items() if "overhead" in metrics}

    def cell(program: str, provider: str) -> str:
        ratio = value.get((program, provider))
        if ratio is None:
            return "-"
        several = "overhead_of_processes" in ratio
        metric = "overhead_of_processes" if several else "overhead"
        low, high = ratio[f"{metric}_low"], ratio[f"{metric}_high"]
        interval = f"{low:.3f} to {high:.3f}" if low < high else "one pair of runs"
        return f"{ratio[metric]:.3f} x ({interval}{', several processes' if several else ''})"

    programs = list(dict.fromkeys(program for program, _ in value))
    providers = list(dict.fromkeys(provider for _, provider in value))
    rows = [(name, *(cell(program, name) for program in programs)) for name in providers]
    left_out = ("CUPTI: ", "profiling-lab record, before")  # parts; an older build
    rows = [row for row in rows if not row[0].startswith(left_out) and COPY not in row[0]]
    rows = [(row[0].replace("nobody listening", "no tool attached"), *row[1:]) for row in rows]
    text = (
        "Step time with the tool over step time without it, with the 95 % interval. `profiling-lab record`, "
        "CUPTI alone and nsys: whole processes, in turns with a plain one. The row `plain, another process` "
        "compares two plain processes: smaller differences mean nothing. `several processes`: four of each "
        "program, the ratio of their means. The other rows: in turns in one process; "
        "`recorder: everything` against its own pauses. `loop` is launch-bound: 3,572 CUDA calls in "
        "32 ms, 43 ms on the machine of the whole processes. `hugging face`: a GPT-2 of 6 layers, 577 calls "
        "in 16 ms; its plain steps on that machine varied by a fifth. "
        f"{base(lines, 'recorder_overhead')}:"
    )
    return [text, "", *table(("", *(f"`{p}`" for p in programs)), rows)]


def recorder_calls() -> list[str]:
    """What CUPTI adds to each operation of one kind, and what our callback takes of a call."""
    lines = every_line("recorder_calls")
    found: dict[str, dict[tuple[str, str], float]] = {}
    for line in lines:
        found.setdefault(line["case"]["workload"], {})[line["provider"], line["metric"]] = line["value"]
    alone, ours, each = "CUPTI's kernel, copy and set records alone", "profiling-lab record", 300
    rows = []
    for kind, value in found.items():
        plain_ns = value["plain", "step_time"] / each
        added_ns = (value[alone, "overhead"] - 1) * plain_ns
        records = {"launches and reads": 2, "events": 0, "waits": 0}.get(kind, 1)
        callback_ns = value[ours, "callback"]
        times = f"{added_ns / records / callback_ns:.1f}" if records else "-"
        recorded_ns = (value[ours, "overhead"] - 1) * plain_ns
        calls = round(value[ours, "calls"] / each)
        rows.append(
            (
                kind,
                f"{plain_ns / 1e3:.2f} us",
                f"{added_ns:,.0f} ns",
                f"{recorded_ns:,.0f} ns",
                str(records),
                f"{callback_ns:.0f} ns, {calls} calls" if calls else "-",
                times,
            )
        )
    header = (
        "operation", "plain", "CUPTI alone adds", "all adds", "records", "our callback, each of",
        "CUPTI, of a record, in callbacks",
    )  # fmt: skip
    text = f"{each} operations of one kind a step, whole processes in turns. {base(lines, 'recorder_calls')}:"
    return [text, "", *table(header, rows)]
