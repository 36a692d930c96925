// SPDX-License-Identifier: Apache-2.0
// Deflate (RFC 1951) for browsers without DecompressionStream.

const LENGTHS = {base: [], extra: []};
const DISTANCES = {base: [], extra: []};
for (let i = 0, length = 3; i < 28; i++) {
  LENGTHS.extra[i] = i < 8 ? 0 : (i >> 2) - 1;
  LENGTHS.base[i] = length;
  length += 1 << LENGTHS.extra[i];
}
LENGTHS.base[28] = 258;
LENGTHS.extra[28] = 0;
for (let i = 0, distance = 1; i < 30; i++) {
  DISTANCES.extra[i] = i < 4 ? 0 : (i >> 1) - 1;
  DISTANCES.base[i] = distance;
  distance += 1 << DISTANCES.extra[i];
}
const CODE_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

// A canonical Huffman code: how many codes each length has, and the symbols in the order of their codes.
function huffman(lengths) {
  const counts = new Uint16Array(16);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  const at = new Uint16Array(16);
  for (let i = 1; i < 15; i++) at[i + 1] = at[i] + counts[i];
  const symbols = new Uint16Array(lengths.length);
  lengths.forEach((length, symbol) => { if (length) symbols[at[length]++] = symbol; });
  return {counts, symbols};
}

function fixedCodes() {
  const lengths = Array.from({length: 288}, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8));
  return [huffman(lengths), huffman(new Array(30).fill(5))];
}

function inflateRaw(input) {
  let position = 0, held = 0, heldBits = 0;
  let output = new Uint8Array(Math.max(1024, input.length * 4)), size = 0;

  function bits(wanted) {
    while (heldBits < wanted) {
      if (position >= input.length) throw new Error('the data of the timeline is cut off');
      held |= input[position++] << heldBits;
      heldBits += 8;
    }
    const value = held & ((1 << wanted) - 1);
    held >>>= wanted;
    heldBits -= wanted;
    return value;
  }

  function symbol({counts, symbols}) {
    let code = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      code |= bits(1);
      const here = counts[length];
      if (code - first < here) return symbols[index + code - first];
      index += here;
      first = (first + here) << 1;
      code <<= 1;
    }
    throw new Error('the data of the timeline is damaged');
  }

  function room(wanted) {
    if (size + wanted <= output.length) return;
    const larger = new Uint8Array(Math.max(output.length * 2, size + wanted));
    larger.set(output);
    output = larger;
  }

  function codesOfBlock() {
    const literals = bits(5) + 257, distances = bits(5) + 1, codes = bits(4) + 4;
    const lengths = new Array(19).fill(0);
    for (let i = 0; i < codes; i++) lengths[CODE_ORDER[i]] = bits(3);
    const code = huffman(lengths), all = [];
    while (all.length < literals + distances) {
      const next = symbol(code);
      if (next < 16) all.push(next);
      else {
        const repeated = next === 16 ? all[all.length - 1] : 0;
        const times = next === 16 ? 3 + bits(2) : next === 17 ? 3 + bits(3) : 11 + bits(7);
        for (let i = 0; i < times; i++) all.push(repeated);
      }
    }
    return [huffman(all.slice(0, literals)), huffman(all.slice(literals))];
  }

  for (let last = 0; !last;) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      held = heldBits = 0;
      const length = input[position] | (input[position + 1] << 8);
      position += 4;
      room(length);
      output.set(input.subarray(position, position + length), size);
      position += length;
      size += length;
      continue;
    }
    if (kind === 3) throw new Error('the data of the timeline is damaged');
    const [literals, distances] = kind === 1 ? fixedCodes() : codesOfBlock();
    for (let next = symbol(literals); next !== 256; next = symbol(literals)) {
      if (next < 256) {
        room(1);
        output[size++] = next;
        continue;
      }
      const length = LENGTHS.base[next - 257] + bits(LENGTHS.extra[next - 257]);
      const which = symbol(distances);
      const distance = DISTANCES.base[which] + bits(DISTANCES.extra[which]);
      room(length);
      for (let i = 0; i < length; i++, size++) output[size] = output[size - distance];
    }
  }
  return output.subarray(0, size);
}
