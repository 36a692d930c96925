# SPDX-License-Identifier: Apache-2.0
"""What a reader does with a report page: sort, search, sum up an interval, send a link, read it anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find_browser, fresh
from builders import TraceBuilder

from profiling_lab.report.html import build_page
from profiling_lab.trace import Trace

MS = 1_000_000
LOAD, STEP = "train.py:10 main > data.py:22 load", "train.py:10 main > train.py:31 step"
LIBRARY = "/usr/lib/python3/site-packages/torch/queue.py:7 get"
# The address is written when nothing changed for a while; a scroll is told at the next frame. The timers of a
# page fire in their order, however slow it is.
SETTLED = "new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(r, 400))))"
# What the timeline writes: text, colour and opacity of each.
TEXTS = """(async () => {
  const drawing = CanvasRenderingContext2D.prototype, fill = drawing.fillText, out = [];
  drawing.fillText = function (text, ...at) { out.push([text, this.fillStyle, this.globalAlpha]); fill.call(this, text, ...at); };
  profilingLab.timeline.paint();
  drawing.fillText = fill;
  return out;
})()"""  # noqa: E501
# The texts that stand out too little from what is behind them: WCAG 2 AA asks for 4.5, 3 for large letters.
PALE = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const out = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest('script, style, .frame')) continue;
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const [one, other] = [light(parts(style.color)), light(behind(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) out.push(`${node.tagName}.${node.className} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(out)];
})()"""  # noqa: E501
# The same of letters on the colours of the flame graphs, which are gradients.
PALE_FRAMES = """(() => {
  const light = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const text = light(of('text'));
  return ['forward', 'backward', 'recompute', 'optimizer', 'unknown', 'host'].filter((name) => {
    const back = light(of(`soft-${name}`));
    return (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05) < 4.5;
  });
})()"""

pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is on the PATH"),
    pytest.mark.usefixtures("quiet"),
]


def column(browser: Browser, section: str, title: str) -> list[str]:
    """The cells of a column, as they are shown."""
    found: list[str] = browser.run(
        f"""[...document.querySelectorAll('#{section} td[data-title="{title}"]')].map((c) => c.innerText)"""
    )
    return found


def head(section: str, title: str) -> str:
    return f"[...document.querySelectorAll('#{section} th')].find((h) => h.innerText.startsWith({title!r}))"


def written(tmp_path: Path, builder: TraceBuilder, name: str = "run") -> Path:
    path = tmp_path / f"{name}.html"
    with Trace.open(builder.write(tmp_path / f"{name}.sqlite")) as trace:
        path.write_bytes(build_page(trace).html)
    return path


