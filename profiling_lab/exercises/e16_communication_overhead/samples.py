# SPDX-License-Identifier: Apache-2.0
"""What communication.json, its links and its recordings say; and the model that predicts another step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from profiling_lab.analysis.collectives import collectives
from profiling_lab.analysis.collectives.links import LinkFit, Links, load
from profiling_lab.analysis.collectives.nccl_text import NcclChoice, NcclFacts, nccl_facts
from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.exercises.job_facts import measurement

MIB = 1 << 20
REDUCE = "AllReduce"


@dataclass(frozen=True)
class CommunicationFacts:
    """One run: its recordings, and what the links of its machine reach."""

    gpu: str
    links: Links
    nccl: NcclFacts
    recordings: tuple[Path, ...]

    @property
    def ranks(self) -> int:
        return len(self.recordings)

    @property
    def fit(self) -> LinkFit:
        """Of all-reduces on these ranks."""
        return self.links.fit(REDUCE, self.ranks)

    @cached_property
    def job(self) -> JobResult:
        return ranks([str(path) for path in self.recordings], pool=LocalPool(1))

    @property
    def step_ms(self) -> float:
        return self.job.step_ns / 1e6

    @property
    def exposed_ms(self) -> float:
        """Communication of a step that compute does not hide, on average over the ranks."""
        return statistics.fmean(row.exposed_ns for row in self.job.rows) / 1e6

    @cached_property
    def messages(self) -> tuple[int, ...]:
        """Bytes of each all-reduce of a step of rank 0, the largest first."""
        files = [str(path) for path in self.recordings]
        found = collectives(files, "collective", pool=LocalPool(1)).rows
        by_step: defaultdict[int, list[int]] = defaultdict(list)
        for row in found:
            if row.kind == REDUCE and row.step is not None and row.sizes.count:
                by_step[row.step].append(int(row.sizes.median))
        if not by_step:
            raise NotEnoughDataError("the recordings have no all-reduce whose size and step are known")
        usual = statistics.mode(tuple(sorted(sizes, reverse=True)) for sizes in by_step.values())
        return usual

    @property
    def reduced_mib(self) -> float:
        return sum(self.messages) / MIB

    @property
    def reached_percent(self) -> float:
        """Of what the links reach for these messages, from the last rank's arrival on."""
        files = [str(path) for path in self.recordings]
        rows = collectives(files, "kind", pool=LocalPool(1), links=self.links).rows
        shares = [row.links for row in rows if row.kind == REDUCE and row.links is not None]
        if not shares:
            raise NotEnoughDataError("the all-reduces of the recordings cannot be compared with the links")
        return 100 * shares[0].reached_frac

    @property
    def choice(self) -> NcclChoice | None:
        """How NCCL carries out the largest all-reduce; None where its text does not say it."""
        return self.nccl.of(REDUCE, self.messages[0])


def predicted_ms(facts: CommunicationFacts, bucket_bytes: int, sms: int) -> float:
    """The step with smaller buckets, from a run in which one bucket is reduced after backward.

    What was exposed is gone, but for the last bucket. While the others are reduced behind backward, NCCL's
    thread blocks, one per channel, hold as many SMs, so backward is slower by their share. This
    holds as long as the reduction is shorter than backward.
    """
    whole = sum(facts.messages)
    last = min(bucket_bytes, whole)
    times = facts.links.expected_ns(REDUCE, facts.ranks, np.array([last, max(whole - last, 1)]))
    if times is None:
        raise NotEnoughDataError(f"the links were not measured for {REDUCE} on {facts.ranks} ranks")
    last_ms, hidden_ms = (times / 1e6).tolist()
    channels = (facts.choice.channels if facts.choice else None) or facts.nccl.channels or 0
    slower_ms = hidden_ms * channels / sms
    return float(facts.step_ms - facts.exposed_ms + last_ms + slower_ms)


def communication_facts(path: Path) -> CommunicationFacts:
    """Raises UnreadableInputError or NotEnoughDataError, with a sentence for the learner."""
    data = measurement(path, "communication_benchmark.py")
    try:
        names, lines = [str(name) for name in data["recordings"]], [str(line) for line in data["nccl"]]
        links, gpu = path.parent / str(data["links"]), str(data["gpu"])
    except (KeyError, TypeError):
        raise UnreadableInputError(f"{path.name} is not what communication_benchmark.py writes") from None
    if len(names) < 2:
        raise NotEnoughDataError(f"{path.name} names {len(names)} recordings, expected one for each rank")
    files = tuple(path.parent / name for name in names)
    facts = CommunicationFacts(gpu, load(links), nccl_facts("\n".join(lines)), files)
    if facts.job.failures:
        raise UnreadableInputError(facts.job.failures[0].sentence)
    if len(facts.job.rows) != len(names) or not facts.job.step_ns:
        raise NotEnoughDataError(f"expected steps of {len(names)} ranks, found {len(facts.job.rows)}")
    return facts
