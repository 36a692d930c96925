# SPDX-License-Identifier: Apache-2.0
"""Write the figures and charts of the attention ops' pages from benchmarks/results: none is typed by hand.

python tools/attention_numbers.py            # rewrites the blocks between the marks
python tools/attention_numbers.py --check    # exit code 1 if a block is not what the results say
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from os.path import relpath
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from attention_targets import targets

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"
BEGIN, END = "<!-- figures: tools/attention_numbers.py -->", "<!-- end of figures -->"
BASE = "sdpa-cudnn"

Line = dict[str, Any]


def lines_of(name: str) -> list[Line]:
    path = RESULTS / f"{name}.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def newest(lines: list[Line]) -> list[Line]:
    """The lines of the last run among them."""
    return [line for line in lines if line["run"] == lines[-1]["run"]]


def suite(*names: str) -> list[Line]:
    """The rates of these suites, of the last run of each shape, causal or not and all providers together: a
    kernel that is changed is measured anew, and what is compared comes from one run.
    """
    lines = [line for line in lines_of("attention_suites") if line["case"].get("suite") in names]
    last = {shape_of(line): line["run"] for line in lines}
    found = [line for line in lines if line["metric"] == "rate" and line["run"] == last[shape_of(line)]]
    return sorted(found, key=lambda line: line["case"]["direction"] != "forward")


def shape_of(line: Line) -> tuple[Any, ...]:
    return tuple((k, v) for k, v in sorted(line["case"].items()) if k != "causal" and v is not None)


def told(lines: list[Line], name: str) -> str:
    one = lines[0]
    where = ", ".join(
        f"{what} {one[key]}" if what else one[key]
        for what, key in (("", "gpu"), ("driver", "driver"), ("torch", "torch"), ("cuDNN", "cudnn"))
        if one[key] is not None
    )
    dates, commits = (
        ", ".join(dict.fromkeys(found))
        for found in ((line["date"][:10] for line in lines), (line["git"] for line in lines))
    )
    return f"{where}, {dates}, commit {commits} ([lines](results:{name}.jsonl))"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def mask_of(case: dict[str, Any]) -> str:
    return "causal" if case["causal"] else "full"


def grid() -> list[str]:
    """Every point of the grid: our rate, and how many times cuDNN's that is."""
    run = newest(lines_of("attention"))
    lines = [line for line in run if line["metric"] == "rate"]
    product = [line["value"] for line in run if line["metric"] == "matmul_rate"]
    rates: dict[tuple[str, int, str], dict[int, dict[str, float]]] = {}
    for line in lines:
        case = line["case"]
        at = rates.setdefault((case["direction"], case["head_dim"], mask_of(case)), {})
        at.setdefault(case["rows"], {})[line["provider"]] = line["value"]
    lengths = sorted({line["case"]["rows"] for line in lines})
    peers = [p for p in dict.fromkeys(line["provider"] for line in lines) if p != "flash"]
    out = [
        f"bf16, TFLOP/s of `flash` and, in brackets, its ratio to `{BASE}`; batch x rows = 16384, "
        f"heads x head_dim = 2048. {told(lines, 'attention')}:",
        "",
    ]
    rows = []
    for (direction, dim, mask), points in sorted(rates.items(), key=lambda item: item[0][0] != "forward"):
        cells = []
        for length in lengths:
            at = points.get(length, {})
            ours, base = at.get("flash"), at.get(BASE)
            cells.append("-" if ours is None else f"{ours:.0f}" + (f" ({ours / base:.2f})" if base else ""))
        rows.append([f"{direction} d{dim} {mask}", *cells])
    out += table(["", *map(str, lengths)], rows)
    if product:
        out += ["", f"The product of two 8192 x 8192 matrices in the same run: {product[0]:.0f} TFLOP/s."]
    ratios = []
    for direction in ("forward", "backward"):
        for peer in peers:
            found = [
                at["flash"] / at[peer]
                for (where, _, _), points in rates.items()
                for at in points.values()
                if where == direction and "flash" in at and peer in at
            ]
            if found:
                ratios.append([direction, f"`{peer}`", *map(lambda v: f"{v:.2f}", (geometric_mean(found),
                               min(found), max(found))), str(len(found))])  # fmt: skip
    out += ["", "`flash` as a multiple of the others:", ""]
    return out + table(["", "over", "geometric mean", "lowest", "highest", "points"], ratios)


