// SPDX-License-Identifier: Apache-2.0
// Tables of the verbs, as `--format table` shows them and with the same numbers as `--format json`.

const FINDINGS_SHOWN = 6;
const rowsShown = () => (window.innerWidth > 960 ? 15 : 6);
const BARS = ['forward_ns', 'backward_ns', 'recompute_ns', 'optimizer_ns', 'unknown_ns'];

function cellText(value, column, unit) {
  if (value === null || value === undefined) return '-';
  if (column.unit === 'ns') return inUnit(value, unit[1]);
  return {count: () => count(value), bytes: () => bytes(value), frac: () => share(value),
          rate: () => `${fixed(value / 1e9, 1)} GB/s`}[column.unit]?.() ?? String(value);
}

// Columns of one scale are compared with each other and have one unit.
function unitsOf(table) {
  const values = {};
  table.columns.forEach((column, i) => {
    if (column.unit === 'ns') (values[column.scale] ??= []).push(...table.rows.map((row) => row[i] ?? 0));
  });
  return Object.fromEntries(Object.entries(values).map(([scale, all]) => [scale, timeUnit(all)]));
}

function absent(box, reason) {
  box.replaceChildren(element('p', {class: 'absent'}, 'Not here: ', ...withCode(reason), '.'));
}

// The time of a row by phase, on the scale of the largest row.
function bar(row, largest) {
  const parts = BARS.filter((name) => row[name]);
  const told = parts.map((name) => `${name.slice(0, -3)} ${time(row[name])}`).join(', ');
  return element('div', {class: 'bar', role: 'img', 'aria-label': told, title: told}, ...parts.map((name) => element('span', {
    class: `t-${name.slice(0, -3)}`, style: {width: `${(100 * row[name]) / largest}%`}})));
}

// options: bars (a column of bars), code (the first column is code), action (a button per row: {text, run(data)}),
// onSort (called when the order changed). Gives {sort(column, down), sorted}.
function showTable(box, table, options = {}) {
  const units = unitsOf(table);
  const largest = options.bars ? Math.max(1, ...table.data.map((row) => row.gpu_ns ?? 0)) : 1;
  const titles = table.columns.map((column) => (
    column.unit === 'ns' ? `${column.title} ${units[column.scale][0]}` : column.title));
  const out = {sorted: null, sort: (column, down) => {
    const at = table.columns.findIndex((one) => one.name === column);
    out.sorted = at < 0 ? null : {column, down};
    order = at < 0 ? table.rows.map((_, i) => i) : sortedRows(table.rows, at, down);
    sortable.show(out.sorted);
    fillBody();
    options.onSort?.();
  }};
  const sortable = new SortableHeads(table.columns, titles, out.sort);
  const heads = [...sortable.cells];
  if (options.bars) heads.splice(1, 0, element('th', {scope: 'col', class: 'bars', text: 'GPU time'}));
  if (options.action) heads.push(element('th', {scope: 'col', class: 'do'}, element('span', {class: 'hidden', text: 'Show'})));
  const body = element('tbody');
  let order = table.rows.map((_, i) => i), shown = rowsShown();
  const fillBody = () => body.replaceChildren(...order.slice(0, shown).map((i) => tableRow(table, i, units, largest, options)));
  fillBody();
  const more = table.rows.length > shown ? element('button', {
    type: 'button', class: 'quiet more', text: `Show all ${count(table.rows.length)} rows`,
    on: {click: (event) => { shown = table.rows.length; fillBody(); event.target.remove(); }}}) : null;
  const cut = table.total_matched > table.rows.length ? element('p', {class: 'note',
    text: `${count(table.rows.length)} of ${count(table.total_matched)} rows are in this page.`}) : null;
  box.append(element('div', {class: 'scroll'}, element('table', {class: options.class ?? null},
    element('thead', {}, element('tr', {}, ...heads)), body)), ...[more, cut].filter(Boolean));
  return out;
}

