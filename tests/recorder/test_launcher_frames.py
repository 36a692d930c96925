# SPDX-License-Identifier: Apache-2.0
"""Under `profiling-lab record` a stack holds the program's frames, all of them and no others.

The frames that run the script are the outermost ones of its main thread. Other threads do not have them, nor
do greenlets, each of which has a chain of frames of its own on the thread that it runs on.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

HERE = Path(__file__).resolve().parent

BEGIN = """
import asyncio, json, sys, threading
from fake_driver import Fake

fake, expected = Fake(), {}


def frames(frame):
    while frame is not None and "profiling_lab/recording/run_script" not in frame.f_code.co_filename:
        yield frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back


def check(_=None):
    expected[fake.call(211)] = list(frames(sys._getframe()))  # one line: the call's and the frame's


"""
END = """
check()
json.dump(expected, open("expected.json", "w"))
"""

PROGRAMS = {
    "main thread": """
def outer():
    check()
    return sorted([2, 1], key=check or int)
check()
try: outer()
except TypeError: pass
exec("check()")
""",
    "threads": """
def work():
    check()
    inner = threading.Thread(target=check); inner.start(); inner.join()
thread = threading.Thread(target=work); thread.start(); thread.join()
""",
    "generators": """
def numbers():
    check(); yield 1
    check(); yield 2
def outer():
    yield from numbers()
for _ in outer(): check()
""",
    "asyncio": """
async def inner():
    check()
    await asyncio.sleep(0)
    check()
async def main():
    await asyncio.gather(inner(), inner(), asyncio.to_thread(check))
asyncio.run(main())
""",
    "greenlet": """
from greenlet import greenlet, getcurrent
def ping():
    check()
    other.switch()
    check()
    greenlet(nested).switch()
    check()
def pong():
    check()
    one.switch()
    check()
def nested():
    check()
    greenlet(check).switch()
    check()
def deep(n):
    check() if n == 0 else deep(n - 1)
def all_of_them():
    global one, other
    one, other = greenlet(ping), greenlet(pong)
    one.switch()
    other.switch()
    greenlet(check).switch()
    greenlet(lambda: deep(20)).switch()
    check()
all_of_them()
thread = threading.Thread(target=all_of_them); thread.start(); thread.join()
""",
    "gevent": """
import gevent
from gevent.pool import Pool
def work(n):
    check()
    gevent.sleep(0)
    check()
gevent.joinall([gevent.spawn(work, n) for n in range(3)])
Pool(2).map(work, range(3))
gevent.spawn_later(0, check).join()
gevent.get_hub().threadpool.apply(check)
""",
    "gevent in place of threads": """
from gevent import monkey
monkey.patch_all()
import threading, time
from concurrent.futures import ThreadPoolExecutor
def work(n=0):
    check()
    time.sleep(0)
    check()
thread = threading.Thread(target=work); thread.start(); thread.join()
with ThreadPoolExecutor(2) as pool: list(pool.map(work, range(3)))
""",
}


def captured(path: Path) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """The stack of each recorded call as (plain function name, line), innermost first."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
        nodes = {
            number: (parent, (name.rsplit(".", 1)[-1], line))
            for number, parent, name, line in file.execute(
                "SELECT s.id, s.parentId, (SELECT value FROM StringIds WHERE id = f.functionId), f.line "
                "FROM PYREC_STACK s JOIN PYREC_FRAME f ON f.id = s.frameId"
            )
        }
        calls = file.execute("SELECT correlationId, stackId FROM PYREC_LAUNCH").fetchall()
    for correlation, node in calls:
        stack = []
        while node:
            node, frame = nodes[node]
            stack.append(frame)
        yield correlation, stack


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stack_is_the_programs(name: str, tmp_path: Path, fake_library: Path) -> None:
    for module in ("greenlet", "gevent"):
        if name.startswith(module) and find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install {module}")
    (tmp_path / "script.py").write_text(BEGIN + PROGRAMS[name] + END)
    paths = [str(PACKAGE_ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "profiling_lab", "record", "-o", "out.sqlite", "script.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PROFILING_LAB_CUPTI": str(fake_library), "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    expected = {
        int(correlation): [(name, line) for name, line in frames]
        for correlation, frames in json.loads((tmp_path / "expected.json").read_text()).items()
    }
    got = {
        correlation: frames[1:] for correlation, frames in captured(tmp_path / "out.sqlite")
    }  # less Fake.call
    assert len(expected) >= 3
    assert {correlation: got.get(correlation) for correlation in expected} == expected