def test_a_head_sorts_its_table(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    first = column(browser, "kernels", "count")
    press = f"{head('kernels', 'count')}.querySelector('button').click()"
    browser.run(press)
    down = [int(text.replace(",", "")) for text in column(browser, "kernels", "count")]
    every = browser.run("profilingLab.data.kernels.rows.map((row) => row[3])")
    assert down == sorted(every, reverse=True)[: len(down)], "also of the rows that are not shown at once"
    assert browser.run(f"{head('kernels', 'count')}.getAttribute('aria-sort')") == "descending"
    assert browser.run("document.querySelectorAll('[aria-sort]').length") == 1
    browser.run(press)
    up = [int(text.replace(",", "")) for text in column(browser, "kernels", "count")]
    assert up == sorted(every)[: len(up)]
    assert browser.run(f"{head('kernels', 'count')}.getAttribute('aria-sort')") == "ascending"
    browser.run(press)
    assert column(browser, "kernels", "count") == first, "the third press gives the first order back"
    assert browser.run("document.querySelectorAll('[aria-sort]').length") == 0


def test_a_table_is_sorted_with_the_keyboard(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    browser.run(f"{head('lines', 'function')}.querySelector('button').focus()")
    for _ in range(2):
        browser.key("Enter", "\r")
    assert browser.run(f"{head('lines', 'function')}.getAttribute('aria-sort')") == "descending"
    names = column(browser, "lines", "function")
    assert names == sorted(names, reverse=True, key=str.lower) and len(names) > 5


def test_equal_and_unknown_values_stay_in_order(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    assert browser.run("""[true, false].map((down) => {
      const rows = [[null, 'a'], [2, 'b'], [1, 'c'], [2, 'd'], [undefined, 'e'], [10, 'f']];
      return profilingLab.sortedRows(rows, 0, down).map((i) => rows[i][1]).join(''); })""") == [
        "fbdcae",
        "cbdfae",
    ]
    assert browser.run("profilingLab.sortedRows([[0.5], [-3], [0.05], [10]], 0, false)") == [1, 2, 0, 3]
    order = browser.run("profilingLab.sortedRows([['step 10'], ['step 9'], ['']], 0, false)")
    assert order == [1, 0, 2], "numbers in names count as numbers"


def test_the_flame_graph_is_searched(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    browser.run("""(() => { const s = document.querySelector('#flame input[type=search]');
      s.value = 'train_model'; s.dispatchEvent(new Event('input')); })()""")
    told = browser.run("document.querySelector('#flame .search .note').innerText")
    share = told.split(", ")[-1]
    assert share == "100.0 % of the GPU time", "frames within a found one count once"
    browser.run("""(() => { const s = document.querySelector('#flame input[type=search]');
      s.value = 'model.py:87'; s.dispatchEvent(new Event('input')); })()""")
    row = browser.run("profilingLab.data.lines.data.find((r) => r.key === 'model.py:87')")
    assert browser.run("profilingLab.flame.countHits().ns") == row["gpu_ns"]
    told = browser.run("document.querySelector('#flame .search .note').innerText")
    assert "39.791 ms, 45.3 % of the GPU time" in told
    hits = browser.run("[...document.querySelectorAll('#flame .hit')].map((f) => f.innerText)")
    assert hits and all("model.py:87" in text for text in hits)
    assert browser.run("document.querySelectorAll('#flame .missed').length") > 3
    browser.run("profilingLab.flame.find('no such function')")
    assert browser.run("document.querySelector('#flame .search .note').innerText").startswith(
        "0 frames, 0 ns"
    )
    browser.run("profilingLab.flame.find('')")
    assert browser.run("document.querySelectorAll('#flame .missed, #flame .hit').length") == 0


def interval_trace() -> TraceBuilder:
    """Kernels on two streams that overlap, a pause, and calls."""
    builder = TraceBuilder()
    for i in range(6):
        builder.launch(f"gemm_{i % 2}", 2 * MS, stack="train.py:5 main", stream=7)
        builder.launch("copy_kernel", MS, stack="train.py:9 main", stream=8)
        builder.gap(3 * MS)
    return builder


def test_a_interval_has_its_totals(browser: Browser, tmp_path: Path) -> None:
    builder = interval_trace()
    page = written(tmp_path, builder)
    with Trace.open(tmp_path / "run.sqlite") as trace:
        operations, calls = trace.operations, trace.calls
        origin = min(int(operations.start_ns.min()), int(calls.start_ns.min()))
        start, end = operations.start_ns - origin, operations.end_ns - origin
    low, high = int(start[2]) + MS // 2, int(end[7]) - MS // 4
    inside = [
        (max(low, a), min(high, b))
        for a, b in zip(start.tolist(), end.tolist(), strict=True)
        if b > low and a < high
    ]
    busy = len({ns // 1000 for a, b in inside for ns in range(a, b, 1000)}) * 1000
    fresh(browser, page)
    browser.run(f"profilingLab.interval.choose({low}, {high})")
    found = browser.run(f"""(() => {{ const t = profilingLab.interval.totals({low}, {high});
      return {{...t, names: [...t.names], lines: [...t.lines], idle: [...t.idle]}}; }})()""")
    total = sum(b - a for a, b in inside)
    assert found["operations"] == len(inside) and found["gpuNs"] == total
    assert abs(found["gpus"][0]["busyNs"] - busy) < 20_000 < total - busy, "what overlaps is busy once"
    assert sum(each["ns"] for _, each in found["names"]) == total
    assert {key for key, _ in found["lines"]} == {"train.py:5", "train.py:9"}
    assert sum(each["ns"] for _, each in found["idle"]) <= high - low - busy + 20_000
    told = browser.run("document.getElementById('interval').innerText")
    assert "gemm_0" in told and "train.py:9 main" in told and "chosen, from" in told
    browser.run(
        "[...document.querySelectorAll('#interval button')].find((b) => b.innerText === 'Let go').click()"
    )
    assert browser.run("document.getElementById('interval').hidden")


def test_a_interval_is_chosen_by_mouse_and_key(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    browser.run("document.getElementById('timeline').scrollIntoView({behavior: 'instant'})")
    edge = browser.run(
        "(({left, top, width}) => ({left, top, width}))(profilingLab.timeline.canvas.getBoundingClientRect())"
    )
    before = browser.run("[profilingLab.timeline.from, profilingLab.timeline.to]")
    x, y = edge["left"] + 300, edge["top"] + 8
    browser.drag((x, y), (x + 200, y))
    range_ = browser.run("profilingLab.interval.range")
    expected = browser.run("[profilingLab.timeline.view.time(300), profilingLab.timeline.view.time(500)]")
    assert range_ == pytest.approx(expected, rel=1e-6)
    assert browser.run("[profilingLab.timeline.from, profilingLab.timeline.to]") == before, "nothing moved"
    browser.run("document.getElementById('tracks').focus()")
    browser.key("Escape")
    assert browser.run("profilingLab.interval.range") is None
    browser.drag((x, y + 80), (x + 100, y + 80), shift=True)
    assert browser.run("profilingLab.interval.range") == pytest.approx(
        browser.run("[profilingLab.timeline.view.time(300), profilingLab.timeline.view.time(400)]"), rel=1e-6
    )
    browser.key("m")
    view = browser.run(
        "(({from, to, span}) => [Math.max(0, from), Math.min(span, to)])(profilingLab.timeline)"
    )
    assert browser.run("profilingLab.interval.range") == view
    # The totals of everything are those of the recording.
    browser.run("profilingLab.interval.choose(0, profilingLab.timeline.span)")
    assert browser.run("profilingLab.interval.totals(0, profilingLab.timeline.span).gpuNs") == browser.run(
        "profilingLab.data.coverage.gpu_ns"
    )


def state(browser: Browser) -> dict[str, Any]:
    found: dict[str, Any] = browser.run("""(({timeline, interval, flame, search}) => ({
      view: [timeline.from, timeline.to].map(Math.round),
      event: timeline.selected && [timeline.selected.lane.number, timeline.selected.i],
      interval: interval.range && interval.range.map(Math.round),
      find: search.asked, hits: document.getElementById('hits').innerText,
      frame: flame.label(flame.zoomed), phase: flame.phase, flame: flame.wanted,
      first: document.querySelector('#kernels tbody tr').innerText}))(profilingLab)""")
    return found


def test_a_link_keeps_its_place(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    opened = state(browser)
    browser.run(SETTLED)
    assert browser.run("location.hash") == "", "nothing changed"
    browser.run("""(() => { const p = profilingLab, t = p.timeline;
      t.show(20e6, 35e6);
      t.select({lane: t.lanes.find((l) => l.kind === 'stream'), i: 40});
      p.interval.choose(22e6, 24e6);
      p.search.showLine(p.data.lines.data[1].file, p.data.lines.data[1].line);
      p.flame.goTo('forward:own:0.0');
      p.flame.find('block');
    })()""")
    browser.run(f"{head('kernels', 'count')}.querySelector('button').click()")
    browser.run("document.getElementById('flame').scrollIntoView({behavior: 'instant'})")
    browser.run(SETTLED)
    left, place = state(browser), browser.run("location.hash")
    assert left != opened and place.startswith("#flame&")
    browser.open(page, place)
    assert state(browser) == left
    assert browser.run("Math.abs(document.getElementById('flame').getBoundingClientRect().top) < 90")
    browser.run(SETTLED)
    assert browser.run("location.hash") == place
    # A finding's own link goes there and loses nothing.
    browser.run("location.hash = '#finding-0'")
    browser.run(SETTLED)
    assert state(browser) == left
    assert browser.run("document.getElementById('finding-0').classList.contains('target')")
    assert browser.run("location.hash").startswith("#findings&at=")


@pytest.mark.parametrize(
    "place",
    [
        "#at=9-3&event=99:1&sort=lines.no.down,nosuch.a.up&flame-frame=x&interval=a-b",
        "#at=%E0%A4%A&find=%",
        "#no-such",
        "#event=0:999999999&flame-frame=all:own:9.9.9",
    ],
)
def test_a_damaged_link_opens_the_page(browser: Browser, page: Path, place: str) -> None:
    fresh(browser, page)
    opened = state(browser)
    browser.open(page, place)
    found = state(browser)
    assert found["view"] == opened["view"] and found["event"] is None and found["interval"] is None


def test_large_screens_are_used(browser: Browser, page: Path) -> None:
    for width in (1280, 2560):
        fresh(browser, page, (width, 1200))
        for section in ("timeline", "flame"):
            wide = browser.run(f"document.getElementById('{section}').getBoundingClientRect().width")
            assert wide > width - 100, section
    places = browser.run("""['lines', 'findings'].map((id) => document.getElementById(id))
      .map((box) => [box.getBoundingClientRect().left, box.getBoundingClientRect().top])""")
    assert places[0][1] == places[1][1] and places[0][0] < 1280 < places[1][0], "next to each other"


def test_every_text_can_be_read(browser: Browser, tmp_path: Path, page: Path) -> None:
    fresh(browser, page)
    highs = "document.querySelectorAll('.finding.high .tag').length"
    assert browser.run(highs) > 0, "the page has what is to be looked at"
    try:
        for dark in (False, True):
            browser.emulate(dark=dark)
            browser.run("profilingLab.interval.choose(0, 1e7)")
            browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            assert browser.run(PALE) == [], "dark" if dark else "light"
            assert browser.run(PALE_FRAMES) == []
    finally:
        browser.emulate(dark=False)


def test_what_was_found_keeps_its_label(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    browser.run("""(() => { const t = profilingLab.timeline, lane = t.lanes.find((l) => l.kind === 'stream');
      const i = [...lane.start].findIndex((_, k) => lane.duration(k) > 5e6);
      t.show(lane.start[i] - 1e6, lane.end[i] + 1e6); })()""")
    label = "heavy_layer_slow_kernel"
    before = [each for each in browser.run(TEXTS) if each[0] == label]
    assert before[0][2] == 1
    browser.run(f"profilingLab.search.ask({label!r})")
    drawn = [each for each in browser.run(TEXTS) if each[0] == label]
    assert drawn[-1] == before[0], "on top of the mark, as strong as it was"
    browser.run("profilingLab.search.ask('aten::nothing')")
    assert [each[2] < 1 for each in browser.run(TEXTS) if each[0] == label] == [True]


def test_ticks_have_no_negative_zero(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    seen = set()
    for script in ("t.show(0, t.span)", "t.show(-5e5, 3e6)", "t.show(-1e5, 1e6)", "t.show(0.4e9, 2)"):
        browser.run(f"(() => {{ const t = profilingLab.timeline; {script}; }})()")
        seen |= {text for text, *_ in browser.run(TEXTS)}
    assert "0 ms" in seen and not [text for text in seen if text.startswith("-0")]
    assert browser.run("[-0, -0.0001, -0.4, 0, -2].map((v) => profilingLab.fixed(v, 0))") == [
        "0",
        "0",
        "0",
        "0",
        "-2",
    ]


def sampled() -> TraceBuilder:
    builder = TraceBuilder()
    for moment in range(40):
        builder.sample(moment * 5 * MS, LOAD if moment % 4 else STEP)
        if moment % 2:
            builder.sample(moment * 5 * MS + 1000, LIBRARY, thread=2)
    return builder


def test_samples_of_the_host(browser: Browser, tmp_path: Path) -> None:
    fresh(browser, written(tmp_path, sampled()))
    first = browser.run("document.querySelector('main section').innerText")
    assert first.startswith("Host time by line of Python") and "data.py:22" in first
    assert "data.py:22 load holds 50.0 % of the 60 samples" in browser.run(
        "document.querySelector('.verdict').innerText"
    ).replace("\u00a0", " ")
    assert browser.run("profilingLab.hostFlame.root.ns") == 60 * 5 * MS
    frames = "[...document.querySelectorAll('#host .frame')].map((f) => f.innerText)"
    assert set(browser.run(frames)) == {
        "all sampled time", "main train.py:10", "load data.py:22", "step train.py:31",
        "no line: no frame is in your code"}  # fmt: skip
    browser.run("document.querySelectorAll('#host input[type=radio]')[2].click()")
    assert browser.run("profilingLab.hostFlame.root.ns") == 20 * 5 * MS, "one thread alone"
    browser.run("document.querySelector('#host input[type=checkbox]').click()")
    assert "get queue.py:7" in browser.run(frames)
    lanes = browser.run("profilingLab.timeline.lanes.map((l) => [l.kind, l.length])")
    assert lanes[0] == ["samples", 20], "runs of samples at one place are one slice"
    assert browser.run("document.querySelectorAll('section.none').length") > 4


def test_ranges_where_there_are_no_stacks(browser: Browser, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for name, ns in (("forward", 3 * MS), ("backward", 5 * MS)):
        begin = builder.now_ns
        builder.launch("gemm", ns).range(name, begin, builder.now_ns)
    fresh(browser, written(tmp_path, builder))
    text = browser.run("document.getElementById('lines').innerText")
    assert "holds no Python stacks" in text and "GPU time by range" in text
    keys = browser.run("[...document.querySelectorAll('#lines td.key')].map((c) => c.innerText)")
    assert keys == ["backward", "forward"]
    assert set(
        browser.run("[...document.querySelectorAll('#ranges td.key > span')].map((c) => c.innerText)")
    ) == set(keys)
    browser.run("document.querySelector('#ranges .do button').click()")
    assert browser.run("document.getElementById('hits').innerText").startswith("1 event")
