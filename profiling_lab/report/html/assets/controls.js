// SPDX-License-Identifier: Apache-2.0
// Mouse, touch and keys of the timeline.

const SLACK = 3, FINGER = 9;  // pixels around a pointer in which an event is hit
const AFTER_SCROLL_MS = 350;  // a wheel that was scrolling the page goes on doing so over the timeline

class Controls {
  constructor(timeline, interval) {
    this.timeline = timeline;
    this.interval = interval;
    this.marking = null;  // where the interval begins that a hand is choosing
    this.pointers = new Map();
    this.moved = 0;
    this.scrolled = -AFTER_SCROLL_MS;
    const {box, canvas, overview} = timeline;
    window.addEventListener('scroll', () => { this.scrolled = performance.now(); }, {passive: true});
    box.addEventListener('scroll', () => timeline.draw(), {passive: true});
    canvas.addEventListener('wheel', (event) => this.wheel(event), {passive: false});
    canvas.addEventListener('pointerdown', (event) => this.down(event));
    canvas.addEventListener('pointermove', (event) => this.move(event));
    for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener('pointerleave', () => { byId('tip').hidden = true; });
    canvas.addEventListener('dblclick', () => this.zoomToSelection());
    box.addEventListener('keydown', (event) => this.key(event));
    for (const name of ['focus', 'blur']) box.addEventListener(name, () => timeline.draw());
    for (const name of ['pointerdown', 'pointermove']) overview.addEventListener(name, (event) => this.scrub(event));
    byId('zoom-in').addEventListener('click', () => timeline.zoom(0.5));
    byId('zoom-out').addEventListener('click', () => timeline.zoom(2));
    byId('zoom-all').addEventListener('click', () => timeline.show(0, timeline.span));
    byId('zoom-gap').addEventListener('click', () => this.nextGap());
    let settled = 0;
    new ResizeObserver(() => {
      clearTimeout(settled);
      settled = setTimeout(() => { if (timeline.box.clientWidth !== timeline.width) timeline.resize(); }, 60);
    }).observe(box);
  }

  place(event) {
    const edge = this.timeline.canvas.getBoundingClientRect();
    return {x: event.clientX - edge.left, y: event.clientY - edge.top};
  }

  wheel(event) {
    const {timeline} = this, {x} = this.place(event);
    if (x < timeline.gutter) return;
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const whole = timeline.to - timeline.from >= timeline.span;
    if (!event.ctrlKey && !sideways) {
      if (performance.now() - this.scrolled < AFTER_SCROLL_MS) return;
      if (whole && event.deltaY > 0) return;
    }
    event.preventDefault();
    const pixels = (sideways ? event.deltaX || event.deltaY : event.deltaY) * (event.deltaMode === 1 ? 18 : 1);
    if (sideways) timeline.pan(pixels / Math.max(1, timeline.width));
    else timeline.zoom(Math.exp(Math.max(-1, Math.min(1, pixels * 0.0022))), timeline.view.time(x));
  }

