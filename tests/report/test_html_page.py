# SPDX-License-Identifier: Apache-2.0
"""The report page: its numbers are those of the verbs, and it is safe whatever the trace holds."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import TraceBuilder
from report.page_reader import PageReader

from profiling_lab.cli import main
from profiling_lab.errors import LabError
from profiling_lab.report.html import build_page
from profiling_lab.report.html import page as page_module
from profiling_lab.report.html.page import SCRIPTS
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.window import WindowSelection

RECORDED = Path(str(files("profiling_lab.exercises.e17_python_backtrace"))) / "recorded"
OURS, NSYS = RECORDED / "demo_h200.sqlite", RECORDED / "nsys_h200.sqlite"
SECRET = "hf_abcdefghijklmnop"
HOSTILE = "</script><script>window.stolen=1</script><img src=x onerror=window.stolen=1>{{constructor}}"


@pytest.fixture(scope="module", params=[OURS, NSYS], ids=["ours", "nsys"])
def recorded(request: pytest.FixtureRequest) -> tuple[Path, PageReader]:
    path: Path = request.param
    with Trace.open(path) as trace:
        return path, PageReader(build_page(trace).html)


def verb(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*arguments, "--format", "json", "--limit", "0"])
    envelope: dict[str, Any] = json.loads(capsys.readouterr().out)
    return envelope


@pytest.mark.parametrize(
    ("section", "command"),
    [("lines", "lines"), ("gaps", "gaps"), ("steps", "steps"), ("copies", "copies"), ("findings", "check")],
)
def test_tables_are_those_of_the_verbs_to_the_nanosecond(
    recorded: tuple[Path, PageReader], capsys: pytest.CaptureFixture[str], section: str, command: str
) -> None:
    path, page = recorded
    envelope = verb(capsys, command, str(path))
    assert page.data[section]["data"] == envelope["data"]["rows"]
    assert page.data[section]["total_matched"] == envelope["data"]["total_matched"]
    covered = dict(page.data["coverage"])
    if command == "check":
        del covered["span_ns"]  # there that of the steady steps
    assert covered.items() <= envelope["coverage"].items()


def test_the_timeline_holds_every_event_to_the_nanosecond(recorded: tuple[Path, PageReader]) -> None:
    path, page = recorded
    with Trace.open(path) as trace:
        operations, calls = trace.operations, trace.calls
    for kind, table in (("stream", operations), ("calls", calls)):
        shown: Counter[tuple[int, int]] = Counter()
        for lane in page.of_kind(kind):
            shown.update(zip(lane.start_ns.tolist(), lane.duration_ns.tolist(), strict=True))
        durations = (table.end_ns - table.start_ns).tolist()
        assert shown == Counter(zip(table.start_ns.tolist(), durations, strict=True))
    assert (
        sum(int(lane.duration_ns.sum()) for lane in page.of_kind("stream")) == page.data["coverage"]["gpu_ns"]
    )
    assert page.head["windows"] is None and page.data["notes"] == []


def test_kernels_lead_to_the_calls_that_launched_them(recorded: tuple[Path, PageReader]) -> None:
    path, page = recorded
    with Trace.open(path) as trace:
        call = trace.attribution.call
        wanted = Counter(
            zip(trace.operations.start_ns[call >= 0].tolist(), trace.calls.start_ns[call[call >= 0]].tolist(),
                strict=True)
        )  # fmt: skip
    starts = np.concatenate([lane.start_ns for lane in page.of_kind("calls")])
    shown: Counter[tuple[int, int]] = Counter()
    for lane in page.of_kind("stream"):
        known = lane.more["call"] >= 0
        shown += Counter(
            zip(lane.start_ns[known].tolist(), starts[lane.more["call"][known]].tolist(), strict=True)
        )
    assert shown == wanted and wanted


def test_kernels_have_their_launch_shape(recorded: tuple[Path, PageReader]) -> None:
    path, page = recorded
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as file:
        rows = file.execute("SELECT start, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread "
                            "FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()  # fmt: skip
    file.close()
    (stream,) = page.of_kind("stream")
    shapes = dict(zip(stream.start_ns.tolist(), stream.more["shape"].tolist(), strict=True))
    for start, gx, gy, gz, bx, by, bz, registers in rows:
        text = page.head["shapes"][shapes[start] - 1]
        assert text.startswith(
            f"{gx} x {gy} x {gz} blocks of {bx} x {by} x {bz} threads, {registers} registers"
        )
    assert sum(shape == 0 for shape in shapes.values()) == len(stream.start_ns) - len(rows), "only kernels"


def test_the_flame_graph_sums_to_the_lines_and_to_all_gpu_time(recorded: tuple[Path, PageReader]) -> None:
    _, page = recorded
    stacks = page.head["stacks"]
    times: Counter[tuple[str, int, str]] = Counter()
    for phase, where in stacks["self_ns"].items():
        for row, ns in enumerate(page.column(where).tolist()):
            file, line = page.lines[row]
            times[file, line, phase] += ns
    without = sum(part[phase] for part in stacks["without_line"] for phase in stacks["self_ns"])
    assert times.total() + without == page.data["coverage"]["gpu_ns"]
    for row in page.data["lines"]["data"]:
        for phase in stacks["self_ns"]:
            assert times[row["file"], row["line"], phase] == row[f"{phase}_ns"], row["key"]


def test_findings_lead_to_their_evidence(recorded: tuple[Path, PageReader]) -> None:
    _, page = recorded
    held = 0
    for finding, places in zip(page.data["findings"]["data"], page.data["evidence"], strict=True):
        starts = {(e["table"], e["row"]): e["start_ns"] for e in finding["evidence"]}
        for place in places:
            held += 1
            assert page.lanes[place["lane"]].start_ns[place["i"]] == starts[place["table"], place["row"]]
    assert held


def test_step_marks_and_the_first_view(recorded: tuple[Path, PageReader]) -> None:
    _, page = recorded
    origin = int(page.head["origin_ns"])
    steps = page.data["steps"]
    assert [at[0] + origin for at in steps["at"]] == [row["start_ns"] for row in steps["data"]]
    opens = page.data["open"]
    assert 0 <= opens["from"] < opens["to"] <= page.head["span_ns"]
    gaps = page.data["gaps"]["data"]
    idle = sum(row["idle_ns"] for row in gaps) / sum(page.data["parts"].values())
    assert ("idle" in opens["why"]) == (idle >= 0.1)


def test_the_verdict_names_what_the_analyses_found() -> None:
    with Trace.open(OURS) as trace:
        page = PageReader(build_page(trace).html)
    assert page.data["verdict"] == (
        "Compute takes 95.9 % of the recording and idle time 4.0 %; model.py:87 HeavyLayer.forward costs "
        "45.3 % of the GPU time (38.845 ms forward, 946.074 µs backward)."
    )
    header = page.text.split("</header>")[0].replace("\u00a0", " ")
    assert page.data["verdict"] in header, "readable without the script"


def test_one_file_that_loads_nothing(recorded: tuple[Path, PageReader]) -> None:
    _, page = recorded
    script = page.text.rsplit("<script>", 1)[1].rsplit("</script>", 1)[0]
    style = page.text.split("<style>", 1)[1].split("</style>", 1)[0]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page.text)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    for text in (script, style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert not re.search(
        r"<(link|iframe|object|embed|base)\b|\bsrc=|@import|url\(", page.text.replace(script, "")
    )
    assert "http" not in re.sub(r"http-equiv", "", style)
    for word in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "innerHTML", "eval(", "document.write"):
        assert word not in re.sub(r"//.*", "", script), word
    assert len(page.text) < 400_000


def test_the_sources_of_the_page_are_small_and_cannot_end_their_element() -> None:
    folder = files("profiling_lab.report.html") / "assets"
    assert {entry.name for entry in folder.iterdir()} == {*SCRIPTS, "page.html", "style.css"}
    for entry in folder.iterdir():
        text = entry.read_text(encoding="utf-8")
        assert "SPDX-License-Identifier: Apache-2.0" in "\n".join(text.splitlines()[:2])
        assert len(text.splitlines()) <= 500
        assert entry.name == "page.html" or "</" not in text, f"{entry.name} could end its element"


def test_a_missing_part_of_the_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "SCRIPTS", ("no_such.js",))
    with Trace.open(OURS) as trace, pytest.raises(LabError, match=r"lacks the page's no_such\.js"):
        build_page(trace)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    builder = TraceBuilder()
    stack = ((HOSTILE, f"/app/{HOSTILE}.py", 3),)
    builder.launch(HOSTILE, 5000, stack=stack).range(HOSTILE, builder.now_ns, builder.now_ns + 10)
    path = builder.write(tmp_path / "a<b>&'\".sqlite")
    with Trace.open(path) as trace:
        page = PageReader(build_page(trace, title=f'"{HOSTILE}').html)
    assert "window.stolen" in page.text, "the title is in the page,"
    assert "<script>window" not in page.text and "<img" not in page.text, "but never as an element"
    assert page.text.count("</script>") == 3
    assert HOSTILE in page.head["names"] and page.data["file"] == path.name
    assert page.data["lines"]["data"][0]["function"] == HOSTILE


def test_the_captured_environment_stays_out(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm", 5000, stack="a.py:1 f")
    builder.row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f"TOKEN={SECRET}")
    builder.row("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENTS", value=SECRET)
    builder.row("TARGET_INFO_SYSTEM_ENV", globalVid=0, devStateName="", name="Environment", nameEnum=0,
                value=SECRET)  # fmt: skip
    builder.row("PYREC_META", name="script_arguments", value=SECRET)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    assert SECRET not in page.text and str(tmp_path) not in page.text, "nor where the file lies"
    assert SECRET.encode() not in page.body and SECRET not in json.dumps(page.head)


def test_a_trace_without_gpu_work_has_a_page_that_says_so(tmp_path: Path) -> None:
    builder = TraceBuilder().call("cudaMalloc", stack="a.py:3 f").call("cudaFree")
    builder.range("epoch", 900_000, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    assert "holds no GPU operation" in page.data["verdict"] and str(tmp_path) not in page.text
    for section in ("lines", "findings", "gaps", "copies", "steps"):
        assert "holds no GPU operation" in page.data[section]["absent"]
    assert [lane.kind for lane in page.lanes] == ["line", "calls", "ranges"]
    assert page.data["open"]["why"] == "the whole recording"


def test_a_trace_with_nothing_at_all(tmp_path: Path) -> None:
    builder = TraceBuilder().row("CUPTI_ACTIVITY_KIND_RUNTIME", start=0, end=0, eventClass=67,
                                 nameId=0, returnValue=0)  # fmt: skip
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    assert page.lanes == [] and page.head["span_ns"] == 0


def test_what_the_file_does_not_hold_is_listed(recorded: tuple[Path, PageReader]) -> None:
    path, page = recorded
    missing = "\n".join(page.data["missing"])
    assert "roofline: the file holds neither counted work nor the shapes" in missing
    assert ("--pytorch=autograd-nvtx" in missing) == (path == NSYS)


def many(builder: TraceBuilder, steps: int, kernels: int) -> TraceBuilder:
    for _ in range(steps):
        begin = builder.now_ns
        for i in range(kernels):
            builder.launch(f"kernel_{i % 7}", 2000 + 100 * (i % 5), stack=f"train.py:{5 + i % 9} main")
        builder.gap(15_000).range("training_step", begin, builder.now_ns)
    return builder


def test_more_events_than_fit_are_reported_and_the_tables_count_them_all(tmp_path: Path) -> None:
    path = many(TraceBuilder(), 20, 100).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        whole, cut = build_page(trace), build_page(trace, events_at_most=900)
        operations = trace.operations
        device_ns = int(operations.duration_ns.sum())
    assert whole.kept == whole.events and cut.events == whole.events and 500 < cut.kept < 1300
    page = PageReader(cut.html)
    assert f"{cut.kept:,} of {cut.events:,} events are in this page one by one" in page.data["notes"][0]
    assert page.data["coverage"]["gpu_ns"] == device_ns
    assert page.data["lines"] == PageReader(whole.html).data["lines"]
    (stream,) = page.of_kind("stream")
    assert stream.events == len(operations) > len(stream.start_ns), "the lane says how many there are"
    assert all(lane.levels for lane in page.lanes if len(lane.start_ns) < lane.events)
    # A kept window is whole: nothing in it is left out, and the slowest step is one of them.
    for start, end in page.head["windows"]:
        low, high = start + int(page.head["origin_ns"]), end + int(page.head["origin_ns"])
        inside = int(((operations.start_ns < high) & (operations.end_ns > low)).sum())
        shown = (stream.start_ns < high) & (stream.start_ns + stream.duration_ns > low)
        assert int(shown.sum()) == inside
    slowest = max(page.data["steps"]["data"], key=lambda row: row["wall_ns"])
    low, high = (slowest[name] - int(page.head["origin_ns"]) for name in ("start_ns", "end_ns"))
    assert any(start <= low and high <= end for start, end in page.head["windows"])


def test_a_page_shrinks_until_it_is_small_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = many(TraceBuilder(), 60, 130).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        whole = build_page(trace)
        assert whole.kept > 15_000
        monkeypatch.setattr(page_module, "MOST_BYTES", len(whole.html) - 1)
        smaller = build_page(trace)
    assert len(smaller.html) < len(whole.html) and smaller.kept < whole.kept == smaller.events
    assert PageReader(smaller.html).data["notes"]


def test_threads_devices_and_processes_have_their_own_lanes(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("a", 1000).launch("b", 1000, thread=2, device=1).launch("c", 1000, stream=9)
    builder.launch("d", 1000, pid=200)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    streams = {(lane.group, lane.label): lane.names for lane in page.of_kind("stream")}
    assert streams == {
        ("GPU 0 · pid 100", "stream 7"): ["a"],
        ("GPU 0 · pid 100", "stream 9"): ["c"],
        ("GPU 1 · pid 100", "stream 7"): ["b"],
        ("GPU 0 · pid 200", "stream 7"): ["d"],
    }
    groups = [lane.group for lane in page.of_kind("calls")]
    assert groups[:2] == ["thread 100 (main) · pid 100", "thread 200 (main) · pid 200"]
    assert groups[2:] == ["thread 101 · pid 100"]


def test_what_has_no_room_is_reported(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 1000)
    for thread in range(2, 82):
        builder.call("cudaEventRecord", thread=thread)
    for depth in range(20):
        builder.range("deep", 1_000_000 + 10 * depth, 2_000_000 - 10 * depth)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    assert page.data["notes"] == [
        "17 threads with the fewest events are not shown: 17 calls, ranges and samples",
        "4 ranges nested deeper than 16 levels are not shown",
    ]
    assert len(page.of_kind("ranges")) == 16 and len(page.of_kind("calls")) == 64


def test_ranges_nest_by_depth_and_open_ends_are_cut(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 1000)
    builder.range("outer", 1_000_000, 1_009_000).range("inner", 1_001_000, 1_002_000)
    builder.range("never closed", 1_000_500, None)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    levels = {lane.label: lane.names for lane in page.of_kind("ranges")}
    assert "outer" in levels["NVTX"] and any("inner" in names for names in levels.values())
    end = int(page.head["origin_ns"]) + page.head["span_ns"]
    assert end == 1_009_000
    for lane in page.lanes:
        assert (lane.start_ns + lane.duration_ns <= end).all() and (lane.duration_ns >= 0).all()


def test_idle_time_has_its_cause(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 1000, stack="train.py:5 main")
    builder.gap(3_000_000).launch("b", 1000, stack="train.py:9 main")
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    (idle,) = page.of_kind("idle")
    longest = int(idle.duration_ns.argmax())
    assert idle.names[longest] == "host code" and page.lines[idle.stack[longest]] == ("train.py", 9)
    assert page.data["verdict"].startswith("The GPU is idle for")
    assert page.data["open"]["why"] == "the longest time in which a GPU was idle"


TORCH = {
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 100, "dur": 50,
         "args": {"External id": 1}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": 110,
         "dur": 9, "args": {"correlation": 5, "External id": 1}},
        {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 130, "dur": 40.25,
         "args": {"correlation": 5, "device": 0, "stream": 7, "External id": 1}},
    ],
    "deviceProperties": [{"id": 0, "name": "Some GPU"}],
}  # fmt: skip


def test_torch_profiler(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump(TORCH, file)
    with Trace.open(path) as trace:
        page = PageReader(build_page(trace).html)
    (stream,) = page.of_kind("stream")
    assert stream.names == ["sgemm"] and stream.duration_ns.tolist() == [40_250]
    assert [lane.label for lane in page.of_kind("ranges")] == ["operators"]
    assert "with_stack=True" in page.data["lines"]["absent"]
    assert "cannot be told" in page.data["verdict"]


def said(page: PageReader) -> str:
    return str(page.data["verdict"])


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("fsdp_inference_2xh100.sqlite", lambda page: len(page.of_kind("idle")) == 2),
        ("sampling_h200.sqlite", lambda page: "absent" in page.data["lines"]),
        ("autograd_nvtx_h200.sqlite", lambda page: "absent" in page.data["lines"]),
        ("python_backtrace_h200.sqlite", lambda page: page.data["lines"]["data"]),
        (
            "resnet50_num_workers_0.pt.trace.json.gz",
            lambda page: "data loading" in page.data["verdict"],
        ),
        (
            "resnet50_num_workers_4.pt.trace.json.gz",
            lambda page: "data loading" not in page.data["verdict"],
        ),
    ],
)
def test_traces_of_others(captures: Path, name: str, check: Callable[[PageReader], object]) -> None:
    with Trace.open(captures / name) as trace:
        made = build_page(trace)
        kernels = int((trace.operations.kind == OperationKind.KERNEL).sum())
    page = PageReader(made.html)
    assert check(page), said(page)
    assert len(made.html) < 1_000_000 and made.kept == made.events
    assert page.data["coverage"]["kernels"] == kernels


def test_names_that_nothing_in_the_page_has_are_left_out(tmp_path: Path) -> None:
    """A hundred thousand ranges, each with a name of its own, must not fill the page."""
    builder = TraceBuilder()
    for i in range(3000):
        begin = builder.now_ns
        builder.launch("gemm", 2000).range(f"request {i}", begin, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace, events_at_most=1000).html)
    (ranges,) = page.of_kind("ranges")
    assert 100 < len(ranges.start_ns) < 600 and ranges.events == 3000
    assert len(page.head["names"]) < 2000 and set(ranges.names) <= set(page.head["names"])


def test_a_part_of_a_trace() -> None:
    wanted = WindowSelection(step="1:3")
    with Trace.open(OURS) as whole:
        trace = whole.windowed(wanted)
        page = PageReader(build_page(trace).html)
        operations = trace.operations
    assert "step 1:3" in page.data["window"] and "% of this part of the recording" in said(page)
    assert [row["name"] for row in page.data["steps"]["data"]] == ["training_step #2", "training_step #3"]
    (stream,) = page.of_kind("stream")
    assert sorted(stream.start_ns.tolist()) == sorted(operations.start_ns.tolist())
    assert page.data["coverage"]["gpu_ns"] == int(operations.duration_ns.sum())


def test_ranges_around_a_part_do_not_widen_its_timeline(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        begin = builder.now_ns
        builder.launch("gemm", 3000).range("inner", begin, begin + 100).gap(20_000)
        builder.range("training_step", begin, builder.now_ns)
    builder.range("epoch", 0, 10**9)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as whole:
        assert PageReader(build_page(whole).html).head["span_ns"] == 10**9
        page = PageReader(build_page(whole.windowed(WindowSelection(step="2"))).html)
    assert page.head["span_ns"] < 20_000
    shown = {name for lane in page.of_kind("ranges") for name in lane.names}
    assert shown == {"epoch", "training_step", "inner"}, "ranges around the part are there, cut to it"


def test_damaged_times_and_ids_do_no_harm(tmp_path: Path) -> None:
    far = (1 << 63) - 1
    builder = TraceBuilder().launch("gemm", 2000, stack="a.py:1 f").launch("gemm", 2000, device=-3, stream=-1)
    for start, end in ((-far - 1, far), (far, -far), (5_000_000, 4_000_000), (0, 0)):
        builder.row("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=0,
                    globalTid=builder.tid(2), correlationId=None, nameId=builder.string("cudaMalloc"),
                    returnValue=0)  # fmt: skip
        builder.range("range", start, end, thread=3)
        builder.row("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=-1, contextId=0,
                    streamId=far, correlationId=-5, globalPid=-1, demangledName=999,
                    shortName=999)  # fmt: skip
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        page = PageReader(build_page(trace).html)
    span = page.head["span_ns"]
    assert 0 < span < 1 << 62
    origin = int(page.head["origin_ns"])
    for lane in page.lanes:
        assert (lane.duration_ns >= 0).all() and (lane.start_ns >= origin).all()
        assert (lane.start_ns + lane.duration_ns <= origin + span).all()
