// SPDX-License-Identifier: Apache-2.0
// The timeline: which rows there are, what part of them is in sight, and what is selected.

const HEIGHTS = {idle: 14, memory: 36, stream: 26, line: 20, samples: 18, calls: 18, ranges: 17};
const RULER = 22, STEPS = 20, GROUP = 24, GAP = 4;
const NARROW = 640;
const SHORTEST_VIEW = 40;  // ns

class Timeline {
  constructor(head, body, data) {
    this.span = Math.max(1, head.span_ns);
    this.windows = head.windows;
    this.groups = head.groups;
    this.shapes = head.shapes;
    this.lanes = head.lanes.map((lane, number) => new Lane(lane, body, number));
    this.stacks = new StackTree(head.stacks, body);
    // Steps of one GPU: those of others are nearly the same, or another program's.
    const steps = data.steps.data ?? [], sameGpu = (row) => row.pid === steps[0].pid && row.device === steps[0].device;
    this.steps = (data.steps.at ?? []).map(([from, to], i) => ({from, to, row: steps[i]})).filter((s) => sameGpu(s.row));
    if (data.steps.sign === 'window') this.steps = [];
    this.palette = new Palette();
    this.selected = null;
    this.chosenRow = 0;
    this.interval = null;  // what the reader chose to sum up, as [from, to]
    this.onSelect = () => {};
    this.onView = () => {};
    this.frame = 0;
    this.frameMs = [];
    [this.box, this.canvas, this.spacer] = [byId('tracks'), byId('canvas'), byId('spacer')];
    this.ctx = this.canvas.getContext('2d');
    this.overview = byId('overview');
    this.numberCalls();
    this.from = data.open.from;
    this.to = Math.max(data.open.to, this.from + 1);
    this.resize();
  }

  // Calls are numbered over all lanes; operations name theirs by that number.
  numberCalls() {
    this.callLanes = this.lanes.filter((lane) => lane.kind === 'calls');
    let first = 0;
    for (const lane of this.callLanes) {
      lane.firstCall = first;
      first += lane.length;
    }
    this.operationsOfCall = null;
  }

  callEvent(number) {
    if (number < 0) return null;
    const lane = this.callLanes.find((l) => number < l.firstCall + l.length);
    return lane ? {lane, i: number - lane.firstCall} : null;
  }

  launchOf({lane, i}) {
    return lane.kind === 'stream' ? this.callEvent(lane.more.call[i]) : null;
  }

  // What a call launched; the table of it is made when it is first asked for.
  launchedBy({lane, i}) {
    if (!this.operationsOfCall) {
      this.operationsOfCall = new Map();
      for (const stream of this.lanes.filter((l) => l.kind === 'stream')) {
        stream.more.call.forEach((call, k) => {
          if (call < 0) return;
          if (!this.operationsOfCall.has(call)) this.operationsOfCall.set(call, []);
          this.operationsOfCall.get(call).push([stream.number, k]);
        });
      }
    }
    const found = this.operationsOfCall.get(lane.firstCall + i) ?? [];
    return found.map(([number, k]) => ({lane: this.lanes[number], i: k}));
  }