def means(
    lines: list[Line], label: Callable[[dict[str, Any]], str], digits: int = 0
) -> tuple[list[str], list[list[str]]]:
    """Geometric means over cases with the same `label`: a row per label, a column per provider."""
    groups: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        groups.setdefault(label(line["case"]), {}).setdefault(line["provider"], []).append(line["value"])
    names = list(dict.fromkeys(line["provider"] for line in lines))
    rows = [
        [row, *(f"{geometric_mean(found[n]):.{digits}f}" if n in found else "-" for n in names)]
        for row, found in groups.items()
    ]
    return ["", *(f"`{name}`" for name in names)], rows


def shape(case: dict[str, Any]) -> str:
    heads = f"{case['heads']} heads"
    if case["heads"] != case["kv_heads"]:
        heads += f" on {case['kv_heads']}"
    return f"d{case['head_dim']} {case['direction']}, {heads}, s = {case['rows']}"


def by_dim(case: dict[str, Any]) -> str:
    values = f" on {case['head_dim_v']}" if case.get("head_dim_v") else ""
    return f"d{case['head_dim']}{values} {case['direction']}"


def by_dim_and_mask(case: dict[str, Any]) -> str:
    return f"{by_dim(case)} {mask_of(case)}"


def by_length(lines: list[Line], other: str, label: Callable[[dict[str, Any]], str]) -> list[str]:
    """A row per label, a column per length: `flash`, and in brackets how many times `other` that is."""
    lengths = sorted({line["case"]["rows"] for line in lines})
    groups: dict[str, dict[int, dict[str, list[float]]]] = {}
    for line in lines:
        at = groups.setdefault(label(line["case"]), {}).setdefault(line["case"]["rows"], {})
        at.setdefault(line["provider"], []).append(line["value"])
    rows = []
    for row, points in groups.items():
        means = {n: {who: geometric_mean(v) for who, v in found.items()} for n, found in points.items()}
        digits = 0 if max(of["flash"] for of in means.values()) >= 10 else 3
        cells = [
            f"{means[n]['flash']:.{digits}f} ({means[n]['flash'] / means[n][other]:.2f})"
            if {"flash", other} <= set(means.get(n, ()))
            else ""
            for n in lengths
        ]
        rows.append([row, *cells])
    return table(["", *map(str, lengths)], rows)


def by_dtype(case: dict[str, Any]) -> str:
    return f"{case['dtype']} {by_dim(case)}"


def errors() -> list[str]:
    """How far from float64, as multiples of PyTorch's formulas in the same dtype."""
    lines = lines_of("attention_error")
    if not lines:
        return []
    who = [p for p in dict.fromkeys(line["provider"] for line in lines) if p != "eager"]
    worst: dict[tuple[str, str, str], float] = defaultdict(float)  # by tensor, metric and provider
    problems, used = set(), []
    for provider in who:
        last = next(line["run"] for line in reversed(lines) if line["provider"] == provider)
        run = [line for line in lines if line["run"] == last]
        eager = {(line["metric"], *line["case"].items()): line["value"] for line in run
                 if line["provider"] == "eager"}  # fmt: skip
        for line in run:
            if line["provider"] == provider:
                used.append(line)
                metric, case = line["metric"], line["case"]
                value = line["value"] if metric == "bias" else line["value"] / eager[(metric, *case.items())]
                at = (case["tensor"], metric, provider)
                worst[at] = max(worst[at], abs(value))
                problems.add(tuple(item for item in case.items() if item[0] != "tensor"))
    tensors = list(dict.fromkeys(tensor for tensor, _, _ in worst))
    rows = [
        [t, *(f"{worst[t, 'max_error', p]:.2f} ({worst[t, 'mean_error', p]:.2f})" for p in who)]
        for t in tensors
    ]
    rows.append(["bias", *(f"{max(worst[t, 'bias', p] for t in tensors):.1f}" for p in who)])
    text = (
        f"Error against float64, worst of {len(problems)} problems (bf16 and fp16; head_dim 64, 128, 256; "
        "causal or not; grouped or not), as a multiple of the error of PyTorch's formulas in the same dtype: "
        "the largest error and, in brackets, the mean one. Bias: the mean of the signed error in standard "
        f"errors. {told(used, 'attention_error')}:"
    )
    return ["", text, "", *table(["", *(f"`{p}`" for p in who)], rows)]