  down(event) {
    const place = this.place(event);
    this.pointers.set(event.pointerId, place);
    this.moved = 0;
    const marks = (event.shiftKey || place.y < RULER) && place.x >= this.timeline.gutter && event.pointerType !== 'touch';
    this.marking = marks ? this.timeline.view.time(place.x) : null;
    this.timeline.canvas.setPointerCapture(event.pointerId);
    byId('tip').hidden = true;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId), now = this.place(event), {timeline} = this;
    if (!before) {
      this.hover(event, now);
      return;
    }
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    this.pointers.set(event.pointerId, now);
    this.moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (others.length === 1) {
      const [other] = others;
      const was = Math.max(12, Math.abs(before.x - other.x)), is = Math.max(12, Math.abs(now.x - other.x));
      timeline.zoom(was / is, timeline.view.time((now.x + other.x) / 2));
    } else if (this.marking !== null && this.moved > 3) {
      const at = timeline.view.time(now.x);
      timeline.interval = [Math.min(this.marking, at), Math.max(this.marking, at)];
      timeline.draw();
    } else if (others.length === 0 && this.moved > 3) {
      timeline.pan((before.x - now.x) / Math.max(1, timeline.width - timeline.gutter));
    }
  }

  up(event) {
    const started = this.pointers.delete(event.pointerId), marked = this.marking;
    this.marking = null;
    if (started && marked !== null && this.moved > 5) {
      this.interval.choose(...this.timeline.interval);
      return;
    }
    if (started && event.type === 'pointerup' && this.moved <= 5 && !this.pointers.size) {
      this.click(this.place(event), event.pointerType === 'touch' ? FINGER : SLACK);
    }
  }

  // The lane at a height and the event in it, or the bucket that stands for those that are not in the page.
  under({x, y}, slack) {
    const {timeline} = this;
    if (y < timeline.top || x < timeline.gutter) return null;
    const height = y + timeline.box.scrollTop;
    const row = timeline.laneRows.find((r) => height >= r.y - 2 && height < r.y + r.height + 3);
    if (!row) return null;
    const {view} = timeline, at = view.time(x);
    const i = row.lane.at(at, slack * view.nsPerPixel);
    if (i >= 0) return {lane: row.lane, i};
    return row.lane.length < row.lane.events ? {lane: row.lane, i: -1, bucket: row.lane.bucketAt(at)} : null;
  }

  click(place, slack) {
    const {timeline} = this;
    timeline.box.focus({preventScroll: true});
    if (place.y < timeline.top && timeline.steps.length && place.y > RULER) {
      const at = timeline.view.time(place.x);
      const step = timeline.steps.find((s) => s.from <= at && at < s.to);
      if (step) timeline.show(step.from, step.to);
      return;
    }
    const found = this.under(place, slack);
    if (found && found.i < 0) showBucket(found.lane, found.bucket);
    else timeline.select(found);
  }

  hover(event, place) {
    const tip = byId('tip'), found = event.pointerType === 'mouse' ? this.under(place, SLACK) : null;
    this.timeline.canvas.style.cursor = place.y < RULER || event.shiftKey ? 'crosshair' : '';
    tip.hidden = !found || found.i < 0;
    if (tip.hidden) return;
    const {lane, i} = found;
    tip.textContent = `${names.shown[lane.name[i]]} · ${time(lane.duration(i))}`;
    const room = this.timeline.width - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(0, Math.min(room, place.x + 14)) + this.timeline.box.offsetLeft}px`;
    tip.style.top = `${place.y + this.timeline.box.offsetTop + 16}px`;
  }

  scrub(event) {
    if (event.type === 'pointermove' && !(event.buttons & 1)) return;
    const {timeline} = this, edge = timeline.overview.getBoundingClientRect();
    if (event.type === 'pointerdown') timeline.overview.setPointerCapture(event.pointerId);
    const at = ((event.clientX - edge.left) / edge.width) * timeline.span, half = (timeline.to - timeline.from) / 2;
    timeline.show(at - half, at + half);
  }

  zoomToSelection() {
    const {timeline} = this, chosen = timeline.selected;
    if (!chosen) return;
    const {lane, i} = chosen, room = Math.max(20, lane.duration(i) * 0.15);
    timeline.show(lane.start[i] - room, lane.end[i] + room);
  }

  // Idle times of all GPUs from the longest on, around and around.
  nextGap() {
    const {timeline} = this;
    this.gaps ??= timeline.lanes.filter((lane) => lane.kind === 'idle')
      .flatMap((lane) => Array.from(lane.start, (_, i) => ({lane, i})))
      .sort((a, b) => b.lane.duration(b.i) - a.lane.duration(a.i)).slice(0, 100);
    if (!this.gaps.length) return;
    this.gap = ((this.gap ?? -1) + 1) % this.gaps.length;
    const {lane, i} = this.gaps[this.gap], around = lane.duration(i) / 2;
    timeline.show(lane.start[i] - around, lane.end[i] + around);
    timeline.select(this.gaps[this.gap]);
  }

  row(by) {
    const {timeline} = this;
    if (!timeline.laneRows.length) return;
    timeline.chosenRow = (timeline.chosenRow + by + timeline.laneRows.length) % timeline.laneRows.length;
    const {lane} = timeline.laneRows[timeline.chosenRow];
    const middle = timeline.selected
      ? timeline.selected.lane.start[timeline.selected.i] : (timeline.from + timeline.to) / 2;
    const i = Math.min(lane.firstAfter(middle), lane.length - 1);
    if (i >= 0) timeline.select({lane, i}, true);
  }

  step(by) {
    const {timeline} = this;
    const lane = timeline.selected?.lane ?? timeline.laneRows[timeline.chosenRow]?.lane;
    if (!lane || !lane.length) return;
    let i = timeline.selected ? timeline.selected.i + by : Math.min(lane.firstAfter(timeline.from), lane.length - 1);
    if (search.active) {
      search.next(by);
      return;
    }
    i = Math.max(0, Math.min(lane.length - 1, i));
    timeline.select({lane, i}, true);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const {timeline} = this;
    const does = {
      a: () => timeline.pan(-0.15), ArrowLeft: () => timeline.pan(-0.15),
      d: () => timeline.pan(0.15), ArrowRight: () => timeline.pan(0.15),
      w: () => timeline.zoom(0.7), '+': () => timeline.zoom(0.7), '=': () => timeline.zoom(0.7),
      s: () => timeline.zoom(1 / 0.7), '-': () => timeline.zoom(1 / 0.7),
      j: () => this.row(1), k: () => this.row(-1), n: () => this.step(1), p: () => this.step(-1),
      Enter: () => this.zoomToSelection(), g: () => this.nextGap(), 0: () => timeline.show(0, timeline.span),
      m: () => this.interval.chooseSight(),
      Escape: () => { timeline.select(null); this.interval.choose(); },
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
}