  resize() {
    const width = this.box.clientWidth, height = this.box.clientHeight;
    this.scale = Math.min(2, window.devicePixelRatio || 1);
    this.width = width;
    this.narrow = width < NARROW;
    this.gutter = this.narrow ? 0 : 152;
    this.layout();
    this.height = Math.min(this.contentHeight, this.maxHeight());
    this.box.style.height = `${this.height + 2}px`;
    for (const [canvas, tall] of [[this.canvas, this.height], [this.overview, 46]]) {
      canvas.width = Math.round(width * this.scale);
      canvas.height = Math.round(tall * this.scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${tall}px`;
    }
    this.spacer.style.height = `${Math.max(0, this.contentHeight - this.height)}px`;
    this.skyline = null;
    this.draw();
    return height;
  }

  maxHeight() {
    return Math.max(240, Math.min(620, window.innerHeight * 0.72));
  }

  layout() {
    this.rows = [];
    let y = RULER + (this.steps.length ? STEPS : 0) + GAP, group = -1, before = null;
    for (const lane of this.lanes) {
      if (lane.group !== group) {
        group = lane.group;
        this.rows.push({label: this.groups[group], y, height: GROUP});
        y += GROUP;
      }
      // Without a gutter the first of a kind is announced above it.
      const announced = this.narrow && lane.kind !== before?.kind && lane.kind !== 'idle' ? 13 : 0;
      y += announced;
      this.rows.push({lane, y, height: HEIGHTS[lane.kind], announced});
      y += HEIGHTS[lane.kind] + GAP;
      before = lane;
    }
    this.top = RULER + (this.steps.length ? STEPS : 0);
    this.contentHeight = Math.max(120, y + 6);
    this.laneRows = this.rows.filter((row) => row.lane);
  }

  get view() {
    return new View(this.from, this.to, this.gutter, this.width);
  }

  show(from, to) {
    const least = SHORTEST_VIEW, room = this.span * 0.02;
    let length = Math.min(Math.max(to - from, least), this.span + 2 * room);
    const start = Math.min(Math.max((from + to - length) / 2, -room), this.span + room - length);
    [this.from, this.to] = [start, start + length];
    this.draw();
    this.onView();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const length = Math.min(Math.max((this.to - this.from) * factor, SHORTEST_VIEW), this.span * 1.04);
    const part = (at - this.from) / (this.to - this.from);
    this.show(at - part * length, at + (1 - part) * length);
  }

  pan(part) {
    const shift = part * (this.to - this.from);
    this.show(this.from + shift, this.to + shift);
  }

  select(event, reveal = false) {
    this.selected = event;
    if (event) {
      this.chosenRow = this.laneRows.findIndex((row) => row.lane === event.lane);
      if (reveal) this.reveal(event);
    }
    this.onSelect(event);
    this.draw();
  }

  // Bring an event into sight, at a size at which it can be seen.
  reveal({lane, i}) {
    const duration = Math.max(1, lane.duration(i)), length = this.to - this.from;
    const middle = (lane.start[i] + lane.end[i]) / 2;
    const seen = lane.start[i] >= this.from && lane.end[i] <= this.to;
    const large = duration / length > 4 / Math.max(1, this.width);
    if (!seen || !large) {
      const wanted = large && duration < length ? length : duration * 12;
      this.show(middle - wanted / 2, middle + wanted / 2);
    }
    const row = this.laneRows[this.chosenRow];
    if (row.y < this.box.scrollTop + this.top) this.box.scrollTop = row.y - this.top - 8;
    const below = row.y + row.height - this.height + 12;
    if (below > this.box.scrollTop) this.box.scrollTop = below;
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const began = performance.now();
      this.paint();
      this.frameMs.push(performance.now() - began);
      if (this.frameMs.length > 1000) this.frameMs.splice(0, 500);
    });
  }

  paint() {
    const {ctx, view, palette} = this, scroll = this.box.scrollTop;
    ctx.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    ctx.fillStyle = palette.raised;
    ctx.fillRect(0, 0, this.width, this.height);
    ctx.textBaseline = 'middle';
    this.paintSteps(view, true);
    ctx.font = '11px system-ui, sans-serif';
    for (const row of this.rows) {
      const y = row.y - scroll;
      if (y > this.height || y + row.height < this.top) continue;
      if (row.lane) this.paintLane(row, y, view);
      else this.paintGroup(row, y);
    }
    this.paintInterval(view);
    this.paintSelection(view, scroll);
    this.paintGutter(scroll);
    ctx.fillStyle = palette.raised;
    ctx.fillRect(0, 0, this.width, this.top);
    this.paintSteps(view, false);
    ctx.font = '11px system-ui, sans-serif';
    this.paintInterval(view, RULER);
    drawRuler(ctx, view, RULER, palette);
    ctx.fillStyle = palette.rule;
    ctx.fillRect(0, this.top - 1, this.width, 1);
    this.paintOverview();
  }

  paintGroup(row, y) {
    this.ctx.fillStyle = this.palette.rule;
    this.ctx.fillRect(0, y + 2, this.width, 1);
    this.ctx.fillStyle = this.palette.text;
    this.ctx.font = '600 12px system-ui, sans-serif';
    this.ctx.fillText(row.label, 8, y + GROUP / 2 + 2);
    this.ctx.font = '11px system-ui, sans-serif';
  }

  paintLane(row, y, view) {
    const {ctx, palette} = this;
    if (row === this.laneRows[this.chosenRow] && document.activeElement === this.box) {
      ctx.fillStyle = palette.band;
      ctx.fillRect(0, y - 2, this.width, row.height + 4);
    }
    if (row.announced) {
      ctx.fillStyle = palette.muted;
      ctx.font = '10px system-ui, sans-serif';
      ctx.fillText(row.lane.label, 8, y - 7);
      ctx.font = '11px system-ui, sans-serif';
    }
    drawLane(ctx, row.lane, view, y, row.height, palette, this.windows);
  }

  paintGutter(scroll) {
    if (!this.gutter) return;
    const {ctx, palette} = this;
    ctx.fillStyle = palette.raised;
    ctx.fillRect(0, this.top, this.gutter - 4, this.height);
    for (const row of this.rows) {
      const y = row.y - scroll;
      if (y > this.height || y + row.height < 0) continue;
      if (!row.lane) {
        this.paintGroup(row, y);
        continue;
      }
      ctx.fillStyle = palette.muted;
      const label = row.lane.label;
      ctx.fillText(label.length > 24 ? `${label.slice(0, 23)}…` : label, 14, y + row.height / 2 + 0.5);
    }
  }

  // Below the lanes a shade for every other step, above them its name.
  paintSteps(view, below) {
    const {ctx, palette} = this;
    ctx.font = '10px system-ui, sans-serif';
    this.steps.forEach((step, i) => {
      if (step.to < view.from || step.from > view.to) return;
      const from = Math.max(view.left, view.x(step.from)), to = Math.min(view.right, view.x(step.to));
      if (below) {
        if (i % 2 === 0 && to - from > 2) {
          ctx.fillStyle = palette.band;
          ctx.fillRect(from, this.top, to - from, this.height);
        }
        return;
      }
      ctx.fillStyle = step.row.outlier ? palette.tints[1] : palette.rule;
      ctx.fillRect(from, RULER, Math.max(1, to - from - 1), STEPS - 4);
      if (to - from < 44) return;
      ctx.fillStyle = step.row.outlier ? '#ffffff' : palette.text;
      const text = `${step.row.outlier ? '▲ ' : ''}${step.row.name}`, letters = Math.floor((to - from - 8) / 5.6);
      ctx.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, from + 4, RULER + (STEPS - 4) / 2);
    });
  }

  position({lane, i}, view, scroll, atEnd = false) {
    const row = this.laneRows.find((r) => r.lane === lane);
    return {x: view.x(atEnd ? lane.end[i] : lane.start[i]), y: row.y - scroll + row.height / 2, row};
  }

  paintSelection(view, scroll) {
    if (!this.selected) return;
    const {ctx, palette} = this, {lane, i} = this.selected;
    const {row} = this.position(this.selected, view, scroll);
    const from = view.x(lane.start[i]), wide = Math.max(3, view.x(lane.end[i]) - from);
    ctx.strokeStyle = palette.text;
    ctx.lineWidth = 2;
    ctx.strokeRect(from - 1, row.y - scroll - 1, wide + 1, row.height + 2);
    const launch = this.launchOf(this.selected);
    if (launch) drawFlow(ctx, this.position(launch, view, scroll, true), this.position(this.selected, view, scroll), palette);
    if (lane.kind === 'calls') {
      for (const made of this.launchedBy(this.selected).slice(0, 200)) {
        drawFlow(ctx, this.position(this.selected, view, scroll, true), this.position(made, view, scroll), palette);
      }
    }
  }

  paintInterval(view, height = this.height) {
    if (!this.interval) return;
    const {ctx, palette} = this, [low, high] = this.interval;
    const from = Math.max(view.left, view.x(low)), to = Math.min(view.right, view.x(high));
    if (to < from) return;
    ctx.fillStyle = palette.accent;
    ctx.globalAlpha = 0.14;
    ctx.fillRect(from, 0, to - from, height);
    ctx.globalAlpha = 1;
    for (const [at, x] of [[low, from], [high, to]]) if (at >= view.from && at <= view.to) ctx.fillRect(x - 0.5, 0, 1.5, height);
  }

  // The whole recording: how busy the GPUs were, and which part is in sight.
  paintOverview() {
    const ctx = this.overview.getContext('2d'), {palette, width} = this, tall = 46;
    ctx.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    if (!this.skyline) this.skyline = this.makeSkyline(width);
    ctx.fillStyle = palette.raised;
    ctx.fillRect(0, 0, width, tall);
    const view = new View(0, this.span, 0, width);
    ctx.fillStyle = palette.band;
    this.steps.forEach((step, i) => {
      if (i % 2 === 0) ctx.fillRect(view.x(step.from), 0, Math.max(0.5, view.x(step.to) - view.x(step.from)), tall);
    });
    ctx.fillStyle = palette.tints[0];
    this.skyline.forEach((busy, x) => { if (busy) ctx.fillRect(x, tall - 4 - busy * (tall - 10), 1, busy * (tall - 10)); });
    if (this.interval) {
      ctx.fillStyle = palette.accent;
      ctx.fillRect(view.x(this.interval[0]), 0, Math.max(2, view.x(this.interval[1]) - view.x(this.interval[0])), 3);
    }
    const from = view.x(Math.max(0, this.from)), to = Math.max(from + 3, view.x(Math.min(this.span, this.to)));
    ctx.fillStyle = palette.surface;
    ctx.globalAlpha = 0.6;
    ctx.fillRect(0, 0, from, tall);
    ctx.fillRect(to, 0, width - to, tall);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = palette.accent;
    ctx.lineWidth = 2;
    ctx.strokeRect(from + 1, 1, Math.max(2, to - from - 2), tall - 2);
  }

  makeSkyline(width) {
    const busy = new Float64Array(width), perPixel = this.span / width;
    const add = (from, to, part) => {
      for (let x = Math.max(0, Math.floor(from / perPixel)); x < width && x * perPixel < to; x++) {
        const inside = Math.min(to, (x + 1) * perPixel) - Math.max(from, x * perPixel);
        busy[x] = Math.min(1, busy[x] + (part * Math.max(0, inside)) / perPixel);
      }
    };
    for (const lane of this.lanes.filter((l) => l.kind === 'stream')) {
      const level = lane.levelFor(perPixel);
      if (level) level.bucket.forEach((b, i) => add(b * level.width, (b + 1) * level.width, level.busy[i] / 255));
      else for (let i = 0; i < lane.length; i++) add(lane.start[i], lane.end[i], 1);
    }
    return busy;
  }
}
