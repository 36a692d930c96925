// SPDX-License-Identifier: Apache-2.0
// Steps as stacked bars: where the wall time of each went. A click shows the step in the timeline.

const PARTS = ['compute', 'communication', 'copy', 'idle'];

class StepsChart {
  constructor(box, section, timeline) {
    this.section = section;
    this.timeline = timeline;
    this.several = section.data.some((row) => row.pid !== section.data[0].pid || row.device !== section.data[0].device);
    this.canvas = element('canvas', {class: 'chart', tabindex: '0', role: 'img',
      'aria-label': `Wall time of ${section.data.length} steps; the table below has the numbers`});
    this.told = element('p', {class: 'note', 'aria-live': 'polite'});
    const used = PARTS.filter((part) => section.data.some((row) => row[`${part}_ns`]));
    box.append(this.canvas, element('p', {class: 'legend'}, ...used.map((part) => element('span', {},
      element('i', {class: `swatch t-${PART_TINTS[part]}`}), part)),
      element('span', {text: '▲ outlier'}), element('span', {text: '- - median'})), this.told);
    this.canvas.addEventListener('click', (event) => this.show(this.at(event)));
    this.canvas.addEventListener('pointermove', (event) => this.tell(this.at(event)));
    new ResizeObserver(() => this.draw()).observe(box);
    this.draw();
  }

  at(event) {
    const edge = this.canvas.getBoundingClientRect();
    const bar = Math.floor((event.clientX - edge.left - this.left) / this.pitch);
    return this.bars?.[bar];
  }

  show(bar) {
    if (!bar) return;
    const [from, to] = this.section.at[bar.row];
    this.timeline?.show(from, to);
    bringIntoSight('timeline');
  }

  tell(bar) {
    if (!bar) return;
    const row = this.section.data[bar.row];
    const parts = PARTS.filter((part) => row[`${part}_ns`]).map((part) => `${part} ${time(row[`${part}_ns`])}`);
    this.told.textContent = `${bar.steps > 1 ? `slowest of ${bar.steps} steps: ` : ''}${row.name}${this.several ? ` of GPU ${row.device}, pid ${row.pid}` : ''}: ${time(row.wall_ns)} (${parts.join(', ')})`
      + (row.outlier ? `; an outlier, ${row.grew} grew` : '');
  }

  // Where there are more steps than room, a bar is the slowest of its neighbours: outliers stay in sight.
  group(most) {
    const {data} = this.section, each = Math.ceil(data.length / most);
    const bars = [];
    for (let i = 0; i < data.length; i += each) {
      let row = i;
      for (let k = i; k < Math.min(i + each, data.length); k++) if (data[k].wall_ns > data[row].wall_ns) row = k;
      bars.push({row, steps: Math.min(each, data.length - i)});
    }
    return bars;
  }

  draw() {
    const scale = Math.min(2, window.devicePixelRatio || 1), width = this.canvas.parentElement.clientWidth, height = 190;
    if (!width) return;
    Object.assign(this.canvas, {width: width * scale, height: height * scale});
    Object.assign(this.canvas.style, {width: `${width}px`, height: `${height}px`});
    this.left = 62;
    const room = width - this.left - 8;
    this.bars = this.group(Math.floor(room / 4));
    this.pitch = Math.min(64, room / this.bars.length);
    const ctx = this.canvas.getContext('2d'), {data, median_ns: median} = this.section, palette = new Palette();
    const most = Math.max(1, ...data.map((row) => row.wall_ns)) * 1.08, base = height - 22;
    const y = (ns) => base - (ns / most) * (base - 16);
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, width, height);
    ctx.font = '11px system-ui, sans-serif';
    ctx.textBaseline = 'middle';
    for (const part of [0, 0.5, 1]) {
      const ns = (most / 1.08) * part;
      ctx.fillStyle = palette.rule;
      ctx.fillRect(this.left, Math.round(y(ns)), room, 1);
      ctx.fillStyle = palette.muted;
      ctx.textAlign = 'right';
      ctx.fillText(time(Math.round(ns)).replace(/\.(\d)\d\d /, '.$1 '), this.left - 6, y(ns));
    }
    ctx.textAlign = 'center';
    const tint = Object.fromEntries(PARTS.map((part) => [part, palette.tints[TINTS.indexOf(PART_TINTS[part])]]));
    this.bars.forEach((bar, i) => {
      const row = data[bar.row], x = this.left + i * this.pitch + this.pitch * 0.1, wide = Math.max(1, this.pitch * 0.8);
      let top = 0;
      for (const part of PARTS) {
        const ns = row[`${part}_ns`];
        ctx.fillStyle = tint[part];
        ctx.fillRect(x, y(top + ns), wide, y(top) - y(top + ns));
        top += ns;
      }
      if (row.outlier) {
        ctx.fillStyle = palette.text;
        ctx.fillText('▲', x + wide / 2, y(top) - 8);
      }
      ctx.fillStyle = palette.muted;
      const every = Math.ceil(34 / this.pitch);
      if (i % every === 0) ctx.fillText(String(bar.row), x + wide / 2, base + 11);
    });
    ctx.strokeStyle = palette.text;
    ctx.setLineDash([4, 4]);
    ctx.beginPath();
    ctx.moveTo(this.left, y(median));
    ctx.lineTo(this.left + room, y(median));
    ctx.stroke();
    ctx.setLineDash([]);
  }
}
