// SPDX-License-Identifier: Apache-2.0
// One row of the timeline: its events in columns, and what it looks like from afar.

// The first index of a sorted array whose value is at least `wanted`.
function lowerBound(values, wanted, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Level {
  constructor(head, body) {
    this.width = head.width_ns;
    this.bucket = runningSum(numbers(body, head.bucket));
    this.busy = integers(body, head.busy);
    this.count = integers(body, head.count);
    this.name = integers(body, head.name);
    this.tint = integers(body, head.tint);
  }
}

class Lane {
  constructor(head, body, number) {
    Object.assign(this, {number, group: head.group, kind: head.kind, label: head.label, events: head.events});
    const columns = head.columns;
    this.end = numbers(body, columns.duration);
    this.start = numbers(body, columns.start, true);
    let sorted = true;
    for (let i = 0, before = 0; i < this.start.length; i++) {
      this.start[i] += before;
      this.end[i] += this.start[i];
      sorted &&= this.end[i] >= before;
      before = this.end[i];
    }
    // Events that overlap: whether one reaches a moment is asked of the latest end so far.
    this.latest = sorted ? this.end : this.end.slice();
    if (!sorted) for (let i = 1; i < this.latest.length; i++) {
      this.latest[i] = Math.max(this.latest[i], this.latest[i - 1]);
    }
    this.name = integers(body, columns.name);
    this.tint = integers(body, columns.tint);
    this.stack = integers(body, columns.stack);
    this.more = {};
    for (const [name, where] of Object.entries(columns)) {
      if (name === 'call') this.more.call = runningSum(numbers(body, where, true));
      else if (!['start', 'duration', 'name', 'tint', 'stack'].includes(name)) this.more[name] = numbers(body, where);
    }
    this.levels = head.levels.map((level) => new Level(level, body));
    this.matches = null;
  }

  get length() {
    return this.start.length;
  }

  duration(i) {
    return this.end[i] - this.start[i];
  }

  // The first event that is not over at a moment.
  firstAfter(time) {
    return lowerBound(this.latest, time + 1e-9);
  }

  // The level whose buckets are about a pixel wide, null where the events themselves are to be drawn.
  levelFor(nsPerPixel) {
    const finest = this.levels[this.levels.length - 1];
    if (!finest || finest.width > 2 * nsPerPixel) return null;
    return this.levels.find((level) => level.width <= 2 * nsPerPixel) ?? finest;
  }

  // The event at a moment, or the longest one that a finger's width around it touches; -1 for none.
  at(time, slack) {
    let best = -1, length = -1;
    for (let i = this.firstAfter(time - slack); i < this.length && this.start[i] <= time + slack; i++) {
      if (this.end[i] < time - slack) continue;
      const holds = this.start[i] <= time && time < this.end[i];
      const weight = this.duration(i) + (holds ? Number.MAX_SAFE_INTEGER : 0);
      if (weight > length) [best, length] = [i, weight];
    }
    return best;
  }

  // The bucket at a moment, for events that are not in the page one by one.
  bucketAt(time) {
    const level = this.levels[this.levels.length - 1];
    if (!level) return null;
    const wanted = Math.floor(time / level.width);
    const i = lowerBound(level.bucket, wanted);
    if (level.bucket[i] !== wanted) return null;
    return {from: wanted * level.width, to: (wanted + 1) * level.width, count: level.count[i],
            busy: level.busy[i] / 255, name: level.name[i]};
  }

  // Remember which events a search found: their indices.
  find(isHit) {
    const hits = [];
    for (let i = 0; i < this.length; i++) if (isHit(this, i)) hits.push(i);
    this.matches = Uint32Array.from(hits);
    return hits.length;
  }
}
