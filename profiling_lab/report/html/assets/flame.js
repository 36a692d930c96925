// SPDX-License-Identifier: Apache-2.0
// Time by Python stack as icicles: the outermost frame on top, a frame as wide as its time.

const ROW = 24, SMALLEST = 0.002, DEEPEST = 80;
const NAMED = 0.02;  // of the graph's width; narrower frames have no room for a name

const GPU_FLAME = {
  name: 'flame', whole: 'all GPU time', of: 'the GPU time', parts: 'Phase',
  textOf: (phase) => TINT_TEXT[phase], colorOf: (phase) => `var(--soft-${phase})`,
};
const HOST_FLAME = {
  name: 'host-flame', whole: 'all sampled time', of: 'the sampled time', parts: 'Thread',
  textOf: (thread) => `thread ${thread}`, colorOf: () => 'var(--soft-host)',
};

class Flame {
  // how: GPU_FLAME or HOST_FLAME. The times of the stacks have parts: phases, or threads.
  constructor(box, stacks, how) {
    this.stacks = stacks;
    this.how = how;
    this.phases = Object.keys(stacks.selfNs);
    this.phase = 'all';
    this.wanted = '';
    this.onChange = () => {};
    this.libraries = false;
    this.build();
    this.zoomed = this.root;
    const choice = (value, text) => element('label', {}, element('input', {
      type: 'radio', name: how.name, value, checked: value === 'all',
      on: {change: () => { this.phase = value; this.build(); this.zoomTo(this.root); }}}), ` ${text}`);
    const present = this.phases.filter((phase) => this.root.parts[phase]);
    this.frames = element('div', {class: 'flame', role: 'group', 'aria-label': 'Frames, the outermost first'});
    this.input = element('input', {type: 'search', placeholder: 'Find a function or file', autocomplete: 'off', spellcheck: 'false',
      'aria-label': `Find a function or file in the graph of ${how.of}`, on: {
        input: () => this.find(this.input.value),
        keydown: (event) => { if (event.key === 'Escape') this.find(''); }}});
    this.hits = element('span', {class: 'note', 'aria-live': 'polite'});
    this.told = element('p', {class: 'note', 'aria-live': 'polite'});
    box.replaceChildren(
      element('div', {class: 'tools'},
        element('div', {class: 'search'}, this.input, this.hits),
        element('div', {class: 'choices', role: 'radiogroup', 'aria-label': how.parts}, choice('all', 'all'),
          ...present.map((phase) => choice(phase, how.textOf(phase)))),
        element('label', {}, this.checkbox = element('input', {type: 'checkbox', on: {change: (event) => {
          this.libraries = event.target.checked;
          this.build();
          this.zoomTo(this.root);
        }}}), ' library frames')),
      this.told, this.frames);
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
    this.apart();
    for (const part of stacks.withoutLine) {
      const at = node(part.reason, null, this.root);
      for (const phase of this.phases) {
        if (part[phase] && (this.phase === 'all' || this.phase === phase)) this.add(at, phase, part[phase]);
      }
      if (at.ns) this.root.children.set(part.reason, at);
    }
  }

  // Time in none of the frames that are shown, as a frame that says so.
  apart() {
    const children = [...this.root.children.values()].reduce((sum, child) => sum + child.ns, 0);
    if (this.root.ns === children) return;
    const at = {...this.root, key: 'no frame is in your code', parent: this.root, depth: 1, ns: this.root.ns - children,
                parts: {...this.root.parts}, children: new Map()};
    for (const phase of Object.keys(at.parts)) {
      for (const child of this.root.children.values()) at.parts[phase] -= child.parts[phase] ?? 0;
    }
    this.root.children.set(at.key, at);
  }

  add(node, phase, ns) {
    for (let at = node; at; at = at.parent) {
      at.ns += ns;
      at.parts[phase] = (at.parts[phase] ?? 0) + ns;
    }
  }

  label(node) {
    if (node === this.root) return this.how.whole;
    if (!node.frame) return `no line: ${node.key}`;
    return `${node.frame.function} ${baseName(node.frame.file)}:${node.frame.line}`;
  }

