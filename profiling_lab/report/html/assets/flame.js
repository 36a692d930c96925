// SPDX-License-Identifier: Apache-2.0
// GPU time by Python stack as icicles: the outermost frame on top, a frame as wide as its time.

const ROW = 24, SMALLEST = 0.002, DEEPEST = 80;
const NAMED = 0.02;  // of the graph's width; narrower frames have no room for a name

class Flame {
  constructor(box, stacks, data) {
    this.stacks = stacks;
    this.data = data;
    this.phases = Object.keys(stacks.selfNs);
    this.phase = 'all';
    this.libraries = false;
    this.build();
    this.zoomed = this.root;
    const choice = (value, text) => element('label', {}, element('input', {
      type: 'radio', name: 'flame-phase', value, checked: value === 'all',
      on: {change: () => { this.phase = value; this.build(); this.zoomTo(this.root); }}}), ` ${text}`);
    const present = this.phases.filter((phase) => this.root.parts[phase]);
    this.place = element('div', {class: 'flame', role: 'group', 'aria-label': 'Frames, the outermost first'});
    this.told = element('p', {class: 'note', 'aria-live': 'polite'});
    box.replaceChildren(
      element('div', {class: 'tools'},
        element('div', {class: 'choices', role: 'radiogroup', 'aria-label': 'Phase'}, choice('all', 'all'),
          ...present.map((phase) => choice(phase, TINT_TEXT[phase]))),
        element('label', {}, element('input', {type: 'checkbox', on: {change: (event) => {
          this.libraries = event.target.checked;
          this.build();
          this.zoomTo(this.root);
        }}}), ' library frames')),
      this.told, this.place);
    this.zoomTo(this.root);
  }

  // A tree of the frames that are shown; what has no frame shown belongs to the node above it.
  build() {
    const {stacks} = this, rows = stacks.parent.length;
    const node = (key, frame, parent) => ({key, frame, parent, depth: parent ? parent.depth + 1 : 0,
                                           ns: 0, parts: {}, children: new Map()});
    this.root = node('', null, null);
    const of = new Array(rows).fill(null);
    of[0] = this.root;
    const place = (row) => {
      const path = [];
      for (; !of[row]; row = stacks.parent[row]) path.push(row);
      for (const next of path.reverse()) {
        const above = of[stacks.parent[next]], frame = stacks.frameOf(next);
        if (!this.libraries && !frame.own) of[next] = above;
        else {
          const key = `${frame.file}:${frame.line}:${frame.function}`;
          if (!above.children.has(key)) above.children.set(key, node(key, frame, above));
          of[next] = above.children.get(key);
        }
      }
    };
    for (let row = 1; row < rows; row++) if (!of[row]) place(row);
    for (const phase of this.phases) {
      if (this.phase !== 'all' && this.phase !== phase) continue;
      stacks.selfNs[phase].forEach((ns, row) => {
        if (!ns) return;
        this.add(of[row], phase, ns);
      });
    }
    for (const part of stacks.withoutLine) {
      const at = node(part.reason, null, this.root);
      for (const phase of this.phases) {
        if (part[phase] && (this.phase === 'all' || this.phase === phase)) this.add(at, phase, part[phase]);
      }
      if (at.ns) this.root.children.set(part.reason, at);
    }
  }

  add(node, phase, ns) {
    for (let at = node; at; at = at.parent) {
      at.ns += ns;
      at.parts[phase] = (at.parts[phase] ?? 0) + ns;
    }
  }

  label(node) {
    if (node === this.root) return 'all GPU time';
    if (!node.frame) return `no line: ${node.key}`;
    return `${node.frame.function} ${baseName(node.frame.file)}:${node.frame.line}`;
  }

  zoomTo(node) {
    this.zoomed = node;
    const above = [];
    for (let at = node; at; at = at.parent) above.unshift(at);
    this.place.replaceChildren();
    let deepest = 0;
    const put = (n, from, width, row) => {
      if (width < SMALLEST || row > DEEPEST) return;
      deepest = Math.max(deepest, row);
      this.place.append(this.frame(n, from, width, row));
      let at = from;
      for (const child of [...n.children.values()].sort((a, b) => b.ns - a.ns)) {
        if (above.includes(n) && above.includes(child)) continue;
        const part = n.ns ? (width * child.ns) / n.ns : 0;
        put(child, at, part, row + 1);
        at += part;
      }
    };
    above.slice(0, -1).forEach((n, row) => {
      this.place.append(this.frame(n, 0, 1, row, true));
    });
    put(node, 0, 1, above.length - 1);
    this.place.style.height = `${(deepest + 1) * ROW}px`;
    const whole = this.root.ns ? ` (${share(node.ns / this.root.ns)})` : '';
    this.told.textContent = `${this.label(node)}: ${time(node.ns)}${whole}. `
      + (node === this.root ? 'A click on a frame makes it as wide as the graph.' : 'A click on a frame above goes back.');
  }

  frame(node, from, width, row, above = false) {
    const parts = this.phases.filter((phase) => node.parts[phase]);
    let at = 0;
    const stops = parts.flatMap((phase) => {
      const begin = at;
      at += (100 * node.parts[phase]) / node.ns;
      return [`var(--soft-${phase}) ${begin}% ${at}%`];
    });
    const told = `${this.label(node)}: ${time(node.ns)}, ${share(this.root.ns ? node.ns / this.root.ns : 0)}`
      + parts.map((phase) => `; ${TINT_TEXT[phase]} ${time(node.parts[phase])}`).join('');
    return element('button', {
      type: 'button', class: `frame${above ? ' above' : ''}${width > NAMED ? '' : ' thin'}`, text: width > NAMED ? this.label(node) : '', title: told,
      'aria-label': told, on: {click: () => this.zoomTo(node)},
      style: {left: `${from * 100}%`, width: `${width * 100}%`, top: `${row * ROW}px`,
              backgroundImage: stops.length ? `linear-gradient(to right, ${stops.join(', ')})` : 'none'}});
  }
}