def build() -> list[str]:
    """What compiling costs."""
    lines = newest(lines_of("attention_build")) if lines_of("attention_build") else []
    seconds = [line["value"] for line in lines if line["metric"] == "cpu_time"]
    memory = [line["value"] for line in lines if line["metric"] == "peak_memory"]
    if not lines:
        return []
    text = (
        f"Compiling {len(seconds)} files takes {sum(seconds):.0f} s of one core, {sum(seconds) / 2:.0f} s "
        f"on two; the longest file {max(seconds):.0f} s, the largest process {max(memory) / 1e9:.2f} GB. "
        f"{told(lines, 'attention_build')}."
    )
    return ["", text]


SECTIONS: tuple[tuple[str, str, Callable[[dict[str, Any]], str], str | None], ...] = (
    ("gqa", "Grouped queries, 64 on 8, against as many flops without groups", shape, None),
    ("odd", "Lengths that no tile divides, against the nearest that one does", shape, None),
    ("varlen", "Variable lengths (all equal) against the same as a batch", shape, None),
    ("deterministic", "Gradients with the same bits in every run", by_dim, None),
    ("dims192", "Head_dim 192, 10 heads", by_dim_and_mask, "sdpa-cudnn"),
    ("dims", "Head dims between those of the grid; 21 heads of 96, 25 of 80", by_dim_and_mask, "sdpa-cudnn"),
    ("values", "Keys of head_dim 192, values of 128; 16 heads", by_dim_and_mask, "sdpa-cudnn"),
    ("short", "Short sequences", by_dim, "sdpa-cudnn"),
    ("portable", "The sm_80 path on the same GPU against FlashAttention-2, mean over s = 1024, 4096, 16384",
     by_dim, None),
    ("flex", "FlexAttention, s = 8192", by_dim, None),
    ("cpu", "The CPU path", by_dtype, "sdpa-math"),
)  # fmt: skip


def reached() -> list[str]:
    """The targets, and what the runs of the other tables reached."""
    built = lines_of("attention_build")
    rows = targets(newest(lines_of("attention")), suite, newest(built) if built else [])
    return ["What was to be reached, from the lines of the tables below:", "",
            *table(["case", "wanted", "reached", ""], rows), ""]  # fmt: skip


