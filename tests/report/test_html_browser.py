# SPDX-License-Identifier: Apache-2.0
"""The report page in a real browser: it works, logs no error, and requests nothing from the network."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from browser import PAINTED, WIDE, Browser, find_browser, fresh
from builders import TraceBuilder

from profiling_lab.report.html import build_page
from profiling_lab.trace import Trace

HOSTILE = "</script><script>window.stolen=1</script><img src=x onerror=window.stolen=1>"
PHONE = (390, 844)

pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is on the PATH"),
    pytest.mark.usefixtures("quiet"),
]

# The longest kernel, brought into sight; where its middle is on the screen.
LONGEST = """(async () => {
  const t = profilingLab.timeline, lane = t.lanes.find((l) => l.kind === 'stream');
  let i = 0;
  for (let k = 0; k < lane.length; k++) if (lane.duration(k) > lane.duration(i)) i = k;
  t.box.scrollIntoView({block: 'center', behavior: 'instant'});
  t.show(lane.start[i] - lane.duration(i), lane.end[i] + lane.duration(i));
  await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
  const edge = t.canvas.getBoundingClientRect();
  const row = t.laneRows.find((r) => r.lane === lane);
  return {x: edge.left + t.view.x((lane.start[i] + lane.end[i]) / 2),
          y: edge.top + row.y - t.box.scrollTop + row.height / 2,
          name: profilingLab.names.shown[lane.name[i]]};
})()"""
VIEW = "({from: profilingLab.timeline.from, to: profilingLab.timeline.to, span: profilingLab.timeline.span})"
DETAILS = "document.getElementById('details').innerText"


def length(view: dict[str, Any]) -> float:
    return float(view["to"] - view["from"])


def test_everything_is_there(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    assert [url for url in browser.requests if not url.endswith("demo.html")] == []
    text = browser.run("document.body.innerText")
    for said in (
        "HeavyLayer.forward",
        browser.run("profilingLab.data.findings.data[0].what"),
        "Opened at the first step",
        "all GPU time: 87.879 ms",
        browser.run("profilingLab.data.gaps.data[0].cause"),
        "training_step #4",
        "roofline",
    ):
        assert said in text, said
    absent = browser.run("[...document.querySelectorAll('section:has(.absent)')].map((s) => s.id)")
    assert absent == ["host"], "the recording has no samples"
    assert browser.run("document.documentElement.scrollWidth") == WIDE[0], "nothing sticks out to the side"


@pytest.mark.parametrize("width", [360, 800, 1280, 1900, 2560])
def test_nothing_sticks_out_at_any_width(browser: Browser, page: Path, width: int) -> None:
    fresh(browser, page, (width, 900))
    assert browser.run("document.documentElement.scrollWidth") == width


def test_times_read_as_in_the_terminal(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    first = browser.run(
        "[...document.querySelectorAll('#lines tbody tr:first-child td')].map((c) => c.innerText)"
    )
    assert "38.845" in first and "0.946" in first and "45.3 %" in first


def test_a_click_on_a_kernel_shows_its_stack(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    place = browser.run(LONGEST)
    browser.click(place["x"], place["y"])
    details = browser.run(DETAILS)
    assert place["name"] == "heavy_layer_slow_kernel" and details.startswith(place["name"])
    for said in ("forward, at model.py:87", "model.py:87", "HeavyLayer.forward", "cudaLaunchKernel",
                 "dominant_line cites it", "waited in the queue",
                 "threads, "):  # fmt: skip
        assert said in details, said
    own = browser.run("[...document.querySelectorAll('#details .stack .own')].map((e) => e.innerText)")
    assert "model.py:87" in own[0] and any("training_step" in line for line in own)
    # From the kernel to its launch, which in turn lists the kernel.
    browser.run("document.querySelector('#details dd .link').click()")
    details = browser.run(DETAILS)
    assert details.startswith("cudaLaunchKernel") and "It launched" in details and place["name"] in details
    browser.run("document.querySelector('#details ul .link').click()")
    assert browser.run(DETAILS).startswith(place["name"])


def test_backward_names_its_forward_line(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    browser.run("""(() => {
      const t = profilingLab.timeline, lane = t.lanes.find((l) => l.kind === 'stream');
      const exact = lane.more.match.findIndex((match, i) => match === 1 && lane.tint[i] === 1);
      t.select({lane, i: exact}, true);
    })()""")
    details = browser.run(DETAILS)
    assert "backward of train_model.py:43" in details and "joined with its forward by number" in details
    assert "Python stack of its forward" in details


def test_wheel_drag_and_keys(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    place = browser.run(LONGEST)
    browser.run("new Promise((r) => setTimeout(r, 400))")  # the page was scrolling: the wheel is its own
    before = browser.run(VIEW)
    at = browser.run(f"profilingLab.timeline.view.time({place['x']} - "
                     "profilingLab.timeline.canvas.getBoundingClientRect().left)")  # fmt: skip
    browser.wheel(place["x"], place["y"], -200)
    browser.run(PAINTED)
    closer = browser.run(VIEW)
    assert length(closer) < length(before) and closer["from"] < at < closer["to"]
    browser.drag((place["x"], place["y"]), (place["x"] + 120, place["y"]))
    dragged = browser.run(VIEW)
    assert dragged["from"] < closer["from"] and abs(length(dragged) - length(closer)) < 2
    browser.run("document.getElementById('tracks').focus()")
    for key, test in (
        ("d", lambda a, b: b["from"] > a["from"]),
        ("ArrowLeft", lambda a, b: b["from"] < a["from"]),
        ("w", lambda a, b: length(b) < length(a)),
        ("-", lambda a, b: length(b) > length(a)),
        ("0", lambda a, b: length(b) >= b["span"]),
    ):
        was = browser.run(VIEW)
        browser.key(key)
        browser.run(PAINTED)
        assert test(was, browser.run(VIEW)), key
    seen = set()
    for key in ("j", "n", "n", "g"):
        browser.key(key)
        seen.add(browser.run(DETAILS))
    assert len(seen) == 4, "each key chose another event"
    browser.key("Escape")
    assert browser.run(DETAILS) == "Nothing is selected."


def test_the_view_stays_inside_of_the_recording(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    view = browser.run(f"""(() => {{ const t = profilingLab.timeline;
      for (let i = 0; i < 200; i++) t.zoom(0.5);
      const close = {VIEW};
      for (let i = 0; i < 200; i++) t.pan(1);
      const right = {VIEW};
      for (let i = 0; i < 200; i++) t.zoom(2);
      return [close, right, {VIEW}]; }})()""")
    assert 39 <= length(view[0]) <= 41
    assert view[1]["to"] <= view[1]["span"] * 1.03
    assert (
        view[2]["from"] <= 0 and view[2]["to"] >= view[2]["span"] and length(view[2]) < view[2]["span"] * 1.05
    )


def test_search_finds_kernels_and_lines(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    browser.run("""(() => { const s = document.getElementById('search'); s.value = 'heavy_layer_slow';
      s.dispatchEvent(new Event('input')); })()""")
    browser.run("new Promise((r) => setTimeout(r, 300))")
    assert browser.run("document.getElementById('hits').innerText").startswith(
        "4 events, 38.845 ms on the GPU"
    )
    assert "heavy_layer_slow_kernel" in browser.run("document.getElementById('results').innerText")
    starts = []
    for _ in range(4):
        browser.run("document.getElementById('hit-next').click()")
        starts.append(
            browser.run("profilingLab.timeline.selected.lane.start[profilingLab.timeline.selected.i]")
        )
    assert starts == sorted(starts) and len(set(starts)) == 4
    browser.run("document.querySelector('#lines tbody tr:first-child .do button').click()")
    # All that a line answers for on the GPU is its row of the table.
    row = browser.run("profilingLab.data.lines.data[0].gpu_ns")
    found = browser.run("""profilingLab.timeline.lanes.filter((l) => l.kind === 'stream')
      .reduce((sum, l) => sum + l.matches.reduce((s, i) => s + l.duration(i), 0), 0)""")
    assert found == row
    browser.run("profilingLab.search.clear()")
    assert browser.run("profilingLab.timeline.lanes.every((l) => l.matches === null)")


def test_flame_graph(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    total = browser.run("profilingLab.flame.root.ns")
    assert total == browser.run("profilingLab.data.coverage.gpu_ns")
    assert browser.run("""(() => { const sums = (n) => [...n.children.values()].every(
      (c) => c.ns <= n.ns && sums(c)); return sums(profilingLab.flame.root); })()""")
    browser.run(
        """[...document.querySelectorAll('.frame')]
      .find((f) => f.innerText.startsWith('HeavyLayer')).click()"""
    )
    told = browser.run("document.querySelector('#flame p.note').innerText")
    assert told.startswith("HeavyLayer.forward model.py:87: 39.791 ms (45.3 %)")
    widths = browser.run("[...document.querySelectorAll('.frame.above')].map((f) => f.style.width)")
    assert widths and set(widths) == {"100%"}
    browser.run("document.querySelector('#flame input[value=backward]').click()")
    backward = browser.run("profilingLab.flame.root.ns")
    assert backward == browser.run("profilingLab.data.lines.data.reduce((s, r) => s + r.backward_ns, 0)")
    few = browser.run("document.querySelectorAll('.frame').length")
    browser.run("document.querySelector('#flame input[type=checkbox]').click()")
    assert browser.run("document.querySelectorAll('.frame').length") > few
    assert browser.run("profilingLab.flame.root.ns") == backward, "other frames, the same time"


def test_tables_lead_into_the_timeline(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    browser.run("""[...document.querySelectorAll('#findings article')]
      .find((a) => a.innerText.includes('dominant_line')).querySelector('.note .link').click()""")
    assert browser.run(DETAILS).startswith("heavy_layer_slow_kernel")
    browser.run("""[...document.querySelectorAll('#gaps tbody tr')]
      .find((r) => r.innerText.startsWith('host code')).querySelector('button').click()""")
    assert browser.run(DETAILS).startswith("host code")
    browser.run("document.querySelectorAll('#steps tbody tr button')[2].click()")
    view, (start, end) = browser.run(VIEW), browser.run("profilingLab.data.steps.at[2]")
    assert view["from"] == pytest.approx(start, abs=1) and view["to"] == pytest.approx(end, abs=1)
    shown = browser.run("document.querySelectorAll('#lines tbody tr').length")
    browser.run("document.querySelector('#lines .more').click()")
    assert browser.run("document.querySelectorAll('#lines tbody tr').length") == 17 > shown


def test_on_a_phone(browser: Browser, page: Path, tmp_path: Path) -> None:
    fresh(browser, page, PHONE, mobile=True)
    assert browser.run("document.documentElement.scrollWidth") <= PHONE[0], "nothing sticks out to the side"
    place = browser.run(LONGEST)
    x, y = place["x"], place["y"]
    browser.touch("touchStart", (x, y))
    browser.touch("touchEnd")
    assert browser.run(DETAILS).startswith("heavy_layer_slow_kernel")
    before = browser.run(VIEW)
    browser.touch("touchStart", (x - 30, y), (x + 30, y))
    for spread in (45, 60, 80):
        browser.touch("touchMove", (x - spread, y), (x + spread, y))
    browser.touch("touchEnd")
    pinched = browser.run(VIEW)
    assert length(pinched) < length(before), "two fingers apart zoom in"
    browser.touch("touchStart", (x, y))
    for shift in (20, 50, 90):
        browser.touch("touchMove", (x + shift, y))
    browser.touch("touchEnd")
    assert browser.run(VIEW)["from"] < pinched["from"], "one finger drags"
    browser.screenshot(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000


def test_light_and_dark(browser: Browser, page: Path) -> None:
    fresh(browser, page)
    color = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(color)
    browser.run("document.getElementById('theme').click()")
    dark = browser.run(color)
    assert light != dark and browser.run("profilingLab.timeline.palette.surface") == "#10151c"
    browser.run("document.getElementById('theme').click()")
    assert browser.run(color) == light
    try:
        browser.emulate(dark=True)
        assert browser.run(color) == light, "the reader chose light on this page"
        fresh(browser, page)
        assert browser.run(color) == dark
        browser.emulate(dark=True, paper=True)
        browser.run(PAINTED)
        assert browser.run("profilingLab.timeline.palette.raised") == "#ffffff", "paper is light"
        assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        browser.emulate(dark=False)


def test_without_decompression_in_the_browser(browser: Browser, page: Path) -> None:
    """Our own inflate gives what the browser's does."""
    fresh(browser, page)
    same = browser.run("""(async () => {
      const data = profilingLab.fromBase64(document.getElementById('payload').textContent);
      const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
      const theirs = new Uint8Array(await new Response(stream).arrayBuffer());
      const ours = profilingLab.inflateRaw(data);
      return ours.length === theirs.length && ours.every((byte, i) => byte === theirs[i]) ? ours.length : -1;
    })()""")
    assert same > 20_000
    script = browser.before_each_page("delete window.DecompressionStream")
    try:
        fresh(browser, page)
        assert browser.run("typeof DecompressionStream") == "undefined"
        assert browser.run("profilingLab.timeline.lanes.reduce((n, l) => n + l.length, 0)") > 2000
    finally:
        browser.never_mind(script)
    cut = browser.run("""(() => { try { profilingLab.inflateRaw(new Uint8Array([5, 1, 2])); return ''; }
      catch (error) { return error.message; } })()""")
    assert "timeline" in cut


