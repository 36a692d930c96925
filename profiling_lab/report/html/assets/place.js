// SPDX-License-Identifier: Apache-2.0
// Where the reader is, in the address: a link to the page opens it as it was left.
// `#timeline&at=1200-5400&find=gemm`: the section in sight, then what differs from the page as it opens.

const SETTLED_MS = 200;

class Place {
  // parts: per name {get: () => text or null, set: (text or null) => void}
  constructor(parts) {
    this.parts = parts;
    this.waiting = 0;
    this.written = location.hash;
    window.addEventListener('scroll', () => this.changed(), {passive: true});
    window.addEventListener('hashchange', () => {
      if (location.hash !== this.written) this.follow();
    });
    this.follow();
  }

  get section() {
    const seen = [...document.querySelectorAll('main > section')].filter((one) => one.getBoundingClientRect().top < 90);
    return window.scrollY < 40 || !seen.length ? '' : seen[seen.length - 1].id;
  }

  // Soon: while a hand moves the view there is no end to the changes.
  changed() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.write(), SETTLED_MS);
  }

  write() {
    const told = Object.entries(this.parts).map(([name, part]) => [name, part.get()])
      .filter(([, text]) => text !== null && text !== '').map(([name, text]) => `${name}=${encodeURIComponent(text)}`);
    const hash = [this.section, ...told].filter(Boolean).join('&');
    this.written = hash ? `#${hash}` : '';
    if (this.written === location.hash) return;
    try {
      history.replaceState(null, '', this.written || location.pathname + location.search);
    } catch {
      // A page inside of another one may not name its address; it works without.
    }
  }

  // A bare name is a place to go to; what comes with it is how the page was left.
  follow() {
    const pieces = location.hash.slice(1).split('&');
    const told = new Map(pieces.filter((piece) => piece.includes('=')).map((piece) => {
      const at = piece.indexOf('=');
      return [piece.slice(0, at), decoded(piece.slice(at + 1))];
    }));
    if (told.size) for (const [name, part] of Object.entries(this.parts)) part.set(told.get(name) ?? null);
    const wanted = pieces[0].includes('=') ? null : byId(decoded(pieces[0]));
    for (const one of document.querySelectorAll('.target')) one.classList.remove('target');
    if (!wanted) return;
    if (wanted.closest('details')) wanted.closest('details').open = true;
    wanted.classList.add('target');
    wanted.scrollIntoView({behavior: 'instant'});
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// `1200-5400` as numbers, null where it is nothing of that kind.
function intervalOf(text) {
  const found = /^(-?\d+)-(-?\d+)$/.exec(text ?? '');
  return found && Number(found[1]) < Number(found[2]) ? [Number(found[1]), Number(found[2])] : null;
}

function placesOf(state, timeline, opened) {
  const {flame, hostFlame, tables} = state, {interval} = state;
  const same = () => Math.abs(timeline.from - opened.from) < 1 && Math.abs(timeline.to - opened.to) < 1;
  const flames = Object.entries({flame, host: hostFlame}).filter(([, one]) => one);
  return {
    at: {get: () => (same() ? null : `${Math.round(timeline.from)}-${Math.round(timeline.to)}`),
         set: (text) => timeline.show(...(intervalOf(text) ?? [opened.from, opened.to]))},
    event: {get: () => (timeline.selected ? `${timeline.selected.lane.number}:${timeline.selected.i}` : null),
            set: (text) => {
              const [lane, i] = (text ?? '').split(':').map(Number);
              timeline.select(timeline.lanes[lane]?.length > i ? {lane: timeline.lanes[lane], i} : null);
            }},
    interval: {get: () => (interval.range ? interval.range.map(Math.round).join('-') : null),
              set: (text) => interval.choose(...(intervalOf(text) ?? []))},
    find: {get: () => search.asked, set: (text) => search.ask(text ?? '')},
    ...Object.fromEntries(flames.map(([name, one]) => [`${name}-frame`, {get: () => one.place, set: (text) => one.goTo(text)}])),
    ...Object.fromEntries(flames.map(([name, one]) => [`${name}-find`, {get: () => one.wanted, set: (text) => one.find(text ?? '')}])),
    sort: {get: () => Object.entries(tables).filter(([, one]) => one.sorted)
             .map(([name, one]) => `${name}.${one.sorted.column}.${one.sorted.down ? 'down' : 'up'}`).join(','),
           set: (text) => {
             const wanted = Object.fromEntries((text ?? '').split(',').map((one) => one.split('.')).map(([name, ...how]) => [name, how]));
             for (const [name, one] of Object.entries(tables)) one.sort(wanted[name]?.[0], wanted[name]?.[1] === 'down');
           }},
  };
}
