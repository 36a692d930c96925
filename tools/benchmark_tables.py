# SPDX-License-Identifier: Apache-2.0
"""Write the figures of README.md and some pages of docs from benchmarks/results: none is typed by hand.

python tools/benchmark_tables.py            # rewrites every block between its two marks
python tools/benchmark_tables.py --check    # exit code 1 if a block is not what the results say
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from os.path import relpath
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from recorder_tables import recorder_calls, recorder_overhead
from results_lines import REPO, RESULTS, Line, base, every_line, newest_run, table

_DOCS = "benchmarks diagnosis guide/interpreting serving analysis/energy analysis/mending "
_DOCS += "architecture/many_ranks notebook/recorder"
PAGES = (REPO / "README.md", *(REPO / "docs" / f"{page}.md" for page in _DOCS.split()))
_BLOCK = re.compile(r"<!-- figures: (?P<name>\w+) -->\n.*?<!-- end of figures -->\n", re.DOTALL)


def heavy_layer_step() -> list[str]:
    lines = newest_run("heavy_layer_step")
    value = {(line["provider"], line["metric"]): line["value"] for line in lines}
    rows = [
        (
            f"`{name}`",
            f"{value[name, 'step_time'] / 1e6:.2f} ms",
            f"{value[name, 'kernels']:,.0f}",
            f"{value[name, 'heavy_share']:.1%}",
            f"{value[name, 'attributed']:.1%}",
        )
        for name in ("slow", "loop", "fast")
    ]
    text = f"The demo's training step with each HeavyLayer. {base(lines, 'heavy_layer_step')}:"
    header = ("HeavyLayer", "step", "kernels a step", "its share of GPU time", "GPU time with a line")
    return [text, "", *table(header, rows)]


def means(lines: list[Line], key: str, name: str, digits: int) -> list[str]:
    """A table of geometric means: a row per value of case[key] and direction, a column per provider."""
    groups: dict[tuple[Any, str, str], list[float]] = {}
    for line in lines:
        case = line["case"]
        groups.setdefault((case[key], case["direction"], line["provider"]), []).append(line["value"])
    providers = list(dict.fromkeys(line["provider"] for line in lines))
    rows = []
    for value in dict.fromkeys(line["case"][key] for line in lines):
        for direction in ("forward", "backward"):
            found = (groups.get((value, direction, provider)) for provider in providers)
            cells = (f"{geometric_mean(values):.{digits}f}" if values else "-" for values in found)
            rows.append((f"{name}{value} {direction}", *cells))
    return table(("", *providers), rows)


def layer_norm_gelu() -> list[str]:
    lines = [line for line in newest_run("layer_norm_gelu") if line["metric"] == "share_of_copy"]
    if not lines:
        return []
    widths = sorted({line["case"]["d"] for line in lines})
    text = (
        f"`layer_norm_gelu`, share of the copy rate of the same run, geometric mean over d = "
        f"{', '.join(map(str, widths))}. {base(lines, 'layer_norm_gelu')}:"
    )
    return [text, "", *means(lines, "dtype", "", digits=2)]


def attention() -> list[str]:
    lines = [line for line in newest_run("attention") if line["metric"] == "rate"]
    if not lines:
        return []
    lengths = sorted({line["case"]["rows"] for line in lines})
    text = (
        f"`flash_attention`, bf16 TFLOP/s, geometric mean over causal or not and s = "
        f"{', '.join(map(str, lengths))}. {base(lines, 'attention')}:"
    )
    return [text, "", *means(lines, "head_dim", "head_dim ", digits=0)]


def analysis_throughput() -> list[str]:
    """Whole processes over large files, and over the largest that peers took: the newest figure of each."""
    lines = every_line("analysis_throughput")
    if not lines:
        return []
    newest: dict[tuple[str, str, int], dict[str, dict[str, float]]] = {}
    machine: dict[tuple[str, str, int], str] = {}
    for line in lines:
        case = line["case"]
        if not case.get("packed") and case.get("form") != "recorder":
            at = (case["file"], case["question"], case["events"])
            newest.setdefault(at, {}).setdefault(line["provider"], {})[line["metric"]] = line["value"]
            machine[at] = f"{case.get('cpu', '')} {line['date'][:10]}".lstrip()
    by_peers = [
        at for at, providers in newest.items() if len(providers.keys() - {"profiling-lab", "msgspec"})
    ]
    largest = {at[:2]: at[2] for at in sorted(by_peers)}
    rows = []
    for (file, question, events), providers in sorted(newest.items()):
        if events < 5e6 and largest.get((file, question)) != events:
            continue
        ours = [name for name in providers if name.startswith("profiling-lab")]
        others = [f"{name} {value['time']:.1f} s{_off(value)}" for name, value in providers.items()
                  if name not in ours]  # fmt: skip
        for name in ours:
            time, memory = providers[name]["time"], providers[name]["peak_memory"]
            command = f"`{question}{name.removeprefix('profiling-lab')}`"
            rows.append((command, file, f"{events / 1e6:.1f}", f"{time:.1f} s", f"{memory / 1e9:.1f} GB",
                         "; ".join(others) or "-", machine[file, question, events]))  # fmt: skip
    text = "Whole processes on two cores ([lines](results:analysis_throughput.jsonl)). The peers compute "
    text += "times by kernel from the same file; pandas also by line:"
    return [text, "", *table(("command", "file", "million events", "time", "memory", "peers", "on"), rows)]


def many_ranks() -> list[str]:
    """The newest figure of each job; below it what another rank costs, and what follows for 10,000."""
    lines = every_line("many_ranks")
    if not lines:
        return []
    newest: dict[tuple[int, int, str], dict[str, float]] = {}
    for line in lines:
        at = tuple(line["case"][what] for what in ("events_per_rank", "ranks", "how"))
        newest.setdefault(at, {})[line["metric"]] = line["value"]
    rows = [
        (f"{ranks:,}", f"{events:,}", "Dask" if how == "dask" else "processes", f"{found['time']:,.0f} s",
         f"{found['cpu_time']:,.0f} s", f"{found['peak_memory'] / 1e6:,.0f} MB",
         f"{found['peak_memory_of_a_worker'] / 1e6:,.0f} MB")
        for (events, ranks, how), found in sorted(newest.items())
    ]  # fmt: skip
    small, large = min(newest)[0], max(newest)[0]
    small_s, dask_s = (_of_another(newest, small, how, "cpu_time")[-1][1] for how in ("jobs", "dask"))
    large_s = _of_another(newest, large, "dask", "cpu_time")
    each_s = ", ".join(f"{each:.1f} s {between}" for between, each in large_s)
    kinds = ("peak_memory", "peak_memory_of_a_worker")
    command, worker = (_of_another(newest, large, "dask", kind)[-1][1] / 1e6 for kind in kinds)
    file_bytes = max(line["case"]["file_bytes"] for line in lines)
    dates = ", ".join(sorted({line["date"][:10] for line in lines}))
    text = (
        f"Two workers on two cores ({lines[-1]['gpu']}, {dates}, other work on the machine, files in memory, "
        "[lines](results:many_ranks.jsonl)):"
    )
    header = ("ranks", "events each", "workers", "time", "processor time", "memory", "of a worker")
    follows = [
        f"- Another rank of {small:,} events costs {small_s * 1e3:.0f} ms of a processor, "
        f"{dask_s * 1e3:.0f} ms with Dask.",
        f"- Another rank of {large:,} events ({file_bytes / 1e6:.0f} MB) costs, in processor time, {each_s}. "
        f"Between the last two it took the command {command:.2f} MB and each worker {worker:.2f} MB.",
        f"- Extrapolated, not run: 10,000 such ranks are {10_000 * file_bytes / 1e9:,.0f} GB of files and "
        f"{10_000 * large_s[-1][1] / 3600:.1f} hours of a processor.",
    ]
    return [text, "", *table(header, rows), "", *follows]


def _of_another(
    newest: dict[tuple[int, int, str], dict[str, float]], events: int, how: str, metric: str
) -> list[tuple[str, float]]:
    """What one more rank costs between a job and the next larger one. Up to 16 ranks are followed for the
    path, so jobs have at least 16."""
    mine = sorted((ranks, found[metric]) for (many, ranks, by), found in newest.items()
                  if (many, by) == (events, how) and ranks >= 16)  # fmt: skip
    return [
        (f"from {few} to {many:,} ranks", (more - less) / (many - few))
        for (few, less), (many, more) in pairwise(mine)
    ]


def _off(value: dict[str, float]) -> str:
    off = value.get("answer_off", 0.0)
    return f" (its answer {off:.1%} off)" if off > 1e-3 else ""


def diagnosis() -> list[str]:
    """Each run scores the same recordings with `check` as it was then."""
    lines = [line for line in every_line("diagnosis") if line["provider"] == "profiling-lab check"]
    if not lines:
        return []
    rows = []
    for run in dict.fromkeys(line["run"] for line in lines):
        of_run = [line for line in lines if line["run"] == run]
        halves = [
            _score([each for each in of_run if each["case"]["half"] == half]) for half in ("open", "held")
        ]
        rows.append((of_run[0]["git"][:7], *(one for both in zip(*halves, strict=True) for one in both)))
    told = ("cause and line first", "cause first", "gain within 1.5", "false alarms, healthy")
    header = (
        "at",
        *(f"{what}: open" if half == "open" else half for what in told for half in ("open", "held")),
    )
    return [f"{base(lines, 'diagnosis')}:", "", *table(header, rows)]


def _score(lines: list[Line]) -> list[str]:
    answers: dict[str, dict[str, float]] = {}
    for line in lines:
        if line["case"]["counts"]:
            answers.setdefault(line["case"]["program"], {})[line["metric"]] = line["value"]
    planted = [each for each in answers.values() if "cause" in each]
    columns = [
        [each["cause"] * each["line"] for each in planted],
        [each["cause"] for each in planted],
        [each["gain"] for each in planted if "gain" in each],
        [each["false_alarm"] for each in answers.values() if "false_alarm" in each],
    ]
    return [f"{sum(column):.0f} of {len(column)}" for column in columns]


def ranks() -> list[str]:
    """The newest answer of each tool to each golden case."""
    lines, ours = every_line("ranks"), "profiling-lab ranks"
    if not lines:
        return ["No job of real GPUs was mended yet."]
    answers: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for line in lines:
        case = line["case"]
        key = (case["program"], case["delay"], case.get("ranks", 2))  # that of peers was not noted
        found = answers.setdefault(key, {}).setdefault(line["provider"], {})
        if found.get("run", line["run"]) != line["run"]:
            found.clear()
        found |= {"run": line["run"], "said": case["said"], line["metric"]: line["value"]}
    peers = sorted({line["provider"] for line in lines} - {ours})
    rows = []
    for (program, delay, gpus), by_tool in answers.items():
        mine = by_tool.get(ours, {})
        right = all(mine.get(mark, 1.0) for mark in ("rank", "line", "cause", "verdict"))
        ms = (f"{mine[name]:.1f} ms" if name in mine else "-" for name in ("predicted", "measured"))
        name = f"`{program}`" + f" {delay}" * (delay not in ("", "delay"))
        said = ("yes" if right else "**no**", mine.get("said", "-"), *ms)
        rows.append(
            (name, str(gpus), *said, *(_marks(by_tool.get(peer, {}), "rank", "line") for peer in peers))
        )
    of_peers = (f"{peer}: rank, line" for peer in peers)
    header = ("job", "GPUs", "right", "`ranks` says", "would save", "mending saved", *of_peers)
    return [
        f"{base([line for line in lines if line['provider'] == ours], 'ranks')}:",
        "",
        *table(header, rows),
    ]


def _marks(answer: dict[str, Any], *names: str) -> str:
    return ", ".join("-" if name not in answer else "yes" if answer[name] else "no" for name in names)


def build() -> list[str]:
    """The times of each command on each kind of machine on the last day on which it was measured."""
    rows = []
    for lines in _build_times().values():
        case = lines[-1]["case"]
        rows.append(
            (
                f"`{case['command']}`",
                f"{case['cores']}",
                case.get("architectures", "none compiled"),
                _minutes(lines),
                lines[-1]["date"][:10],
            )
        )
    header = ("command", "cores", "CUDA kernels for", "time", "date")
    return [
        "On an H200 machine and on one without a GPU ([lines](results:build.jsonl)):",
        "",
        *table(header, rows),
    ]


def build_time() -> list[str]:
    times = _build_times()
    with_gpu = _minutes(times["pip install .", 16])
    without, tests = (
        _minutes(times["pip install . && profiling-lab demo", 2]),
        _minutes(times["pytest -n auto", 2]),
    )
    return [
        f"Building takes {with_gpu} on 16 cores for one GPU. On 2 cores, without a GPU, the first command",
        f"takes {without} and the tests take {tests} with `-n auto` ([lines](results:build.jsonl)).",
    ]


def _build_times() -> dict[tuple[str, int], list[Line]]:
    """By command and cores, those of the last day."""
    found: dict[tuple[str, int], list[Line]] = {}
    for line in every_line("build"):
        if line["metric"] == "time":
            found.setdefault((line["case"]["command"], line["case"]["cores"]), []).append(line)
    return {
        key: [each for each in lines if each["date"][:10] == lines[-1]["date"][:10]]
        for key, lines in found.items()
    }


def _minutes(lines: list[Line]) -> str:
    """The shortest and the longest: machines of one kind differ."""
    short, long = (round(find(line["value"] for line in lines)) for find in (min, max))
    if long < 120:
        return f"{short} to {long} s" if short < long else f"{long} s"
    shortest, longest = (f"{seconds // 60}:{seconds % 60:02d}" for seconds in (short, long))
    return f"{shortest} to {longest} min" if short < long else f"{longest} min"


def ops() -> list[str]:
    """How many times a peer's speed, in the geometric mean over the sizes of the benchmark."""

    def ratio(name: str, metric: str, ours: str, peers: tuple[str, ...], **only: Any) -> str:
        """Beside the best of the peers at each size."""
        found: dict[str, dict[str, float]] = {}
        for line in newest_run(name):
            case = line["case"]
            if line["metric"] == metric and all(case.get(key) == value for key, value in only.items()):
                found.setdefault(json.dumps(case, sort_keys=True), {})[line["provider"]] = line["value"]
        over = [at[ours] / max(at[p] for p in peers if p in at) for at in found.values() if ours in at]
        return f"{geometric_mean(over):.2f} x"

    def both(*case: Any, **only: Any) -> str:
        return " / ".join(ratio(*case, direction=d, **only) for d in ("forward", "backward"))

    peers = ("eager", "compile default", "liger + gelu")
    step = {
        at["provider"]: at["value"] for at in newest_run("heavy_layer_step") if at["metric"] == "step_time"
    }
    rows = [
        (_op("flash_attention", "attention"), "exact; varlen, caches, block masks",
         f"{both('attention', 'rate', 'flash', ('sdpa-cudnn',))} cuDNN"),
        (_op("layer_norm_gelu", "layer_norm_gelu"), "LayerNorm and GELU",
         f"{both('layer_norm_gelu', 'share_of_copy', 'ours', peers, dtype='bfloat16')} eager or compile"),
        (_op("heavy_layer", "heavy_layer"), "`slow`, `loop` and `fast`",
         f"the step: {step['slow'] / 1e6:.1f} ms `slow`, {step['fast'] / 1e6:.1f} `fast`"),
        (_op("ladder_attention", "ladder_attention"), "attention, step by step", "to learn from"),
    ]  # fmt: skip
    return table(("op", "what", "speed, forward / backward"), rows)


