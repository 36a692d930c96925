// SPDX-License-Identifier: Apache-2.0
// Tables first, they need nothing; then the payload with timeline and flame graph.

const names = {shown: [], whole: {}};
let search = null;

function setUpTheme(onChange) {
  const root = document.documentElement, dark = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches);
  byId('theme').addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    onChange();
  });
  dark.addEventListener('change', onChange);
  matchMedia('print').addEventListener('change', onChange);
}

function bodyOf(id) {
  return document.querySelector(`#${id} .body`);
}

// A section that the trace has nothing for says why.
function fill(id, section, show) {
  const box = bodyOf(id);
  box.replaceChildren();
  if (!section || section.absent !== undefined) absent(box, section?.absent || 'the trace has nothing for it');
  else show(box, section);
}

function showTables(data, state) {
  const onLine = (file, line) => search?.byLine(file, line);
  const lineAction = (row) => (row.file ? {text: 'Show', run: () => onLine(row.file, row.line)} : null);
  fill('lines', data.lines, (box, section) => showTable(box, section, {bars: true, code: true, action: lineAction, class: 'cards'}));
  fill('findings', data.findings, (box, section) => showFindings(box, section, onLine, (k, event) => state.showEvidence(k, event)));
  fill('gaps', data.gaps, (box, section) => {
    header(box, section.header.slice(data.coverage_text.length));
    showTable(box, section, {class: 'cards', action: (row) => ({text: 'Show', run: () => state.showGap(row)})});
  });
  fill('copies', data.copies, (box, section) => {
    header(box, section.header.slice(data.coverage_text.length));
    showTable(box, section, {class: 'cards', action: lineAction});
  });
  fill('steps', data.steps, (box, section) => {
    header(box, section.header.slice(data.coverage_text.length));
    if (section.sign !== 'window') state.chart = new StepsChart(box, section, null);
    showTable(box, section, {class: 'cards', action: (_, i) => ({text: 'Show', run: () => {
      state.timeline?.show(...section.at[i]);
      bringIntoSight('timeline');
    }})});
  });
  showMissing(bodyOf('missing'), data);
}

// The longest piece of idle time that a row of the table stands for.
function longestGap(timeline, row) {
  let best = null;
  for (const lane of timeline.lanes.filter((l) => l.kind === 'idle')) {
    for (let i = 0; i < lane.length; i++) {
      const line = timeline.stacks.line(lane.stack[i]);
      const what = row.what ? `${row.cause}: ${row.what}` : null;
      const named = what ? names.whole[lane.name[i]] === what : names.shown[lane.name[i]] === row.cause;
      const same = named && (line?.file ?? '') === row.file && (line?.line ?? 0) === row.line;
      if (same && (!best || lane.duration(i) > best.lane.duration(best.i))) best = {lane, i};
    }
  }
  return best;
}

const around = (at, room) => [at - room, at + room];

async function start() {
  const data = JSON.parse(byId('data').textContent);
  const state = {timeline: null, chart: null, flame: null, showGap: () => {}, showEvidence: () => {}};
  setUpTheme(() => {
    state.timeline?.palette.read();
    state.timeline?.paint();
    state.chart?.draw();
  });
  showSummary(data);
  showTables(data, state);
  byId('opened').textContent = `Opened at ${data.open.why}.${data.gaps.data ? ' Pauses of up to 10 µs between queued operations are left white.' : ''}`;
  byId('notes').replaceChildren(...data.notes.map((note) => element('p', {class: 'note', text: `${note}.`})));
  const {head, body} = await readPayload(byId('payload').textContent);
  Object.assign(names, {shown: head.names, whole: head.whole_names});
  const timeline = new Timeline(head, body, data);
  Object.assign(state, {timeline, details: new Details(timeline, data), controls: new Controls(timeline)});
  search = new Search(timeline);
  if (state.chart) state.chart.timeline = timeline;
  state.showGap = (row) => {
    const gap = longestGap(timeline, row);
    if (!gap && row.file) search.byLine(row.file, row.line);  // pauses too short for the lane of idle time
    bringIntoSight('timeline');
    if (!gap) return;
    const room = gap.lane.duration(gap.i) / 2;
    timeline.show(gap.lane.start[gap.i] - room, gap.lane.end[gap.i] + room);
    timeline.select(gap);
  };
  // The page holds evidence in the order of the findings; what it does not hold is shown by its time.
  state.showEvidence = (k, event) => {
    const place = data.evidence[k].find((one) => one.row === event.row && one.table === event.table);
    bringIntoSight('timeline');
    if (place) timeline.select({lane: timeline.lanes[place.lane], i: place.i}, true);
    else timeline.show(...around(event.start_ns - Number(head.origin_ns), timeline.span / 1000));
  };
  showLegend(timeline);
  const flameBox = bodyOf('flame');
  if (data.coverage.gpu_ns && timeline.stacks.parent.length > 1) {
    state.flame = new Flame(flameBox, timeline.stacks, data);
  } else absent(flameBox, data.lines.absent ?? 'the file holds no Python stacks');
  window.profilingLab = {...state, data, names, search, inflateRaw, fromBase64, readyMs: performance.now()};
  document.documentElement.dataset.ready = 'yes';
}

start().catch((error) => {
  byId('details').replaceChildren(element('p', {class: 'absent', text: `The timeline cannot be shown: ${error.message}`}));
  document.documentElement.dataset.ready = 'failed';
  throw error;
});
