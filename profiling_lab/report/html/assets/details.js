// SPDX-License-Identifier: Apache-2.0
// What is known of the selected event: where it ran, who launched it, which line answers, which rules cite it.

const MATCHES = [
  '', 'joined with its forward by number', 'inferred from the launches around it', 'the nearest forward launch',
  'autograd gave this node no number', '',
];
const MEMORY = ['pageable', 'pinned', 'device', 'array', 'managed', 'device static', 'managed static', 'unknown'];
const UNKNOWN_MEMORY = 7;
const PHASES = ['forward', 'backward', 'recompute', 'optimizer', 'unknown'];
const STACK_SHOWN = 60, LAUNCHED_SHOWN = 12;

class Details {
  constructor(timeline, data) {
    this.timeline = timeline;
    this.data = data;
    this.box = byId('details');
    this.citedBy = new Map();
    (data.evidence ?? []).forEach((places, finding) => places.forEach(({lane, i}) => {
      const key = `${lane}:${i}`;
      if (!this.citedBy.has(key)) this.citedBy.set(key, []);
      this.citedBy.get(key).push(finding);
    }));
    timeline.onSelect = (event) => this.show(event);
  }

  show(event) {
    if (!event) {
      this.box.replaceChildren(element('p', {class: 'note', text: 'Nothing is selected.'}));
      return;
    }
    const {lane, i} = event, name = lane.name[i];
    const facts = element('dl', {class: 'facts'}, ...this.facts(event).flatMap(([what, value]) => [
      element('dt', {text: what}), element('dd', {}, value)]));
    this.box.replaceChildren(...[
      element('h3', {}, element('span', {class: `swatch t-${TINTS[lane.tint[i]]}`, 'aria-hidden': 'true'}),
        names.shown[name]),
      names.whole[name] ? element('p', {class: 'whole', text: names.whole[name]}) : null,
      element('div', {class: 'columns'}, element('div', {}, facts, this.launched(event), this.rules(event)),
        this.stack(event)),
    ].filter(Boolean));
  }

  facts({lane, i}) {
    const out = [
      ['duration', time(lane.duration(i)) + this.cut(lane, i)],
      ['start', `${time(lane.start[i])} after the first event`],
      ['where', `${this.timeline.groups[lane.group]}, ${lane.label}`],
    ];
    if (lane.kind === 'stream') out.push(...this.operationFacts(lane, i));
    if (lane.kind === 'line') {
      out.push(['calls', `${counted(lane.more.calls[i], 'CUDA call')}: from the first to the end of the last`]);
    }
    if (lane.kind === 'idle') {
      const line = this.timeline.stacks.line(lane.stack[i]);
      if (line) out.push([lane.more.exact[i] ? 'the host was at' : 'the host was on its way to', placeOf(line)]);
    }
    return out;
  }

  // What reaches beyond a part of a recording is shown with what lies inside.
  cut(lane, i) {
    const reaches = lane.kind === 'ranges' && (lane.start[i] === 0 || lane.end[i] === this.timeline.span);
    return this.data.window && reaches ? ' of it in this part of the recording' : '';
  }

  operationFacts(lane, i) {
    const {more} = lane, out = [], line = this.timeline.stacks.line(lane.stack[i]);
    const phase = PHASES[more.phase[i]];
    const at = line ? placeOf(line) : 'no line of your code';
    const told = {forward: ['forward, at ', at], backward: ['backward of ', at], optimizer: ['optimizer, at ', at],
                  recompute: ['forward again for backward, of ', at]}[phase] ?? ['unknown: its call was not recorded'];
    const sure = MATCHES[more.match[i]];
    out.push(['phase', element('span', {}, ...told, phase === 'backward' && sure ? ` (${sure})` : '')]);
    const why = this.timeline.stacks.withoutLine.find((part) => part.number === more.reason[i]);
    if (why) out.push(['no line, because', why.reason]);
    const launch = this.timeline.launchOf({lane, i});
    if (launch) {
      const queued = lane.start[i] - launch.lane.end[launch.i];
      out.push(['launched by', element('span', {}, this.link(launch),
        ` on ${this.timeline.groups[launch.lane.group]}, ${time(launch.lane.duration(launch.i))}`)]);
      out.push(['waited in the queue', queued > 0 ? time(queued) : 'not at all']);
    }
    if (more.bytes[i]) {
      const rate = lane.duration(i) ? `, ${fixed(more.bytes[i] / lane.duration(i), 1)} GB/s` : '';
      out.push(['size', `${bytes(more.bytes[i])}${rate}`]);
    }
    if (more.shape[i]) out.push(['launched with', this.timeline.shapes[more.shape[i] - 1]]);
    const source = more.memory[i] > 0 ? (more.memory[i] - 1) >> 3 : UNKNOWN_MEMORY;
    const target = more.memory[i] > 0 ? (more.memory[i] - 1) & 7 : UNKNOWN_MEMORY;
    if (source !== UNKNOWN_MEMORY || target !== UNKNOWN_MEMORY) {
      out.push(['memory', `${MEMORY[source]} to ${MEMORY[target]}`]);
    }
    return out;
  }