def occupancy_sweep() -> list[str]:
    lines = newest_run("occupancy_sweep")
    rates = [line for line in lines if line["metric"] == "rate"]
    points = sorted({line["case"]["theoretical_occupancy_pct"] for line in rates})
    rows = []
    for name in dict.fromkeys(line["case"]["exercise"] for line in rates):
        of_kernel = [line for line in rates if line["case"]["exercise"] == name]
        value = {line["case"]["theoretical_occupancy_pct"]: line["value"] for line in of_kernel}
        rows.append((f"`{name}`", *(f"{value[point] / 1e3:.2f}" for point in points)))
    header = ("TB/s at an occupancy of", *(f"{point:g} %" for point in points))
    return [f"{base(lines, 'occupancy_sweep')}:", "", *table(header, rows)]


def serving_loop() -> list[str]:
    lines, rows = every_line("serving_loop"), []
    for case in dict.fromkeys((line["case"]["prompt"], line["case"]["sequences"]) for line in lines):
        found = {
            (line["provider"], line["case"].get("phase"), line["metric"]): line["value"]
            for line in lines
            if (line["case"]["prompt"], line["case"]["sequences"]) == case
        }
        prompts = [found[name, "prompts", "time"] / 1e6 for name in ("sdpa", "ours")]
        tokens = [found[name, None, "tokens_per_second"] for name in ("sdpa", "ours")]
        rows.append(
            (*map(str, case), *(f"{ms:.1f} ms" for ms in prompts), f"{prompts[0] / prompts[1]:.2f}",
             *(f"{rate:,.0f}" for rate in tokens), f"{tokens[1] / tokens[0]:.2f}")
        )  # fmt: skip
    header = (
        "longest prompt",
        "sequences",
        "prompts, SDPA",
        "ours",
        "times as fast",
        "tokens/s, SDPA",
        "ours",
        "x",
    )
    return [f"{base(lines, 'serving_loop')}:", "", *table(header, rows)]