def test_hostile_names_are_shown_and_not_run(browser: Browser, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(3):
        builder.launch(HOSTILE, 50_000, stack=((HOSTILE, f"/app/{HOSTILE}.py", 3),), short_name=HOSTILE)
        builder.range(HOSTILE, builder.now_ns, builder.now_ns + 10).gap(90_000)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        (tmp_path / "hostile.html").write_bytes(build_page(trace, title=HOSTILE).html)
    fresh(browser, tmp_path / "hostile.html")
    place = browser.run(LONGEST)
    browser.click(place["x"], place["y"])
    browser.run("""(() => { const s = document.getElementById('search'); s.value = '<img';
      s.dispatchEvent(new Event('input')); })()""")
    browser.run("new Promise((r) => setTimeout(r, 300))")
    assert browser.run("document.title") == HOSTILE and HOSTILE in browser.run(DETAILS)
    assert "<img" in browser.run("document.getElementById('results').innerText")
    assert browser.run("window.stolen === undefined && document.images.length === 0")
    assert browser.run("document.querySelectorAll('script').length") == 3


def test_a_trace_without_gpu_work(browser: Browser, tmp_path: Path) -> None:
    builder = TraceBuilder().call("cudaMalloc", stack="a.py:3 f").call("cudaFree")
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        (tmp_path / "cpu.html").write_bytes(build_page(trace).html)
    fresh(browser, tmp_path / "cpu.html")
    assert browser.run("document.querySelectorAll('section .absent').length") == 9
    browser.run("profilingLab.timeline.select({lane: profilingLab.timeline.lanes[1], i: 0}, true)")
    assert browser.run(DETAILS).startswith("cudaMalloc")


def test_a_trace_with_nothing_at_all(browser: Browser, tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.row("CUPTI_ACTIVITY_KIND_RUNTIME", start=0, end=0, eventClass=67, nameId=0, returnValue=0)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        (tmp_path / "empty.html").write_bytes(build_page(trace).html)
    fresh(browser, tmp_path / "empty.html")
    for script in ("zoom(0.5)", "pan(1)", "show(0, 0)", "select(null)"):
        browser.run(f"profilingLab.timeline.{script}")
    for key in ("j", "n", "g"):
        browser.run("document.getElementById('tracks').focus()")
        browser.key(key)
    browser.run(PAINTED)


def test_what_is_not_in_the_page_one_by_one(browser: Browser, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(30):
        begin = builder.now_ns
        for i in range(60):
            builder.launch(f"kernel_{i % 5}", 2000 + 40 * (step == 7), stack="train.py:5 main")
        builder.range("training_step", begin, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        (tmp_path / "cut.html").write_bytes(build_page(trace, events_at_most=500).html)
    fresh(browser, tmp_path / "cut.html")
    assert "one by one" in browser.run("document.getElementById('notes').innerText")
    # A click where there are only buckets says so, and how many events there were.
    said = browser.run("""(() => {
      const t = profilingLab.timeline, lane = t.lanes.find((l) => l.kind === 'stream');
      const level = lane.levels[lane.levels.length - 1];
      const out = [...level.bucket].map((b) => (b + 0.5) * level.width).find(
        (at) => t.windows.every(([a, b]) => at < a - level.width || at > b + level.width));
      t.show(out - 50 * level.width, out + 50 * level.width);
      const row = t.laneRows.find((r) => r.lane === lane);
      t.box.scrollIntoView({block: 'center', behavior: 'instant'});
      const edge = t.canvas.getBoundingClientRect();
      return {x: edge.left + t.view.x(out), y: edge.top + row.y - t.box.scrollTop + row.height / 2}; })()""")
    browser.click(said["x"], said["y"])
    assert "not in this page one by one" in browser.run(DETAILS)


def test_a_frame_costs_pixels_not_events(browser: Browser, tmp_path: Path) -> None:
    """However many events are in sight, a row of the timeline is painted with a few strokes per pixel."""
    builder = TraceBuilder()
    for _ in range(40):
        begin = builder.now_ns
        for i in range(400):
            builder.launch(f"kernel_{i % 7}", 1500 + 10 * (i % 90), stack=f"train.py:{5 + i % 3} main")
        builder.gap(40_000).range("training_step", begin, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        made = build_page(trace)
    assert made.kept == made.events > 45_000
    (tmp_path / "many.html").write_bytes(made.html)
    fresh(browser, tmp_path / "many.html")
    most = browser.run("""(async () => {
      const t = profilingLab.timeline, drawing = CanvasRenderingContext2D.prototype, fill = drawing.fillRect;
      const frame = () => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
      let strokes = 0, most = 0;
      drawing.fillRect = function (...at) { strokes++; fill.apply(this, at); };
      t.show(0, t.span);
      for (let zoom = 0; zoom < 24; zoom++) {
        await frame();
        most = Math.max(most, strokes);
        strokes = 0;
        t.zoom(0.7, t.span * 0.4);
      }
      drawing.fillRect = fill;
      return {most, rows: t.laneRows.length, width: t.width};
    })()""")
    assert 1000 < most["most"] < 2.5 * most["rows"] * most["width"]


@pytest.mark.parametrize(("size", "mobile"), [(WIDE, False), (PHONE, True)], ids=["desktop", "phone"])
def test_screenshots(
    browser: Browser, page: Path, tmp_path: Path, size: tuple[int, int], mobile: bool
) -> None:
    fresh(browser, page, size, mobile)
    browser.run("document.getElementById('timeline').scrollIntoView({behavior: 'instant'})")
    browser.run(PAINTED)
    browser.screenshot(tmp_path / "screen.png")
    header = (tmp_path / "screen.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", header[16:]) == size
    # The timeline is painted: forward, backward, optimizer, ranges and the rest have their colours.
    colours = browser.run("""(() => {
      const {canvas, ctx} = profilingLab.timeline, seen = new Map();
      const pixels = new Uint32Array(ctx.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
      for (const pixel of pixels) seen.set(pixel, (seen.get(pixel) ?? 0) + 1);
      return [...seen.values()].filter((times) => times > 200).length;
    })()""")
    assert colours >= 8
