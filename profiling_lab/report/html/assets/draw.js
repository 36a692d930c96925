// SPDX-License-Identifier: Apache-2.0
// Painting: colours by what a slice is, and lanes as slices or, from afar, as a skyline of how busy they were.

const TINTS = ['forward', 'backward', 'recompute', 'optimizer', 'unknown', 'communication', 'copy', 'set', 'call',
               'wait', 'allocation', 'line', 'range', 'idle-host', 'idle-device', 'idle-unknown'];
const TINT_TEXT = {
  forward: 'forward', backward: 'backward', recompute: 'forward again for backward', optimizer: 'optimizer',
  unknown: 'phase unknown', communication: 'communication', copy: 'copy', set: 'memset', call: 'CUDA call',
  wait: 'call that waits for the GPU', allocation: 'allocation, loading of code', line: 'line of Python',
  range: 'range', 'idle-host': 'idle: the host', 'idle-device': 'idle: the GPU itself', 'idle-unknown': 'idle: unknown',
};
const SHADES = 3;

function mix(hex, other, part) {
  const channel = (text, at) => parseInt(text.slice(at, at + 2), 16);
  return '#' + [1, 3, 5].map((at) => Math.round(channel(hex, at) * (1 - part) + channel(other, at) * part)
    .toString(16).padStart(2, '0')).join('');
}

function isLight(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
  return 0.299 * r + 0.587 * g + 0.114 * b > 0.6;
}

class Palette {
  constructor() {
    this.read();
  }

  // Again after a change between light and dark.
  read() {
    for (const name of ['surface', 'text', 'muted', 'rule', 'band', 'accent', 'raised']) this[name] = cssColor(name);
    this.tints = TINTS.map((name) => cssColor(name));
    // Neighbours of different names can be told apart by their shade.
    this.shades = this.tints.map((hex) => Array.from({length: SHADES}, (_, i) => mix(hex, this.surface, 0.17 * i)));
    this.onTint = this.shades.map((all) => all.map((hex) => (isLight(hex) ? '#10151c' : '#ffffff')));
  }
}

// Horizontal room: `left` and `right` in pixels, `from` the time at `left`.
class View {
  constructor(from, to, left, right) {
    Object.assign(this, {from, to, left, right});
    this.nsPerPixel = (to - from) / Math.max(1, right - left);
  }

  x(time) {
    return this.left + (time - this.from) / this.nsPerPixel;
  }

  time(x) {
    return this.from + (x - this.left) * this.nsPerPixel;
  }
}

function drawLane(ctx, lane, view, y, height, palette, windows) {
  if (lane.kind === 'memory') {
    drawMemory(ctx, lane, view, y, height, palette);
    return;
  }
  const level = lane.levelFor(view.nsPerPixel);
  const faint = lane.matches !== null;
  if (level) drawLevel(ctx, level, view, y, height, palette, faint, null);
  else {
    if (windows && lane.levels.length && lane.length < lane.events) {
      drawLevel(ctx, lane.levels[lane.levels.length - 1], view, y, height, palette, faint, windows);
    }
    drawEvents(ctx, lane, view, y, height, palette, faint);
  }
  if (faint) drawMatches(ctx, lane, view, y, height, palette);
}

// Reserved memory as a pale area, allocated memory in front of it; the lane is as high as the most reserved.
function drawMemory(ctx, lane, view, y, height, palette) {
  const {allocated, reserved} = lane.more;
  lane.most ??= reserved.reduce((most, held) => Math.max(most, held), 1);
  for (let i = lane.firstAfter(view.from); i < lane.length && lane.start[i] < view.to; i++) {
    const from = Math.max(view.left, view.x(lane.start[i]));
    const wide = Math.max(1, Math.min(view.right, view.x(lane.end[i])) - from + 0.5);
    [[reserved[i], 0.3], [allocated[i], 1]].forEach(([held, alpha]) => {
      const tall = (height * held) / lane.most;
      ctx.globalAlpha = alpha;
      ctx.fillStyle = palette.tints[lane.tint[i]];
      ctx.fillRect(from, y + height - tall, wide, tall);
    });
  }
  ctx.globalAlpha = 1;
}

// `windows`: where the events themselves are drawn and buckets are not.
function drawLevel(ctx, level, view, y, height, palette, faint, windows) {
  ctx.globalAlpha = faint ? 0.25 : 1;
  let pixel = -1, busy = 0, tint = 0, shade = 0;
  const wide = Math.max(1, level.width / view.nsPerPixel);
  const flush = () => {
    if (pixel < 0) return;
    const tall = Math.max(2, (height * busy) / 255);
    ctx.fillStyle = palette.shades[tint][shade];
    ctx.fillRect(pixel, y + height - tall, wide > 1 ? wide + 0.5 : 1, tall);
  };
  const first = lowerBound(level.bucket, Math.floor(view.from / level.width));
  for (let i = first; i < level.bucket.length; i++) {
    const from = level.bucket[i] * level.width;
    if (from > view.to) break;
    if (windows && windows.some(([a, b]) => from + level.width / 2 >= a && from + level.width / 2 < b)) continue;
    const x = wide > 1 ? view.x(from) : Math.floor(view.x(from));
    if (x !== pixel) {
      flush();
      [pixel, busy] = [x, -1];
    }
    if (level.busy[i] > busy) [busy, tint, shade] = [level.busy[i], level.tint[i], level.name[i] % SHADES];
  }
  flush();
  ctx.globalAlpha = 1;
}