  link(event, text = names.shown[event.lane.name[event.i]]) {
    return element('button', {type: 'button', class: 'link', text, on: {
      click: () => this.timeline.select(event, true)}});
  }

  launched(event) {
    if (event.lane.kind !== 'calls') return null;
    const made = this.timeline.launchedBy(event);
    if (!made.length) return null;
    const shown = made.slice(0, LAUNCHED_SHOWN).map((one) => element('li', {}, this.link(one),
      ` ${time(one.lane.duration(one.i))}`));
    if (made.length > LAUNCHED_SHOWN) shown.push(element('li', {text: `and ${count(made.length - LAUNCHED_SHOWN)} more`}));
    return element('div', {}, element('h4', {text: 'It launched'}), element('ul', {}, ...shown));
  }

  stack({lane, i}) {
    const frames = this.timeline.stacks.frames(lane.stack[i]);
    if (!frames.length) return null;
    const backward = lane.kind === 'stream' && PHASES[lane.more.phase[i]] === 'backward';
    const title = backward ? 'Python stack of its forward, innermost first' : 'Python stack, innermost first';
    const rows = frames.slice(0, STACK_SHOWN).map((frame) => element('li', {class: frame.own ? 'own' : 'library'},
      element('span', {class: 'where', text: `${baseName(frame.file)}:${frame.line}`, title: `${frame.file}:${frame.line}`}),
      element('span', {class: 'function', text: frame.function})));
    if (frames.length > STACK_SHOWN) rows.push(element('li', {text: `and ${frames.length - STACK_SHOWN} more`}));
    return element('div', {}, element('h4', {text: title}), element('ol', {class: 'stack'}, ...rows));
  }

  // Findings that name this very event as evidence, and those about its line.
  rules({lane, i}) {
    const findings = this.data.findings.data ?? [];
    const cited = new Set(this.citedBy.get(`${lane.number}:${i}`) ?? []);
    const line = this.timeline.stacks.line(lane.stack[i]);
    const near = findings.flatMap((finding, k) => (
      !cited.has(k) && line && finding.file === line.file && finding.line === line.line ? [k] : []));
    const item = (k, how) => findings[k] && element('li', {}, element('a', {href: `#finding-${k}`, text: findings[k].rule}),
      ` ${how}: ${findings[k].what}`);
    const items = [...[...cited].map((k) => item(k, 'cites it')), ...near.map((k) => item(k, 'names its line'))]
      .filter(Boolean);
    if (!items.length) return null;
    return element('div', {}, element('h4', {text: 'Rules'}), element('ul', {}, ...items));
  }
}

function placeOf(frame) {
  return element('code', {text: `${baseName(frame.file)}:${frame.line} ${frame.function}`,
                          title: `${frame.file}:${frame.line}`});
}

// Where events are not in the page one by one.
function showBucket(lane, bucket) {
  const box = byId('details');
  if (!bucket) {
    box.replaceChildren(element('p', {class: 'note', text: 'Nothing happened there.'}));
    return;
  }
  box.replaceChildren(
    element('h3', {text: `${counted(bucket.count, 'event')} in ${time(bucket.to - bucket.from)}`}),
    element('p', {class: 'note', text: `${lane.label}, busy for ${share(bucket.busy)}, most of it ${names.shown[bucket.name]}. `
      + 'The events of this interval are counted in the tables, but are not in this page one by one.'}));
}
