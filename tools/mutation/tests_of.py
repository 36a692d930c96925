# SPDX-License-Identifier: Apache-2.0
"""Which tests a mutant must survive: of Python those that run its line, of C++ those of its op."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from mutation import Mutant

OF_FILES = (
    (re.compile("profiling_lab/ops/explain"), re.compile("/test_explain")),
    (re.compile("profiling_lab/ops/sharding"), re.compile("/test_dtensor")),
    (re.compile("profiling_lab/ops/flops"), re.compile("/test_flops")),
    (re.compile("profiling_lab/ops/(_load|__init__)"), re.compile("/test_torch_abi")),
    (re.compile("profiling_lab/"), re.compile("(?!)")),
    (
        re.compile("csrc/ops/attention/"),
        re.compile(r"/test_attention|/test_contract_details|\[(?:[^]]*-)?attention"),
    ),
    (re.compile("csrc/ops/heavy_layer/"), re.compile("heavy_layer|/test_contract_details")),
    (re.compile("csrc/ops/ladder_attention/"), re.compile("ladder_attention|/test_contract_details")),
    (re.compile("csrc/ops/layer_norm_gelu/"), re.compile("layer_norm_gelu|/test_contract_details")),
    (re.compile("csrc/(ops/register|torch_abi/(abi|library))"), re.compile("/test_torch_abi")),
    (re.compile("csrc/"), re.compile("")),  # what all ops share
)
"""(files, ids of tests): the first that matches counts. Of Python, tests that start processes."""


class Record:
    """What mutation.record noted."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime):
            noted = json.loads(file.read_text())
            self.seconds.update(noted["seconds"])
            for name, lines in noted["lines"].items():
                for line, tests in lines.items():
                    self.lines[name][int(line)].update(tests)

    def tests_of(self, mutant: Mutant, budget: float) -> list[str]:
        """The quick ones first, each test function once before any a second time, for `budget` seconds."""
        functions: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self._that_see(mutant), key=self.seconds.__getitem__):
            functions[test.partition("[")[0]].append(test)
        rounds = sorted(
            (number, self.seconds[test], test)
            for tests in functions.values()
            for number, test in enumerate(tests)
        )
        chosen, spent = [], 0.0
        for _, seconds, test in rounds:
            if not chosen or spent + seconds <= budget:
                chosen.append(test)
                spent += seconds
        return chosen

    def one_of_each_file(self) -> list[str]:
        quickest: dict[str, str] = {}
        for test in sorted(self.seconds, key=self.seconds.__getitem__):
            quickest.setdefault(test.partition("::")[0], test)
        return list(quickest.values())

    def _that_see(self, mutant: Mutant) -> set[str]:
        ids = next(ids for files, ids in OF_FILES if files.search(mutant.file))
        by_name = {test for test in self.seconds if ids.search(test)}
        if not mutant.file.endswith(".py"):
            return by_name
        lines = self.lines[mutant.file]
        line = max((line for line in lines if line <= mutant.line), default=0)  # a statement of several lines
        tests = lines[line] & self.seconds.keys()
        if "" in lines[line]:  # runs at import: whoever uses the module sees it
            tests = set().union(*lines.values()) & self.seconds.keys()
        return tests | by_name