function drawEvents(ctx, lane, view, y, height, palette, faint) {
  const labels = [];
  ctx.globalAlpha = faint ? 0.2 : 1;
  for (let i = lane.firstAfter(view.from); i < lane.length && lane.start[i] < view.to;) {
    const from = Math.max(view.left, view.x(lane.start[i]));
    const to = Math.min(view.right, view.x(lane.end[i]));
    ctx.fillStyle = palette.shades[lane.tint[i]][lane.name[i] % SHADES];
    if (to - from < 1) {
      // What ends in the same pixel is one stroke: a frame costs as many strokes as there are pixels.
      const pixel = Math.floor(from);
      ctx.fillRect(pixel, y, 1, height);
      i = lowerBound(lane.latest, view.time(pixel + 1), i + 1);
      continue;
    }
    ctx.fillRect(from, y, Math.max(1, to - from - (to - from > 3 ? 0.75 : 0)), height);
    if (to - from > 26 && height >= 11) labels.push([i, from, to]);
    i++;
  }
  ctx.globalAlpha = 1;
  for (const [i, from, to] of labels) drawLabel(ctx, lane, i, from, to, y, height, palette);
}

// shade: null for that of its name, as neighbours differ in it; given for what a search found.
function drawLabel(ctx, lane, i, from, to, y, height, palette, shade = null) {
  const letters = Math.floor((to - from - 8) / 6.1);
  const name = names.shown[lane.name[i]];
  const pale = lane.matches !== null && shade === null;
  ctx.fillStyle = pale ? palette.text : palette.onTint[lane.tint[i]][shade ?? lane.name[i] % SHADES];
  ctx.globalAlpha = pale ? 0.55 : 1;
  ctx.fillText(name.length <= letters ? name : `${name.slice(0, Math.max(1, letters - 1))}…`, from + 4, y + height / 2 + 0.5);
  ctx.globalAlpha = 1;
}

function drawMatches(ctx, lane, view, y, height, palette) {
  const hits = lane.matches, labels = [];
  let low = 0;
  // The first hit in sight: hits are in order of start.
  for (let high = hits.length; low < high;) {
    const middle = (low + high) >>> 1;
    if (lane.latest[hits[middle]] <= view.from) low = middle + 1;
    else high = middle;
  }
  while (low < hits.length && lane.start[hits[low]] < view.to) {
    const k = low++;
    const from = Math.max(view.left, view.x(lane.start[hits[k]]));
    const wide = Math.max(1, Math.min(view.right, view.x(lane.end[hits[k]])) - from);
    if (wide <= 1) {
      low = lowerBound(hits, lowerBound(lane.latest, view.time(Math.floor(from) + 1), hits[k] + 1), low);
    }
    ctx.fillStyle = palette.tints[lane.tint[hits[k]]];
    ctx.fillRect(from, y, wide, height);
    ctx.fillStyle = palette.accent;
    ctx.fillRect(from, y + height - 2, Math.max(2, wide), 2);
    if (wide > 26 && height >= 11) labels.push([hits[k], from, from + wide]);
  }
  for (const [i, from, to] of labels) drawLabel(ctx, lane, i, from, to, y, height, palette, 0);
}

// Times along the top: steps of 1, 2 or 5, about a hundred pixels apart.
function drawRuler(ctx, view, height, palette) {
  const wanted = view.nsPerPixel * 110;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, wanted)));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted);
  const [unit, size] = TIME_UNITS.find((u) => step >= u[1]) ?? TIME_UNITS[3];
  ctx.fillStyle = palette.muted;
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    const x = Math.round(view.x(t)) + 0.5;
    ctx.fillRect(x, height - 5, 1, 5);
    ctx.fillText(`${fixed(Math.round(t / step) * step / size, 0)} ${unit}`, x + 3, height / 2);
  }
}

// A launch and what it made: a curve from the one to the other.
function drawFlow(ctx, from, to, palette) {
  const bend = Math.max(24, Math.abs(to.x - from.x) / 2);
  ctx.strokeStyle = palette.accent;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  ctx.moveTo(from.x, from.y);
  ctx.bezierCurveTo(from.x + bend, from.y, to.x - bend, to.y, to.x, to.y);
  ctx.stroke();
  ctx.beginPath();
  ctx.arc(to.x, to.y, 3, 0, 7);
  ctx.fillStyle = palette.accent;
  ctx.fill();
}