def energy() -> list[str]:
    """The last run that told lines: its phases."""
    lines = newest_run("energy")
    rows = []
    for phase in dict.fromkeys(line["case"]["phase"] for line in lines if "phase" in line["case"]):
        mine = [line for line in lines if line["case"].get("phase") == phase]
        watts = {(line["provider"].split()[0], line["metric"]): line["value"] for line in mine}
        told = f"{watts['profiling-lab', 'power']:.1f} +/- {watts['profiling-lab', 'error']:.1f} W"
        rows.append((f"`{phase}`", f"{watts['counter,', 'power']:.1f} W", told))
    (held,) = (line for line in lines if line["metric"] == "repetitions_held")
    of, seconds = held["case"]["repetitions"], held["case"]["seconds"]
    text = f"{base(lines, 'energy')}. Every error bar held in {held['value']} of {of} repetitions of "
    text += f"{seconds:g} s:"
    return [
        text,
        "",
        *table(("line", "alone, by the counter", "in the mix, median of the repetitions"), rows),
    ]


def _op(name: str, folder: str) -> str:
    return f"[`{name}`](csrc/ops/{folder}/README.md)"


BLOCKS: dict[str, Callable[[], list[str]]] = {
    block.__name__: block
    for block in (
        build,
        build_time,
        ops,
        heavy_layer_step,
        recorder_overhead,
        recorder_calls,
        layer_norm_gelu,
        attention,
        analysis_throughput,
        many_ranks,
        ranks,
        diagnosis,
        occupancy_sweep,
        serving_loop,
        energy,
    )
}


def filled(page: Path) -> str:
    """The page with each of its blocks as the results say it today."""

    def block(found: re.Match[str]) -> str:
        text = "\n".join(BLOCKS[found["name"]]()).replace("(results:", f"({relpath(RESULTS, page.parent)}/")
        return f"<!-- figures: {found['name']} -->\n{text}\n<!-- end of figures -->\n"

    return _BLOCK.sub(block, page.read_text())


def main() -> int:
    now = {page: filled(page) for page in PAGES}
    stale = [page for page, text in now.items() if page.read_text() != text]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{page.relative_to(REPO)}\n" for page in stale)
        return int(bool(stale))
    for page in stale:
        page.write_text(now[page])
    return 0


if __name__ == "__main__":
    sys.exit(main())