  // A frame with what it is drawn with: `all:own:0.2.1`, the second number for the third largest child.
  get place() {
    const path = [];
    for (let at = this.zoomed; at.parent; at = at.parent) path.unshift(this.ranked(at.parent).indexOf(at));
    const place = `${this.phase}:${this.libraries ? 'libraries' : 'own'}:${path.join('.')}`;
    return place === 'all:own:' ? null : place;
  }

  goTo(place) {
    const [, phase, frames, path] = /^(.*):(own|libraries):([\d.]*)$/.exec(place ?? '') ?? ['', 'all', 'own', ''];
    this.phase = this.phases.includes(phase) ? phase : 'all';
    this.libraries = frames === 'libraries';
    this.checkbox.checked = this.libraries;
    for (const radio of document.querySelectorAll(`input[name="${this.how.name}"]`)) radio.checked = radio.value === this.phase;
    this.build();
    let node = this.root;
    for (const number of path.split('.').filter(Boolean)) node = this.ranked(node)[Number(number)] ?? node;
    this.zoomTo(node);
  }

  ranked(node) {
    return [...node.children.values()].sort((a, b) => b.ns - a.ns);
  }

  // Highlight the frames whose function or file has this text, and say how much time is in them and below.
  find(text) {
    this.wanted = text.trim();
    if (this.input.value.trim() !== this.wanted) this.input.value = this.wanted;
    this.zoomTo(this.zoomed);
  }

  isHit(node) {
    return this.label(node).toLowerCase().includes(this.wanted.toLowerCase());
  }

  // A frame within a found one is part of its time already.
  countHits() {
    let ns = 0, frames = 0;
    const visit = (node, inside) => {
      const hit = node !== this.root && this.isHit(node);
      if (hit) frames++;
      if (hit && !inside) ns += node.ns;
      for (const child of node.children.values()) visit(child, inside || hit);
    };
    visit(this.root, false);
    return {ns, frames};
  }

  zoomTo(node) {
    this.zoomed = node;
    this.onChange();
    const found = this.wanted ? this.countHits() : null;
    this.hits.textContent = found ? `${counted(found.frames, 'frame')}, ${time(found.ns)}, `
      + `${share(this.root.ns ? found.ns / this.root.ns : 0)} of ${this.how.of}` : '';
    const above = [];
    for (let at = node; at; at = at.parent) above.unshift(at);
    this.frames.replaceChildren();
    let deepest = 0;
    const put = (n, from, width, row) => {
      if (width < SMALLEST || row > DEEPEST) return;
      deepest = Math.max(deepest, row);
      this.frames.append(this.frame(n, from, width, row));
      let at = from;
      for (const child of this.ranked(n)) {
        if (above.includes(n) && above.includes(child)) continue;
        const part = n.ns ? (width * child.ns) / n.ns : 0;
        put(child, at, part, row + 1);
        at += part;
      }
    };
    above.slice(0, -1).forEach((n, row) => {
      this.frames.append(this.frame(n, 0, 1, row, true));
    });
    put(node, 0, 1, above.length - 1);
    this.frames.style.height = `${(deepest + 1) * ROW}px`;
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
      return [`${this.how.colorOf(phase)} ${begin}% ${at}%`];
    });
    const told = `${this.label(node)}: ${time(node.ns)}, ${share(this.root.ns ? node.ns / this.root.ns : 0)}`
      + parts.map((phase) => `; ${this.how.textOf(phase)} ${time(node.parts[phase])}`).join('');
    const found = this.wanted ? (node !== this.root && this.isHit(node) ? ' hit' : ' missed') : '';
    return element('button', {
      type: 'button', class: `frame${above ? ' above' : ''}${width > NAMED ? '' : ' thin'}${found}`, text: width > NAMED ? this.label(node) : '', title: told,
      'aria-label': told, on: {click: () => this.zoomTo(node)},
      style: {left: `${from * 100}%`, width: `${width * 100}%`, top: `${row * ROW}px`,
              backgroundImage: stops.length ? `linear-gradient(to right, ${stops.join(', ')})` : 'none'}});
  }
}