function tableRow(table, i, units, largest, options) {
  const cells = table.columns.map((column, c) => {
    const text = cellText(table.rows[i][c], column, units[column.scale]);
    const title = column.unit === 'ns' ? `${column.title} ${units[column.scale][0]}` : column.title;
    const cell = element('td', {class: column.unit === 'text' ? (c === 0 ? 'key' : 'text') : 'right', 'data-title': title});
    if (c === 0) {
      cell.append(element(options.code ? 'code' : 'span', {title: options.title?.(table.data[i])}, ...breakable(text || '-')));
      const source = table.data[i]?.source;
      if (source) cell.append(element('code', {class: 'source', text: source, title: source}));
      for (const line of table.details[i] ?? []) cell.append(element('div', {class: 'detail', text: line}));
    } else cell.append(...(column.unit === 'text' ? breakable(text) : [text]));
    if (!text || text === '0') cell.classList.add('empty');
    return cell;
  });
  if (options.bars) cells.splice(1, 0, element('td', {class: 'bars'}, bar(table.data[i], largest)));
  const action = options.action?.(table.data[i], i);
  if (options.action) cells.push(element('td', {class: 'do'}, action ? element('button', {
    type: 'button', class: 'link', text: action.text, on: {click: action.run}}) : null));
  return element('tr', {}, ...cells);
}

function header(box, lines) {
  const list = lines.filter(Boolean);
  if (list.length) box.append(element('p', {class: 'lead', text: list[0]}),
    ...list.slice(1).map((line) => element('p', {class: line.startsWith(' ') ? 'note inset' : 'note', text: line.trim()})));
}

function showFindings(box, section, onLine, onEvidence) {
  if (!section.data.length) box.append(element('p', {class: 'lead', text: 'No rule found anything.'}));
  const rest = section.data.slice(FINDINGS_SHOWN);
  const more = rest.length ? element('details', {}, element('summary', {
    text: counted(rest.length, 'more finding') + (rest[0].cost_ns ? `, ${time(rest[0].cost_ns)} and less each` : '')})) : null;
  section.data.forEach((finding, k) => {
    const place = finding.file ? element('button', {type: 'button', class: 'link code',
      text: `${baseName(finding.file)}:${finding.line} ${finding.function}`, title: `${finding.file}:${finding.line}`,
      on: {click: () => onLine(finding.file, finding.line)}}) : element('span', {text: 'no line known'});
    const shown = finding.evidence.slice(0, 3);
    const evidence = shown.flatMap((e, n) => [n ? ', ' : ' ', element('button', {
      type: 'button', class: 'link', text: `${e.table}[${e.row}]`, title: 'Show it in the timeline',
      on: {click: () => onEvidence(k, e)}})]);
    const others = finding.events > shown.length ? ` and ${count(finding.events - shown.length)} more` : '';
    (k < FINDINGS_SHOWN ? box : more).append(element('article', {class: `finding ${finding.severity ?? ''}`, id: `finding-${k}`},
      element('div', {class: 'cost'}, element('strong', {text: time(finding.cost_ns)}),
        element('span', {text: finding.cost_of}),
        finding.severity ? element('span', {class: 'tag', text: finding.severity}) : null),
      element('div', {}, element('h3', {text: finding.what}),
        element('p', {}, place, element('span', {class: 'note'}, ` rule ${finding.rule}; evidence`, ...evidence, others)),
        finding.source ? element('p', {}, element('code', {class: 'source', text: finding.source})) : null,
        element('p', {class: 'remedy'}, ...withCode(finding.remedy)))));
  });
  if (more) box.append(more);
  if (section.silent?.length) {
    box.append(element('p', {class: 'note', text: `Nothing found by: ${section.silent.join(', ')}.`}));
  }
  if (section.abstained?.length) {
    box.append(element('details', {}, element('summary', {text: `${counted(section.abstained.length, 'rule')} could not tell`}),
      element('ul', {}, ...section.abstained.map((one) => element('li', {},
        element('code', {text: one.rule}), ' ', ...withCode(`${one.reason}${one.to_record ? `; to record it: ${one.to_record}` : ''}`))))));
  }
}
