# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that notes which lines each test runs, and for how long: `-p mutation.record`.

Every process of pytest writes a file of its own into the folder $MUTATION_RECORD. Of a test function with
more than $MUTATION_RECORD_MOST sets of parameters, that number runs, drawn at random.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import coverage
import pytest

_FOLDER = Path(os.environ["MUTATION_RECORD"])
_ROOT = Path.cwd()
_MOST = int(os.environ["MUTATION_RECORD_MOST"])


class _Recorder:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(data_file=None, include=[f"{_ROOT}/profiling_lab/ops/*"])
        self.coverage.start()
        for op in import_module("profiling_lab.ops").OPS:  # else what runs at import is the first test's
            import_module(f"profiling_lab.ops.{op}")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        functions: dict[str, list[pytest.Item]] = {}
        for item in items:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
        draw = random.Random(0)  # the same in every process of pytest
        items[:] = [one for same in functions.values() for one in draw.sample(same, min(_MOST, len(same)))]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        yield
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "passed":
            self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        else:
            self.seconds[report.nodeid] = float("nan")  # of no use here: skipped, or failing without a mutant

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        if not self.seconds:
            return
        data = self.coverage.get_data()
        lines: dict[str, dict[int, list[str]]] = {}
        for file in data.measured_files():
            name = str(Path(file).relative_to(_ROOT))
            lines[name] = {line: sorted(c) for line, c in data.contexts_by_lineno(file).items()}
        good = {name: round(s, 3) for name, s in self.seconds.items() if s == s}
        _FOLDER.mkdir(parents=True, exist_ok=True)
        (_FOLDER / f"{os.getpid()}.json").write_text(json.dumps({"seconds": good, "lines": lines}))


def pytest_configure(config: Any) -> None:
    if getattr(config.option, "numprocesses", None) is None or hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(), "mutation-recorder")
