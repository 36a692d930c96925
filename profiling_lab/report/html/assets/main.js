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
  if (section && section.absent === undefined) return show(box, section);
  absent(box, section?.absent || 'the trace has nothing for it');
  box.parentElement.classList.add('none');
  return null;
}

function showTables(data, state) {
  const onLine = (file, line) => search?.byLine(file, line);
  const lineAction = (row) => (row.file ? {text: 'Show', run: () => onLine(row.file, row.line)} : null);
  const found = (name) => ({text: 'Show', run: () => search?.byName(name)});
  const onSort = () => state.place?.changed();
  const put = (name, box, section, options) => {
    state.tables[name] = showTable(box, section, {class: 'cards', onSort, ...options});
  };
  const below = (box, section) => header(box, section.header.slice(data.coverage_text.length));
  fill('lines', data.lines, (box, section) => put('lines', box, section, {bars: true, code: true, action: lineAction}));
  if (data.lines.instead) {
    const box = bodyOf('lines');
    box.parentElement.classList.remove('none');
    box.append(element('h3', {class: 'instead', text: 'GPU time by range, since no line is known'}));
    put('lines', box, data.lines.instead, {bars: true, action: (row) => found(row.key)});
  }
  fill('findings', data.findings, (box, section) => showFindings(box, section, onLine, (k, event) => state.showEvidence(k, event)));
  fill('kernels', data.kernels, (box, section) => put('kernels', box, section, {
    title: (row) => row.name, action: (row) => found(row.name)}));
  fill('gaps', data.gaps, (box, section) => {
    below(box, section);
    put('gaps', box, section, {action: (row) => ({text: 'Show', run: () => state.showGap(row)})});
  });
  fill('copies', data.copies, (box, section) => {
    below(box, section);
    put('copies', box, section, {action: lineAction});
  });
  fill('steps', data.steps, (box, section) => {
    below(box, section);
    if (section.sign !== 'window') state.chart = new StepsChart(box, section, null);
    put('steps', box, section, {action: (_, i) => ({text: 'Show', run: () => {
      state.timeline?.show(...section.at[i]);
      bringIntoSight('timeline');
    }})});
  });
  fill('ranges', data.ranges, (box, section) => {
    below(box, section);
    put('ranges', box, section, {action: (row) => found(row.name)});
  });
  fill('host', data.host, (box, section) => {
    header(box, section.header);
    box.append(element('div', {class: 'host-flame'}));
    put('host', box, section, {code: true});
  });
  // A program without GPU work is about the host.
  if (!data.coverage.gpu_ns && state.tables.host) document.querySelector('main').prepend(byId('host'));
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
  const state = {timeline: null, chart: null, flame: null, hostFlame: null, place: null, tables: {}, showGap: () => {}, showEvidence: () => {}};
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
  const interval = new Interval(timeline);
  Object.assign(state, {timeline, interval, details: new Details(timeline, data), controls: new Controls(timeline, interval)});
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
    state.flame = new Flame(flameBox, timeline.stacks, GPU_FLAME);
  } else {
    absent(flameBox, data.lines.absent ?? 'the file holds no Python stacks');
    flameBox.parentElement.classList.add('none');
  }
  const hostBox = document.querySelector('.host-flame');
  if (hostBox && head.host_stacks) state.hostFlame = new Flame(hostBox, new StackTree(head.host_stacks, body), HOST_FLAME);
  keepPlace(state);
  window.profilingLab = {...state, data, names, search, sortedRows, fixed, inflateRaw, fromBase64, readyMs: performance.now()};
  document.documentElement.dataset.ready = 'yes';
}

// The address follows what the reader does, and the page opens as the address says.
function keepPlace(state) {
  const {timeline, interval, details} = state;
  const opened = {from: timeline.from, to: timeline.to};
  state.place = new Place(placesOf(state, timeline, opened));
  const changed = () => state.place.changed();
  Object.assign(timeline, {onView: changed, onSelect: (event) => { details.show(event); changed(); }});
  for (const one of [interval, search, state.flame, state.hostFlame]) if (one) one.onChange = changed;
}

start().catch((error) => {
  byId('details').replaceChildren(element('p', {class: 'absent', text: `The timeline cannot be shown: ${error.message}`}));
  document.documentElement.dataset.ready = 'failed';
  throw error;
});
