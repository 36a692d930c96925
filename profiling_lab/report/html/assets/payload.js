// SPDX-License-Identifier: Apache-2.0
// What packing.py packed: base64, deflate, a JSON head, and columns of varints.

function fromBase64(text) {
  const binary = atob(text.trim());
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) out[i] = binary.charCodeAt(i);
  return out;
}

async function inflate(data) {
  let stream;
  try {
    stream = new DecompressionStream('deflate-raw');
  } catch {
    return inflateRaw(data);
  }
  return new Uint8Array(await new Response(new Blob([data]).stream().pipeThrough(stream)).arrayBuffer());
}

async function readPayload(text) {
  const data = await inflate(fromBase64(text));
  const size = new DataView(data.buffer, data.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + size)));
  return {head, body: data.subarray(4 + size)};
}

// A column into `out`. Numbers beyond 32 bits are sums of products: shifts would cut them.
function readColumn(body, [offset, length], out, signed = false) {
  let at = offset;
  for (let i = 0; i < length; i++) {
    let byte = body[at++];
    let value = byte & 0x7f;
    for (let scale = 128; byte & 0x80; scale *= 128) {
      byte = body[at++];
      value += (byte & 0x7f) * scale;
    }
    out[i] = signed ? (value % 2 ? -(value + 1) / 2 : value / 2) : value;
  }
  return out;
}

const integers = (body, where) => readColumn(body, where, new Uint32Array(where[1]));
const numbers = (body, where, signed) => readColumn(body, where, new Float64Array(where[1]), signed);

function runningSum(values) {
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  return values;
}

// The tree of Python stacks: row 0 is the empty one.
class StackTree {
  constructor(head, body) {
    this.parent = integers(body, head.parent);
    this.frame = integers(body, head.frame);
    this.own = integers(body, head.own);
    this.functions = head.functions;
    this.files = head.files;
    this.frameFunction = integers(body, head.frames.function);
    this.frameFile = integers(body, head.frames.file);
    this.frameLine = integers(body, head.frames.line);
    this.withoutLine = head.without_line ?? [];
    this.selfNs = {};
    for (const [phase, where] of Object.entries(head.self_ns)) this.selfNs[phase] = numbers(body, where);
  }

  frameOf(stack) {
    const frame = this.frame[stack];
    const [file, line] = [this.files[this.frameFile[frame]], this.frameLine[frame]];
    return {function: this.functions[this.frameFunction[frame]], file, line, own: Boolean(this.own[stack])};
  }

  // Innermost first.
  frames(stack) {
    const out = [];
    for (let row = stack; row; row = this.parent[row]) out.push(this.frameOf(row));
    return out;
  }

  // The innermost frame of the user's, null where there is none.
  line(stack) {
    for (let row = stack; row; row = this.parent[row]) if (this.own[row]) return this.frameOf(row);
    return null;
  }

  // Per stack whether that line answers for it.
  onLine(file, line) {
    const out = new Uint8Array(this.parent.length);
    for (let row = 1; row < out.length; row++) {
      const frame = this.line(row);
      out[row] = frame && frame.file === file && frame.line === line ? 1 : 0;
    }
    return out;
  }
}
