# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges: taken by our own injection, whoever the caller is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from package_root import PACKAGE_ROOT

APP = "import ctypes\nfrom nvtx_app import app\n"


def test_ranges_of_two_libraries(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
with profiling_lab.record(OUT) as recorder:
    one, two = app("one.so"), app("two.so")
    assert one.app_push(b"outer") == 0 and two.app_push(b"inner") == 1
    fake.kernel("a")
    assert two.app_pop() == 1 and one.app_pop() == 0
    assert one.app_pop() == -1  # one pop too many ends no range
assert recorder.summary.ranges == 2 and "nvtx" not in recorder.summary.reasons
assert "NVTX_INJECTION64_PATH" not in os.environ
""",
        env=apps,
    )
    outer, inner = query(
        "SELECT text, start, end, globalTid, domainId FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start"
    )
    assert (outer[0], inner[0]) == ("outer", "inner") and outer[4] == inner[4] == 0
    assert outer[1] <= inner[1] <= inner[2] <= outer[2] and outer[3] == inner[3]
    call = query("SELECT start, end, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME")[0]
    assert inner[1] <= call[0] <= call[1] <= inner[2] and call[2] == inner[3]


def test_domains_registered_strings_categories_payloads(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
import struct
with profiling_lab.record(OUT):
    one = app("one.so")
    domain = one.app_domain(b"NCCL")
    name = one.app_register(domain, b"ncclAllReduce")
    one.app_name_category(domain, 4, b"collectives")
    assert one.app_domain_push(domain, name, 3) == 0
    assert one.app_push(b"default domain has its own stack") == 0
    assert one.app_domain_pop(domain) == 0 and one.app_pop() == 0
    wide = ctypes.create_unicode_buffer("gr\\u00fc\\u00df\\u20ac\\U0001f600")
    one.app_domain_push(domain, ctypes.cast(wide, ctypes.c_void_p), 2); one.app_domain_pop(domain)
    one.app_mark(b"minus one", 0xff112233, 2, 2**64 - 1)
    one.app_mark(b"float", 0, 6, struct.unpack("<I", struct.pack("<f", 1.5))[0])
    one.app_mark(b"double", 0, 3, struct.unpack("<Q", struct.pack("<d", 2.5))[0])
    one.app_name_thread(4242, b"my worker")
""",
        env=apps,
    )
    text = "COALESCE(n.text, s.value)"
    joined = "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
    assert query(f"SELECT {text}, n.text IS NULL, domainId {joined} WHERE eventType = 59 ORDER BY start") == [
        ("ncclAllReduce", 1, 2), ("default domain has its own stack", 0, 0), ("grüß€😀", 0, 2),
    ]  # fmt: skip
    assert query(f"SELECT {text}, domainId {joined} WHERE eventType = 75") == [("NCCL", 2)]
    assert query(f"SELECT {text}, domainId, category {joined} WHERE eventType = 33") == [
        ("collectives", 2, 4)
    ]
    values = "text, int64Value, floatValue, doubleValue, category, color"
    assert query(f"SELECT {values} FROM NVTX_EVENTS WHERE eventType = 34 ORDER BY start") == [
        ("minus one", -1, None, None, 4, 0xFF112233), ("float", None, 1.5, None, 4, 0),
        ("double", None, None, 2.5, 4, 0),
    ]  # fmt: skip
    named = (
        "SELECT s.value FROM ThreadNames JOIN StringIds s ON s.id = nameId WHERE globalTid % 0x1000000 = 4242"
    )
    assert query(named) == [("my worker",)]


