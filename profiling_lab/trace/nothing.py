# SPDX-License-Identifier: Apache-2.0
"""Tables of a file that has no call and no range."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.call_stacks import CallTable, StacksFound, unknown_facts
from profiling_lab.trace.columns import Calls, Ranges
from profiling_lab.trace.stacks import Stacks

TIMES = np.empty(0, np.int64)
NUMBERS = np.empty(0, np.int32)
FLAGS = np.empty(0, np.uint8)


def no_calls(stacks: Stacks) -> CallTable:
    facts = unknown_facts(0)
    calls = Calls(
        start_ns=TIMES,
        end_ns=TIMES,
        process=NUMBERS,
        thread=NUMBERS,
        correlation=TIMES,
        name=NUMBERS,
        names=(),
        stack=facts.stack,
        next_sequence=facts.next_sequence,
        node_sequence=facts.node_sequence,
        counter=facts.counter,
        node_counter=facts.node_counter,
        node_name=facts.node_name,
        node_names=(),
        traits=FLAGS,
        own_ns=facts.own_ns,
    )
    return CallTable(calls, stacks, StacksFound("", 0, 0, 0))


def no_ranges() -> Ranges:
    return Ranges(TIMES, TIMES, NUMBERS, NUMBERS, NUMBERS, (), TIMES, FLAGS, TIMES, {}, NUMBERS)
