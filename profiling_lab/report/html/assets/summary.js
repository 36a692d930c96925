// SPDX-License-Identifier: Apache-2.0
// The head of the page: what the trace is, where its time went, how much of it has a line.

const PART_TINTS = {compute: 'forward', communication: 'communication', copy: 'copy', idle: 'idle-device'};

function showSummary(data) {
  byId('tiles').replaceChildren(...data.tiles.map((tile) => element('div', {class: 'tile'},
    element('span', {class: 'what', text: tile.what}), element('strong', {text: tile.value}),
    element('span', {class: 'note', text: tile.note}))));
  const whole = Object.values(data.parts).reduce((sum, ns) => sum + ns, 0);
  if (whole) {
    const parts = Object.entries(data.parts);
    const told = parts.map(([part, ns]) => `${part} ${share(ns / whole)}`);
    byId('parts').replaceChildren(
      element('div', {class: 'bar wide', role: 'img', 'aria-label': `Wall time of the GPU: ${told.join(', ')}`},
        ...parts.filter(([, ns]) => ns).map(([part, ns]) => element('span', {
          class: `t-${PART_TINTS[part]}`, style: {width: `${(100 * ns) / whole}%`}}))),
      element('p', {class: 'legend'}, ...parts.map(([part, ns]) => element('span', {},
        element('i', {class: `swatch t-${PART_TINTS[part]}`}), `${part} ${share(ns / whole)}`))));
  }
  byId('facts').replaceChildren(...[['file', data.file], ...(data.window ? [['part', data.window]] : []), ...data.facts]
    .flatMap(([what, value]) => [element('dt', {text: what}), element('dd', {text: value})]));
  const {coverage} = data;
  if (!coverage.gpu_ns) return;
  const lines = [element('p', {}, element('strong', {text: `${share(coverage.attributed_ns / coverage.gpu_ns)} of the GPU time has a line of your code`}),
    coverage.linked_ns ? `; ${share(coverage.linked_ns / coverage.gpu_ns)} is backward joined with its forward line` : '', '.')];
  const without = coverage.unattributed.map((part) => element('li', {
    text: `${share(part.gpu_ns / coverage.gpu_ns)} without a line: ${part.reason}`}));
  const notes = coverage.notes.map((note) => element('li', {text: note}));
  if (without.length || notes.length) lines.push(element('ul', {}, ...without, ...notes));
  byId('coverage').replaceChildren(...lines);
}

function showMissing(box, data) {
  box.append(element('ul', {}, ...data.missing.map((text) => element('li', {}, ...withCode(text)))));
}

function showLegend(timeline) {
  const used = new Set();
  for (const lane of timeline.lanes) {
    for (const tint of lane.levels.length ? lane.levels[0].tint : lane.tint) used.add(tint);
    if (used.size === TINTS.length) break;
  }
  byId('legend').replaceChildren(...TINTS.flatMap((tint, i) => (used.has(i) ? [element('span', {},
    element('i', {class: `swatch t-${tint}`}), TINT_TEXT[tint])] : [])));
}