def test_ranges_that_cross_threads_and_the_end(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
import threading
with profiling_lab.record(OUT):
    one = app("one.so")
    id = one.app_start(b"across")
    thread = threading.Thread(target=one.app_end, args=(id,)); thread.start(); thread.join()
    one.app_end(id); one.app_end(123456)  # ended already, never started
    one.app_start(b"never ended")
    one.app_push(b"still open")
one.app_pop()
""",
        env=apps,
    )
    rows = {text: rest for text, *rest in query(
        "SELECT text, end IS NULL, globalTid = endGlobalTid, eventType FROM NVTX_EVENTS"
    )}  # fmt: skip
    assert rows == {"across": [0, 0, 60], "never ended": [1, None, 60], "still open": [1, None, 59]}


def test_a_library_that_woke_up_before_cannot_be_reached(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
early, late = app("one.so"), app("two.so")
assert early.app_push(b"before") == -2
with profiling_lab.record(OUT) as recorder:
    early.app_push(b"lost"); late.app_push(b"taken"); late.app_pop()
assert late.app_push(b"after") == -2 and late.app_attached()
with profiling_lab.record(OUT, overwrite=True): late.app_push(b"again"); late.app_pop()
""",
        env=apps,
    )
    assert query("SELECT text FROM NVTX_EVENTS") == [("again",)]


def test_long_text_is_copied(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
with profiling_lab.record(OUT):
    one = app("one.so")
    buffer = ctypes.create_string_buffer(b"x" * (1 << 20))
    one.app_push(ctypes.cast(buffer, ctypes.c_char_p)); ctypes.memset(buffer, ord("y"), 100); one.app_pop()
""",
        env=apps,
    )
    assert query("SELECT length(text), text LIKE '%y%' FROM NVTX_EVENTS") == [(1 << 20, 0)]


def test_many_ranges_from_many_threads(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
import threading
def work():
    for i in range(2000): one.app_push(b"seq = %d" % i); one.app_pop()
with profiling_lab.record(OUT) as recorder:
    one = app("one.so")
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
assert recorder.summary.ranges == 8000, recorder.summary
""",
        env=apps,
    )
    rows = query(
        "SELECT count(*), count(DISTINCT globalTid), count(DISTINCT text), min(end >= start) FROM NVTX_EVENTS"
    )
    assert rows == [(8000, 4, 2000, 1)]


def test_another_injection_keeps_its_place(run: Any) -> None:
    run(
        """
with profiling_lab.record(OUT) as recorder: pass
assert recorder.summary.reasons["nvtx"] == "NVTX ranges go to /opt/tool.so, because of NVTX_INJECTION64_PATH"
assert os.environ["NVTX_INJECTION64_PATH"] == "/opt/tool.so"
""",
        env={"NVTX_INJECTION64_PATH": "/opt/tool.so"},
    )


def test_a_child_process_is_left_alone(run: Any, apps: dict[str, str], tmp_path: Path) -> None:
    """It inherits the variable, but not the recording."""
    (tmp_path / "child.py").write_text("""
import ctypes, os
library = ctypes.CDLL(os.path.join(os.environ["APPS"], "one.so"))
library.app_push.argtypes = [ctypes.c_char_p]
assert "NVTX_INJECTION64_PATH" in os.environ and library.app_push(b"x") == -2
""")
    done = run(
        """
import subprocess
with profiling_lab.record(OUT): subprocess.run([sys.executable, "child.py"], check=True)
""",
        env=apps,
    )
    assert done.stderr == ""


def test_the_nvtx_package(run: Any, query: Any) -> None:
    pytest.importorskip("nvtx", reason="the nvtx package is not installed")
    run("""
with profiling_lab.record(OUT):
    import nvtx
    with nvtx.annotate("step", color="blue"):
        with nvtx.annotate("forward", domain="model", category="layer"): pass
""")
    rows = query(
        "SELECT COALESCE(text, value), domainId FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
        "WHERE eventType = 59 ORDER BY start"
    )
    assert [name for name, _ in rows] == ["step", "forward"]
    domains = dict(query(
        "SELECT COALESCE(text, value), domainId FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
        "WHERE eventType = 75"
    ))  # fmt: skip
    assert rows[1][1] == domains["model"]


def test_python_is_not_slowed_without_a_recording() -> None:
    """Importing the recorder sets no variable that libraries would act upon."""
    code = "import os, profiling_lab.recording; assert 'NVTX_INJECTION64_PATH' not in os.environ"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE_ROOT)
