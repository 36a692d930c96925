# SPDX-License-Identifier: Apache-2.0
"""Damaged files of torch.profiler: what is whole in them is read, what is not is counted and said."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_chrome import ENGINE, MAIN, Event, document, event

from profiling_lab import _analysis
from profiling_lab.analysis.info import info
from profiling_lab.analysis.lines import lines
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.trace import Trace
from profiling_lab.trace.kineto import pieces as chrome_pieces
from profiling_lab.trace.kineto.source import ChromeSource

LAUNCHES = 200


def launches(count: int = LAUNCHES) -> list[Event]:
    events: list[Event] = []
    for i in range(count):
        events += [
            event("cuda_runtime", "cudaLaunchKernel", 10 * i, 1, correlation=i),
            event("kernel", f"k{i % 3}", 10 * i + 2, 5, 7, 0, correlation=i, device=0, stream=7),
        ]
    return events


def repaired(path: Path, content: str | bytes) -> tuple[Trace, dict[str, int]]:
    """The trace, read, and its repairs by the first words of what was wrong."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    trace = Trace.open(path)
    lines(trace, by="kernel")
    return trace, {" ".join(what.split()[:4]): count for what, count in trace.repairs.items()}


def text(events: list[Event]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "t.json"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.json"


def test_a_file_that_breaks_off_keeps_its_whole_events(path: Path) -> None:
    whole = text(launches())
    for cut in (len(whole) // 2, len(whole) - 1, whole.index("traceName") - 5):
        trace, repairs = repaired(path, whole[:cut])
        assert repairs.pop("break: the file ends") == 1
        assert set(repairs) <= {"bytes of events that"}, "those of the last one"
        written = whole[:cut].count('"cat": "kernel"')
        assert written - 1 <= len(trace.operations) <= written
        notes = lines(trace, by="kernel").coverage.notes
        assert any("1 break: the file ends before its JSON does" in note for note in notes), (
            "every table says it"
        )


def test_gzip_that_breaks_off_keeps_what_can_be_unpacked(path: Path) -> None:
    dice = random.Random(1)
    events = [e | {"dur": round(dice.uniform(0, 9), 3)} for e in launches(5000)]
    packed = gzip.compress(text(events).encode())
    for cut in (len(packed) - 1, len(packed) - 40, len(packed) // 2):
        trace, repairs = repaired(path, packed[:cut])
        assert repairs.pop("break: the gzip data") == 1
        assert set(repairs) <= {"bytes of events that"}, "those of the last one"
        assert len(trace.operations) > 5000 * cut / len(packed) * 0.9 - 50


def test_gzip_with_damage_inside_keeps_what_comes_before(path: Path) -> None:
    dice = random.Random(1)
    events = [e | {"dur": round(dice.uniform(0, 9), 3)} for e in launches(5000)]
    packed = bytearray(gzip.compress(text(events).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 20] = b"\xff" * 20
    trace, repairs = repaired(path, bytes(packed))
    assert repairs["break: the gzip data"] == 1
    assert len(trace.operations) > 1500


def test_several_gzip_members_are_one_file(path: Path) -> None:
    whole = text(launches()).encode()
    at = len(whole) // 3
    trace, repairs = repaired(path, gzip.compress(whole[:at]) + gzip.compress(whole[at:]) + b"\0" * 100)
    assert len(trace.operations) == LAUNCHES and not repairs


@pytest.mark.parametrize("left_over", [0, 1, 2, 3])
def test_a_member_may_begin_where_a_read_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch, left_over: int
) -> None:
    whole = text(launches()).encode()
    first = gzip.compress(whole[:9000])
    monkeypatch.setattr(chrome_pieces, "_PACKED_BYTES", len(first) + left_over)
    trace, repairs = repaired(path, first + gzip.compress(whole[9000:]))
    assert len(trace.operations) == LAUNCHES and not repairs


@pytest.mark.parametrize(
    ("wrong", "lost"),
    [
        ('{"ph": "X", "cat": "kernel", "na', 0),
        ('{"ph": "X" "cat": "kernel"},', 0),
        ('{"ph": "X", "args": {"a": [1, 2}},', 0),
        ("@@@,", 0),
        ("}, ", 0),
        ('{"ph": "X", "args": ' + "[" * 100 + "]" * 100 + "},", 0),
        ('{"ph": "X", "name": "' + "x" * 100_000, 1),
    ],
    ids=["unfinished", "comma", "bracket", "stray", "brace", "deep", "quote"],
)
def test_damage_inside_costs_the_events_there(path: Path, wrong: str, lost: int) -> None:
    whole = text(launches())
    at = whole.index("{", len(whole) // 2)
    at = whole.index('{"ph"', at)
    trace, repairs = repaired(path, whole[:at] + wrong + whole[at:])
    assert repairs["places where the events"] == 1
    assert repairs.get("bytes of events that", 0) < len(wrong) + 400
    assert LAUNCHES - 1 - lost <= len(trace.operations) <= LAUNCHES


def test_facts_may_come_last_and_be_damaged(path: Path) -> None:
    doc = {"traceEvents": launches(), "deviceProperties": [{"name": "GPU X", "numSms": 3}], "with_stack": 1}
    trace, repairs = repaired(path, json.dumps(doc).replace('"with_stack": 1', '"with_stack": N/A'))
    assert isinstance(trace.source, ChromeSource)
    assert trace.source.events.devices == ({"name": "GPU X", "numSms": 3},) and not repairs
    trace, repairs = repaired(path, json.dumps(doc).replace('"numSms": 3', '"numSms" 3'))
    assert repairs == {"metadata that is not": 1} and len(trace.operations) == LAUNCHES


def test_a_byte_order_mark_is_none_of_the_text(path: Path) -> None:
    trace, repairs = repaired(path, b"\xef\xbb\xbf" + text(launches()).encode())
    assert len(trace.operations) == LAUNCHES and not repairs
    trace, repairs = repaired(path, gzip.compress(b"\xef\xbb\xbf" + text(launches()).encode()))
    assert len(trace.operations) == LAUNCHES and not repairs


def test_times_as_text_are_numbers(path: Path) -> None:
    events = [*launches(), event("kernel", "k9", 5000, 1) | {"ts": "5000.125", "dur": "1e1"}]
    trace, repairs = repaired(path, text(events))
    assert repairs == {"events with times written": 1}
    assert (trace.operations.start_ns[-1], trace.operations.end_ns[-1]) == (5_000_125, 5_010_125)


def test_what_an_event_must_have(path: Path) -> None:
    events = launches()
    for missing in ("ph", "ts", "dur"):
        events.append({key: value for key, value in event("kernel", "wild", 1, 1).items() if key != missing})
    events.append({"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9.3e18})
    for wild in (8 * 24 * 3600e6, -1, "soon", 1e300):
        events.append(event("kernel", "wild", 1, 1) | {"dur": wild})
    for wild in (1e16, -1e16, 9223372036854775807, 1e300, None, [1]):
        events.append(event("kernel", "wild", 1, 1) | {"ts": wild})
    trace, repairs = repaired(path, text(events))
    assert repairs == {"events without a phase": 1, "events without a sensible": 12}
    assert "wild" not in trace.operations.names


def test_integers_over_64_bits_are_not_there(path: Path) -> None:
    huge = event("kernel", "k", 10, 1, correlation=2**64, stream=-(10**40), device=2**63 - 1)
    trace, repairs = repaired(path, text([*launches(), huge]))
    assert repairs == {"integers over 64 bits": 2}
    assert (trace.operations.correlation[-1], trace.operations.stream[-1]) == (-1, -1)
    assert trace.operations.device[-1] == 2**31 - 1, (
        "a device is a small number; the largest one stands for it"
    )


def test_names_that_are_no_utf8(path: Path) -> None:
    content = text(launches()).encode().replace(b'"k1"', b'"k\xff1"')
    trace, repairs = repaired(path, content)
    assert repairs == {"names that are not": 1} and "k\ufffd1" in trace.operations.names


def test_processes_and_threads_with_odd_numbers(path: Path) -> None:
    threads = (-1, 1 << 40, 5, 5 + (1 << 24), "Trace thread", 2**70, None)
    events = [event("cuda_runtime", "cudaMalloc", 10 * i, 1, tid=t) for i, t in enumerate(threads)]
    trace, repairs = repaired(path, text(launches() + events))
    assert len(set(trace.calls.thread[-len(threads) :].tolist())) == len(threads), "none is taken for another"
    assert len(set(trace.tids)) == len(trace.tids)
    assert repairs["threads whose id is"] >= 1
    for pid in (-7, 1 << 50):
        events = [e | {"pid": pid if e["cat"] != "kernel" else 0} for e in launches()]
        trace, _ = repaired(path, text(events))
        assert len(set(trace.calls.process.tolist())) == 1 and len(trace.operations) == LAUNCHES


def test_one_correlation_id_in_two_processes(path: Path) -> None:
    """Two ranks in one file: each operation goes to the process that last launched with its id."""
    events = []
    for pid, start, device in ((100, 0, 0), (200, 1000, 1)):
        for i in range(3):
            ids = {"correlation": i, "device": device}
            events.append(
                event("cuda_runtime", "cudaLaunchKernel", start + 10 * i, 1, pid=pid, correlation=i)
            )
            events.append(event("kernel", f"of {pid}", start + 10 * i + 2, 5, 7, device, **ids))
    trace, repairs = repaired(path, text(events))
    assert repairs == {"GPU operations whose correlation": 6}
    names = [trace.operations.names[i] for i in trace.operations.name.tolist()]
    assert [f"of {trace.pids[p]}" for p in trace.operations.process.tolist()] == names
    assert (trace.calls.start_ns[trace.attribution.call] == trace.operations.start_ns - 2000).all()


def test_operations_before_their_launch_are_counted(path: Path) -> None:
    events = launches()
    for e in events[1:40:2]:
        e["ts"] -= 5
    trace, repairs = repaired(path, text(events))
    assert repairs == {"GPU operations that begin": 20} and len(trace.operations) == LAUNCHES


def test_functions_that_do_not_nest_are_counted(path: Path) -> None:
    events = launches()
    for name, ts, dur in (("a.py(1): f", 0, 1000), ("b.py(2): g", 500, 1200)):
        events.append(event("python_function", name, ts, dur))
    trace, repairs = repaired(path, text(events))
    assert repairs == {"Python functions that overlap": 1}
    assert {row.key for row in lines(trace).rows} == {"a.py:1"}


def test_a_launch_on_another_thread_has_no_stack_of_this_one(path: Path) -> None:
    events = [
        *launches(),
        event("python_function", "a.py(1): f", 0, 1e6, ENGINE),
        event("cpu_op", "x", 0, 1, MAIN),
    ]
    trace, _ = repaired(path, text(events))
    assert not trace.calls.stack.any()


def hundred_megabytes_of_noise(dice: random.Random) -> bytes:
    return b"{" + dice.randbytes(4 << 20) * 25


def nothing_but_openings(dice: random.Random) -> bytes:
    return b'{"traceEvents":[' + b',{"ph":[' * (1 << 20)


def one_endless_text(dice: random.Random) -> bytes:
    return b'{"traceEvents":[{"ph":"X","name":"' + b"x" * (32 << 20)


def quotes(dice: random.Random) -> bytes:
    return b'[{"ph":' + b'"' * (8 << 20)


@pytest.mark.parametrize(
    "make",
    [hundred_megabytes_of_noise, nothing_but_openings, one_endless_text, quotes],
    ids=lambda f: f.__name__,
)
def test_what_is_no_trace_at_all_is_said_in_linear_time(
    path: Path, make: Callable[[random.Random], bytes]
) -> None:
    """A reader that looked at its bytes again and again would sit here for hours."""
    path.write_bytes(make(random.Random(3)))
    with pytest.raises(UnreadableInputError, match=r"is not a trace of torch\.profiler") as caught:
        Trace.open(path)
    assert "\n" not in str(caught.value)


def test_a_long_event_is_not_read_again_with_every_piece() -> None:
    reader = _analysis.ChromeReader()
    reader.feed(b'[{"ph":"X","cat":"cpu_op","name":"')
    for _ in range(1 << 15):
        reader.feed(b"y" * 512)
    reader.feed(b'","ts":1,"dur":2,"pid":1,"tid":1}]')
    reader.finish()
    assert len(reader.take_table("operators")["name"]) == 1 and not any(reader.damage().values())
    assert len(reader.texts()[0][0]) == 512 << 15


def test_everything_torch_writes_is_read_without_repairs(path: Path) -> None:
    _, repairs = repaired(path, json.dumps(document()))
    assert not repairs


def test_a_trace_cut_before_its_gpu_events_says_that_it_is_cut(path: Path) -> None:
    """torch.profiler writes the GPU's events last: of a file cut to 60 % none may be left."""
    host = [e for e in launches() if e["cat"] == "cuda_runtime"]
    gpu = [e for e in launches() if e["cat"] == "kernel"]
    whole = text(host + gpu)
    cut = whole[: int(len(text(host)) * 0.6)]
    path.write_text(cut)
    trace = Trace.open(path)
    assert not len(trace.operations) and len(trace.calls) == len(trace.calls) > 100
    assert (
        f"the file is truncated after {len(cut):,} bytes and {len(trace.calls)} events" in trace.why_empty()
    )
    assert (
        trace.why_empty().removeprefix(f"{path} holds no GPU operation: ").startswith(info(trace).warnings[0])
    )
    with pytest.raises(NotEnoughDataError, match="is truncated"):
        lines(trace, by="kernel")
    path.write_bytes(gzip.compress(whole.encode())[:-1000])
    assert "bytes (unpacked) and" in info(Trace.open(path)).warnings[0]


def test_a_second_trace_in_the_same_file_does_not_count(path: Path) -> None:
    whole = text(launches())
    for twice in (whole + whole, f"{whole}\n{whole}", json.dumps(launches()) * 2):
        trace, repairs = repaired(path, twice)
        assert len(trace.operations) == LAUNCHES and repairs == {"break: another trace follows": 1}
    packed = gzip.compress(whole.encode())
    trace, repairs = repaired(path, packed + packed)
    assert len(trace.operations) == LAUNCHES and repairs == {"break: another trace follows": 1}


@pytest.mark.parametrize(
    ("category", "reason"),
    [
        ("mtia_ccp_events", "is an MTIA"),
        ("cuda_profiler_range", "counters of CUPTI ranges"),
        ("x", "Activity"),
    ],
)
def test_why_there_are_no_gpu_events(path: Path, category: str, reason: str) -> None:
    path.write_text(text([event("cpu_op", "aten::mm", 1, 2), event(category, "work", 3, 4)]))
    assert reason in Trace.open(path).why_empty()
