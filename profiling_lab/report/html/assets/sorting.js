// SPDX-License-Identifier: Apache-2.0
// Rows in the order that a reader asked for: unknown values last, equal ones as they came.

const byText = new Intl.Collator('en', {numeric: true}).compare;

function sortedRows(rows, column, down) {
  const known = (row) => row[column] !== null && row[column] !== undefined && row[column] !== '';
  const order = rows.map((_, i) => i);
  return order.sort((a, b) => {
    const [first, second] = [rows[a], rows[b]];
    if (!known(first) || !known(second)) return known(second) - known(first) || a - b;
    const numeric = typeof first[column] === 'number' && typeof second[column] === 'number';
    const ahead = numeric ? first[column] - second[column] : byText(String(first[column]), String(second[column]));
    return (down ? -ahead : ahead) || a - b;
  });
}

// The heads of a table's columns as buttons; `onSort(name or null, down)`. A third press gives the first order back.
class SortableHeads {
  constructor(columns, titles, onSort) {
    this.columns = columns;
    this.onSort = onSort;
    this.cells = columns.map((column, i) => element('th', {scope: 'col', class: column.unit === 'text' ? null : 'right'},
      element('button', {type: 'button', class: 'sort', on: {click: () => this.press(column)}}, titles[i])));
  }

  press(column) {
    const largestFirst = column.unit !== 'text', {sorted} = this;
    if (sorted?.column !== column.name) this.onSort(column.name, largestFirst);
    else if (sorted.down === largestFirst) this.onSort(column.name, !largestFirst);
    else this.onSort(null, false);
  }

  show(sorted) {
    this.sorted = sorted;
    this.columns.forEach((column, i) => {
      const mine = sorted?.column === column.name;
      if (mine) this.cells[i].setAttribute('aria-sort', sorted.down ? 'descending' : 'ascending');
      else this.cells[i].removeAttribute('aria-sort');
    });
  }
}
