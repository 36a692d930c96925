// SPDX-License-Identifier: Apache-2.0
// An interval of the timeline that the reader chose, and what happened in it: how busy each GPU was, with what,
// for which lines, and why it was idle.

const TOTALS_SHOWN = 8;

class Interval {
  constructor(timeline) {
    this.timeline = timeline;
    this.range = null;
    this.box = byId('interval');
    this.onChange = () => {};
    byId('totals').addEventListener('click', () => this.chooseSight());
  }

  chooseSight() {
    this.choose(Math.max(0, this.timeline.from), Math.min(this.timeline.span, this.timeline.to));
  }

  // Without a range: no interval.
  choose(from, to) {
    const {timeline} = this;
    const [low, high] = [Math.max(0, from ?? 0), Math.min(timeline.span, to ?? 0)];
    this.range = high > low ? [low, high] : null;
    timeline.interval = this.range;
    timeline.draw();
    this.show();
    this.onChange();
  }

  // Totals are of the parts inside: an event that reaches beyond counts for what lies in the interval.
  totals(from, to) {
    const out = {gpus: [], tints: new Map(), names: new Map(), lines: new Map(), idle: new Map(),
                 operations: 0, gpuNs: 0, calls: 0, callNs: 0, waitNs: 0};
    const add = (map, key, ns, entry) => {
      const at = map.get(key) ?? {ns: 0, times: 0, ...entry};
      at.ns += ns;
      at.times++;
      map.set(key, at);
    };
    const busy = new Map();
    for (const lane of this.timeline.lanes) {
      for (let i = lane.firstAfter(from); i < lane.length && lane.start[i] < to; i++) {
        const low = Math.max(from, lane.start[i]), high = Math.min(to, lane.end[i]);
        if (high <= low) continue;
        const ns = high - low;
        if (lane.kind === 'stream') {
          out.operations++;
          out.gpuNs += ns;
          add(out.tints, TINTS[lane.tint[i]], ns);
          add(out.names, lane.name[i], ns, {lane, i});
          const line = this.timeline.stacks.line(lane.stack[i]);
          if (line) add(out.lines, `${line.file}:${line.line}`, ns, {line});
          if (!busy.has(lane.group)) busy.set(lane.group, []);
          busy.get(lane.group).push([low, high]);
        } else if (lane.kind === 'idle') add(out.idle, lane.name[i], ns);
        else if (lane.kind === 'calls' && lane.label === 'CUDA calls') {
          out.calls++;
          out.callNs += ns;
          if (TINTS[lane.tint[i]] === 'wait') out.waitNs += ns;
        }
      }
    }
    const groups = new Set(this.timeline.lanes.filter((lane) => lane.kind === 'stream').map((lane) => lane.group));
    for (const group of groups) out.gpus.push({name: this.timeline.groups[group], busyNs: covered(busy.get(group) ?? [])});
    return out;
  }

  show() {
    this.box.hidden = !this.range;
    if (!this.range) {
      this.box.replaceChildren();
      return;
    }
    const [from, to] = this.range, length = to - from, found = this.totals(from, to);
    const most = (map) => [...map.entries()].sort(([, a], [, b]) => b.ns - a.ns);
    const facts = found.gpus.map(({name, busyNs}) => [`${name} busy`, `${share(busyNs / length)}, ${time(Math.round(busyNs))}`]);
    if (found.operations) facts.push(['GPU time', `${time(Math.round(found.gpuNs))} in ${counted(found.operations, 'operation')}, summed`]);
    for (const [tint, part] of most(found.tints)) facts.push([TINT_TEXT[tint], `${time(Math.round(part.ns))}, ${share(part.ns / found.gpuNs)}`]);
    for (const [name, part] of most(found.idle).slice(0, TOTALS_SHOWN)) facts.push([`idle: ${names.shown[name]}`, time(Math.round(part.ns))]);
    if (found.calls) facts.push(['CUDA calls', `${count(found.calls)}, ${time(Math.round(found.callNs))}`
      + (found.waitNs ? `, of which ${time(Math.round(found.waitNs))} waiting for the GPU` : '')]);
    const kernels = most(found.names).map(([name, part]) => [names.shown[name], part, () => this.timeline.select(part, true)]);
    const lines = most(found.lines).map(([, part]) => [`${baseName(part.line.file)}:${part.line.line} ${part.line.function}`, part,
      () => search.byLine(part.line.file, part.line.line)]);
    this.box.replaceChildren(
      element('div', {class: 'interval-head'},
        element('h3', {text: `${time(Math.round(length))} chosen, from ${time(Math.round(from))} to ${time(Math.round(to))}`}),
        element('button', {type: 'button', class: 'quiet', text: 'Zoom to it', on: {click: () => this.timeline.show(from, to)}}),
        element('button', {type: 'button', class: 'quiet', text: 'Let go', on: {click: () => this.choose()}})),
      this.partly(from, to) ? element('p', {class: 'note', text: 'Not all events of this interval are in this page one by one: '
        + 'these totals are of those that are.'}) : '',
      element('div', {class: 'columns'},
        element('dl', {class: 'facts'}, ...facts.flatMap(([what, value]) => [element('dt', {text: what}), element('dd', {text: value})])),
        totalsTable('Kernels and copies', kernels, found.gpuNs), totalsTable('Lines', lines, found.gpuNs)));
  }

  partly(from, to) {
    const {windows} = this.timeline;
    return windows && !windows.some(([low, high]) => low <= from && to <= high);
  }
}

// The length of intervals together, each moment counted once.
function covered(intervals) {
  let sum = 0, end = -Infinity;
  for (const [low, high] of intervals.sort((a, b) => a[0] - b[0])) {
    sum += Math.max(0, high - Math.max(low, end));
    end = Math.max(end, high);
  }
  return sum;
}

function totalsTable(title, rows, whole) {
  if (!rows.length) return null;
  const more = rows.length - TOTALS_SHOWN;
  return element('div', {}, element('h4', {text: title}), element('table', {class: 'small'}, element('tbody', {},
    ...rows.slice(0, TOTALS_SHOWN).map(([text, part, show]) => element('tr', {},
      element('td', {}, element('button', {type: 'button', class: 'link', on: {click: show}}, ...breakable(text))),
      element('td', {class: 'right', text: `${count(part.times)} ×`}),
      element('td', {class: 'right', text: time(Math.round(part.ns))}),
      element('td', {class: 'right', text: share(part.ns / whole)}))))),
    more > 0 ? element('p', {class: 'note', text: `and ${count(more)} more`}) : null);
}