def decode() -> list[str]:
    """One row in each sequence to cached keys."""
    lines = lines_of("attention_decode")
    if not lines:
        return []
    lines = newest(lines)
    times: dict[tuple[int, int, int, int], dict[int, dict[str, float]]] = {}
    shares: dict[tuple[int, int, int, int], dict[int, float]] = {}
    for line in lines:
        case = line["case"]
        key = (case["head_dim"], case["heads"], case["kv_heads"], case["keys"])
        if line["metric"] == "time":
            times.setdefault(key, {}).setdefault(case["sequences"], {})[line["provider"]] = line["value"]
        if line["metric"] == "share_of_copy" and line["provider"] == "ours":
            shares.setdefault(key, {})[case["sequences"]] = line["value"]
    counts = sorted({count for found in times.values() for count in found})
    rows = []
    for key, found in times.items():
        cells = []
        for count in counts:
            at = dict(found.get(count, {}))
            ours = at.pop("ours", None)
            best = f", {min(at.values()) / ours:.2f}" if ours and at else ""
            cells.append(f"{ours / 1000:.0f} us ({shares[key][count]:.2f}{best})" if ours else "-")
        dim, heads, kv_heads, keys = key
        rows.append([f"d{dim}, heads {heads}/{kv_heads}, {keys} keys", *cells])
    peers = ", ".join(f"`{p}`" for p in dict.fromkeys(line["provider"] for line in lines) if p != "ours")
    text = (
        "Decoding, one row in each sequence, cold L2, bf16: time of `flash` and, in brackets, K and V over "
        "the time as a share of the copy rate, and the speed as a multiple of the fastest of "
        f"{peers}. {told(lines, 'attention_decode')}:"
    )
    return ["", text, "", *table(["", *(f"{count} sequences" for count in counts)], rows)]


def last_of(name: str) -> dict[tuple[Any, ...], Line]:
    """The last line of each case, provider and metric."""
    lines = lines_of(name)
    return {(*sorted(line["case"].items()), line["provider"], line["metric"]): line for line in lines}


def prompts() -> list[str]:
    """Parts of prompts against a paged cache, and together with single rows."""
    lines = list(last_of("attention_prefill").values())
    rates = [line for line in lines if line["metric"] == "rate"]
    if not rates:
        return []
    pages = sorted({line["case"]["page_size"] for line in rates if "page_size" in line["case"]})
    found: dict[tuple[int, int, int], dict[Any, float]] = {}
    for line in rates:
        case = line["case"]
        at = found.setdefault((case["head_dim"], case["keys"], case["rows"]), {})
        at[case.get("page_size", line["provider"])] = line["value"]
    rows = []
    for (dim, keys, count), at in sorted(found.items()):
        cells = [f"{at[page]:.0f} ({at[page] / at['varlen']:.2f})" if page in at else "-" for page in pages]
        sdpa = f"{at['sdpa-flash']:.0f}" if "sdpa-flash" in at else "-"
        rows.append([f"d{dim}, {count} rows, {keys} keys", f"{at['varlen']:.0f}", *cells, sdpa])
    text = (
        "Parts of prompts: rows of each of two sequences, which the call appends to the keys that it has in "
        "a cache; 32 heads on 8, bf16, cold L2. TFLOP/s of what is seen; in brackets the share of "
        f"`flash-varlen`, whose keys lie one behind the other. {told(rates, 'attention_prefill')}:"
    )
    header = ["", "`flash-varlen`", *(f"pages of {page}" for page in pages), "`sdpa-flash`"]
    out = ["", text, "", *table(header, rows)]
    mixed: dict[tuple[int, int], dict[str, float]] = {}
    for line in lines:
        if "decode" in line["case"]:
            at = mixed.setdefault((line["case"]["decode"], line["case"]["page_size"]), {})
            at[line["case"]["part"] if line["metric"] == "time" else line["metric"]] = line["value"]
    rows = [
        [f"{decode} single rows, pages of {page}",
         *(f"{at[part] / 1000:.0f} us" for part in ("prompt", "steps", "mixed")),
         f"{at['mixed_over_apart']:.2f}", f"{at['steps_share_of_copy']:.2f}"]
        for (decode, page), at in sorted(mixed.items())
    ]  # fmt: skip
    text = (
        "One call for 2048 rows of a prompt (8192 keys before) and single rows of other sequences (4096 keys "
        "each), next to one call for each; d128. The share of the copy rate is that of the single rows alone:"
    )
    header = ["", "prompt", "single rows", "together", "together over apart", "share of copy"]
    return [*out, "", text, "", *table(header, rows)]


