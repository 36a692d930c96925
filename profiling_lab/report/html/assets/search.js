// SPDX-License-Identifier: Apache-2.0
// Find events by name or by line: the others fade, the hits can be stepped through.

const RESULTS_SHOWN = 12;

class Search {
  constructor(timeline) {
    this.timeline = timeline;
    this.active = false;
    this.asked = '';  // a text, or `line /path/of/file.py:12`
    this.onChange = () => {};
    this.input = byId('search');
    let waiting = 0;
    this.input.addEventListener('input', () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.byText(this.input.value), 120);
    });
    this.input.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') this.next(event.shiftKey ? -1 : 1);
      else if (event.key === 'Escape') this.clear();
      else return;
      event.preventDefault();
    });
    byId('hit-next').addEventListener('click', () => this.next(1));
  }

  clear() {
    this.ask('');
  }

  // A text as typed, or what `asked` was before.
  ask(asked) {
    const [, file, line] = /^line (.*):(\d+)$/.exec(asked) ?? [];
    if (file) this.showLine(file, Number(line));
    else {
      this.input.value = asked;
      this.byText(asked);
    }
  }

  byText(text) {
    this.asked = text.trim();
    const wanted = this.asked.toLowerCase();
    if (!wanted) {
      this.apply(null);
      return;
    }
    const named = names.shown.map((name, i) => (
      name.toLowerCase().includes(wanted) || (names.whole[i] ?? '').toLowerCase().includes(wanted)));
    const onLine = this.stacksOn((frame) => (
      frame && `${frame.file}:${frame.line} ${frame.function}`.toLowerCase().includes(wanted)));
    this.apply((lane, i) => named[lane.name[i]] || (lane.kind !== 'line' && onLine[lane.stack[i]]));
  }

  // All that a line answers for: its launches, their kernels, and those of its backward.
  byLine(file, line) {
    this.showLine(file, line);
    this.next(1);
    bringIntoSight('timeline');
  }

  showLine(file, line) {
    this.asked = `line ${file}:${line}`;
    const on = this.timeline.stacks.onLine(file, line);
    this.input.value = `${baseName(file)}:${line}`;
    this.apply((lane, i) => on[lane.stack[i]]);
  }

  stacksOn(wanted) {
    const {stacks} = this.timeline, out = new Uint8Array(stacks.parent.length);
    for (let row = 1; row < out.length; row++) out[row] = wanted(stacks.line(row)) ? 1 : 0;
    return out;
  }

  apply(isHit) {
    const {timeline} = this;
    this.active = isHit !== null;
    this.hits = [];
    let total = 0, gpuNs = 0;
    for (const lane of timeline.lanes) {
      if (!isHit) lane.matches = null;
      else total += lane.find(isHit);
    }
    const byName = new Map();
    if (isHit) for (const lane of timeline.lanes) {
      for (const i of lane.matches) {
        if (lane.kind === 'stream') gpuNs += lane.duration(i);
        const entry = byName.get(lane.name[i]) ?? {name: lane.name[i], ns: 0, times: 0, event: {lane, i}};
        entry.ns += lane.duration(i);
        entry.times++;
        if (lane.duration(i) > entry.event.lane.duration(entry.event.i)) entry.event = {lane, i};
        byName.set(lane.name[i], entry);
      }
    }
    const partly = timeline.windows ? ' among the events that are in this page one by one' : '';
    byId('hits').textContent = isHit ? `${counted(total, 'event')}, ${time(gpuNs)} on the GPU${partly}` : '';
    byId('hit-next').hidden = !total;
    const onGpu = (entry) => (entry.event.lane.kind === 'stream' ? 1 : 0);
    this.list([...byName.values()].sort((a, b) => onGpu(b) - onGpu(a) || b.ns - a.ns));
    timeline.draw();
    this.onChange();
  }

  // Events of one name: those of a kernel of the table.
  byName(name) {
    this.ask(name);
    this.next(1);
    bringIntoSight('timeline');
  }

  list(found) {
    const box = byId('results');
    box.hidden = !found.length;
    box.replaceChildren(...found.slice(0, RESULTS_SHOWN).map((entry) => element('li', {}, element('button', {
      type: 'button', class: 'link', text: names.shown[entry.name], title: 'Show the longest one',
      on: {click: () => this.timeline.select(entry.event, true)}}),
      ` ${count(entry.times)} ×, ${time(entry.ns)}`)));
    if (found.length > RESULTS_SHOWN) {
      box.append(element('li', {class: 'note', text: `and ${count(found.length - RESULTS_SHOWN)} more names`}));
    }
  }

  // From hit to hit in time, GPU streams first: they are what costs.
  next(by) {
    const {timeline} = this;
    if (!this.active) return;
    const chosen = timeline.selected, same = chosen?.lane.matches?.length ? chosen.lane : null;
    const lane = same ?? timeline.lanes.find((l) => l.kind === 'stream' && l.matches.length)
      ?? timeline.lanes.find((l) => l.matches.length);
    if (!lane) return;
    const from = same ? chosen.i : lane.firstAfter(timeline.from) - 1;
    let at = lowerBound(lane.matches, by > 0 ? from + 1 : from);
    if (by < 0) at--;
    at = (at + lane.matches.length) % lane.matches.length;
    timeline.select({lane, i: lane.matches[at]}, true);
  }
}
