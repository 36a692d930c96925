// SPDX-License-Identifier: Apache-2.0
// Numbers for people, as profiling_lab/report/numbers.py writes them, and elements without innerHTML:
// names of kernels come from the trace and may hold anything.

const TIME_UNITS = [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 1]];
const SIZE_UNITS = [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10], ['B', 1]];

function fixed(value, digits) {
  const text = value.toLocaleString('en-US', {minimumFractionDigits: digits, maximumFractionDigits: digits});
  return /^-[0.]+$/.test(text) ? text.slice(1) : text;  // what rounds to zero has no sign
}

function inUnit(value, size) {
  if (size === 1 || value === 0) return String(value);
  return fixed(value / size, Math.abs(value) < 1000 * size ? 3 : 1);
}

function time(ns) {
  const [unit, size] = TIME_UNITS.find((u) => Math.abs(ns) >= u[1]) ?? TIME_UNITS[3];
  return `${inUnit(ns, size)} ${unit}`;
}

// A column of times has one unit, never seconds, so that its rows compare by eye.
function timeUnit(values) {
  const largest = values.reduce((most, v) => Math.max(most, Math.abs(v ?? 0)), 0);
  return TIME_UNITS.slice(1).find((u) => largest >= u[1]) ?? TIME_UNITS[3];
}

function bytes(value) {
  const [unit, size] = SIZE_UNITS.find((u) => Math.abs(value) >= u[1]) ?? SIZE_UNITS[3];
  return size === 1 ? `${value} B` : `${fixed(value / size, 1)} ${unit}`;
}

function share(value) {
  return value > 0 && value < 0.0005 ? '< 0.1 %' : `${(100 * value).toFixed(1)} %`;
}

function count(value) {
  return value.toLocaleString('en-US');
}

function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? '' : 's'}`;
}

// The part of a path that people read.
function baseName(path) {
  return path.slice(path.lastIndexOf('/') + 1);
}

// element('td', {class: 'right', text: '3', on: {click}}, child, ...)
function element(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'text') node.textContent = value;
    else if (name === 'on') for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else if (name === 'style') Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Long names may break behind their dots, slashes and underscores before they break anywhere else.
function breakable(text) {
  const parts = String(text).match(/[^./_]*[./_]?/g).filter(Boolean);
  return parts.flatMap((part, i) => (i ? [document.createElement('wbr'), part] : [part]));
}

// `like this` is code.
function withCode(text) {
  return text.split('`').map((part, i) => (i % 2 ? element('code', {text: part}) : part));
}

const byId = (id) => document.getElementById(id);

function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function bringIntoSight(id) {
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  byId(id).scrollIntoView({behavior: still ? 'auto' : 'smooth'});
}