def block_masks() -> list[str]:
    lines = [line for line in last_of("attention_block_mask").values() if line["metric"] == "rate"]
    if not lines:
        return []
    found: dict[tuple[int, str], dict[str, float]] = {}
    for line in lines:
        found.setdefault((line["case"]["head_dim"], line["case"]["mask"]), {})[line["provider"]] = line[
            "value"
        ]
    rows = [
        [f"d{dim} {mask}", f"{at['ours']:.0f}",
         *(f"{at[who]:.0f} ({at['ours'] / at[who]:.2f})" if who in at else "-" for who in ("option", "flex"))]
        for (dim, mask), at in found.items()
    ]  # fmt: skip
    text = (
        "FlexAttention's block masks, forward, 2 x 8192 rows, heads x head_dim = 2048; TFLOP/s of what is "
        "seen and, in brackets, `flash_attention_with_block_mask` as a multiple: of the same mask as an "
        f"option, and of compiled FlexAttention. {told(lines, 'attention_block_mask')}:"
    )
    return ["", text, "", *table(["", "ours", "as an option", "`flex_attention`"], rows)]


def attention() -> list[str]:
    out = [*reached(), *grid()] if lines_of("attention") else []
    runs = {newest(lines_of("attention"))[0]["run"]} if out else set()
    out += errors()
    for name, about, label, other in SECTIONS:
        lines = suite(name)
        if lines:
            runs |= {line["run"] for line in lines}
            what = f"`flash` and, in brackets, its ratio to `{other}`"
            where = told(lines, "attention_suites")
            how = [what] * bool(other) + ["mean over causal or not"] * (label is not by_dim_and_mask)
            out += ["", f"{about}; TFLOP/s, {'; '.join(how)}. {where}:", ""]
            out += by_length(lines, other, label) if other else table(*means(lines, label))
    out += decode() + prompts() + block_masks()
    absent = {
        (line["provider"], line["case"]["reason"])
        for line in lines_of("attention") + lines_of("attention_suites")
        if line["metric"] == "available" and line["run"] in runs and line["provider"] != "flash-sm80"
    }
    out += build()
    if absent:
        out += ["", "Not measured:", "", *(f"- `{name}`: {reason}" for name, reason in sorted(absent))]
    return out


def ladder() -> list[str]:
    lines = suite("ladder")
    if not lines:
        return []
    text = f"TFLOP/s, bf16, forward, 8 heads, mean over causal or not. {told(lines, 'attention_suites')}:"
    return [text, "", *table(*means(lines, lambda case: f"d{case['head_dim']}, s = {case['rows']}", 1))]


def pictures() -> dict[Path, str]:
    """Charts of the grid, as benchmarks/visualize_results.py draws them."""
    sys.path.insert(0, str(REPO / "benchmarks"))
    from visualize_results import figures, read

    run = read(RESULTS / "attention.jsonl", None)
    drawn = {} if run is None else figures(run, BASE)
    names = ("rate_forward", "rate_backward", "summary", "roofline")
    return {REPO / "docs" / "attention" / f"{name}.svg": drawn[name] for name in names if name in drawn}


PAGES = {
    REPO / "docs" / "notebook" / "attention.md": attention,
    REPO / "docs" / "notebook" / "ladder_attention.md": ladder,
}


def main() -> int:
    wanted = pictures()
    for page, block in PAGES.items():
        text = page.read_text()
        before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
        figures = "\n".join([*block(), ""]).replace("(results:", f"({relpath(RESULTS, page.parent)}/")
        wanted[page] = text[:before] + "\n" + figures + text[after:]
    stale = [page for page, text in wanted.items() if not page.is_file() or page.read_text() != text]
    if "--check" not in sys.argv:
        for page in stale:
            page.parent.mkdir(exist_ok=True)
            page.write_text(wanted[page])
    if "--check" in sys.argv and stale:
        pages = ", ".join(str(page.relative_to(REPO)) for page in stale)
        sys.stderr.write(f"{pages}: run python tools/attention_numbers.py\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
