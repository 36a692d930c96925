# SPDX-License-Identifier: Apache-2.0
"""Round 4, program b: sum up the visits of a log, with a class for them and counters of what was done."""

import inspect
import json
import random
from collections import Counter

RECORDS = 90_000
BATCH = 20


def make_log(count, seed=0):
    """Lines of JSON, the same for the same seed."""
    generator = random.Random(seed)
    lines = []
    for number in range(count):
        user, spent = generator.randrange(500), generator.randrange(1, 900)
        lines.append(f'{{"number": {number}, "user": "u{user}", "spent": {spent}}}')
    return lines


class Counters:
    """How often each function asked for a count: for the operators' page."""

    def __init__(self):
        self.counts = Counter()

    def add(self, number):
        caller = inspect.stack()[1].function
        self.counts[caller] += number


class Visits:
    """The lengths of all visits, by user."""

    def __init__(self, counters):
        self.counters = counters
        self.by_user = {}

    def load(self, lines):
        for start in range(0, len(lines), BATCH):
            self.load_batch(lines[start : start + BATCH])

    def load_batch(self, lines):
        for line in lines:
            record = json.loads(line)
            self.by_user.setdefault(record["user"], []).append(record["spent"])
        self.counters.add(len(lines))


def main():
    visits = Visits(Counters())
    visits.load(make_log(RECORDS))
    found = visits.by_user
    longest = max(found, key=lambda user: (sum(found[user]), user))
    print(f"{RECORDS} visits of {len(found)} users; {longest} stayed longest: {sum(found[longest])} s")


if __name__ == "__main__":
    main()
