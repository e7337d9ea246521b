// Contribution maps as the server sends them (raw float32), drawn and summed. Only drawing smooths, scales or clips.

// ColorBrewer's RdBu from 0 to 1 and from 0 to -1, as in sic.explain.picture: told apart without seeing red and green.
const FOR = [[247, 247, 247], [253, 219, 199], [244, 165, 130], [214, 96, 77], [178, 24, 43], [103, 0, 31]];
const AGAINST = [[247, 247, 247], [209, 229, 240], [146, 197, 222], [67, 147, 195], [33, 102, 172], [5, 48, 97]];
const FULL_STRENGTH = 0.5;  // sum of contributions from which on a map is drawn in full colour

export function floats(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

export const total = (map) => map.reduce((sum, value) => sum + value, 0);

/** Sum of a map inside a mask (Uint8Array of the same length). */
export function inside(map, mask) {
  let sum = 0;
  for (let i = 0; i < map.length; i++) if (mask[i]) sum += map[i];
  return sum;
}

/** The same box filter as in the figures that sic writes: 5×5, cut off at the border. */
function smoothed(map, height, width, reach = 2) {
  const result = new Float32Array(map.length);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      let sum = 0, count = 0;
      for (let v = Math.max(0, y - reach); v <= Math.min(height - 1, y + reach); v++) {
        for (let u = Math.max(0, x - reach); u <= Math.min(width - 1, x + reach); u++) { sum += map[v * width + u]; count++; }
      }
      result[y * width + x] = sum / count;
    }
  }
  return result;
}

/** A map made ready for drawing: smoothed, where its values end (but for a few), and how much there is to draw. */
export function prepare(map, [height, width], amount = Math.abs(total(map))) {
  const drawn = smoothed(map, height, width);
  const sizes = drawn.map(Math.abs).sort();
  const place = 0.995 * (sizes.length - 1), before = sizes[Math.floor(place)], after = sizes[Math.ceil(place)];
  const limit = Math.max(before + (place % 1) * (after - before), 1e-12);
  return { drawn, limit, strength: Math.min(1, amount / FULL_STRENGTH), height, width };
}

/** The value at which the colours of prepared maps end: one scale for all, pale where there is hardly any evidence. */
export const scaleEnd = (...maps) =>
  Math.max(...maps.map((one) => one.limit)) / Math.max(1e-6, ...maps.map((one) => one.strength));

/** Red for, blue against, over a pale grey copy of the image. `image`: ImageData or null. */
export function drawSigned(canvas, { drawn, height, width }, limit, image) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"), picture = context.createImageData(width, height);
  for (let i = 0; i < drawn.length; i++) {
    const grey = image ? 153 + 0.4 * (image.data[4 * i] + image.data[4 * i + 1] + image.data[4 * i + 2]) / 3 : 245;
    const size = Math.min(1, Math.abs(drawn[i]) / limit), opacity = size ** 0.7;
    const stops = drawn[i] > 0 ? FOR : AGAINST, stop = Math.min(4, Math.floor(5 * size)), rest = 5 * size - stop;
    for (let c = 0; c < 3; c++) {
      const colour = stops[stop][c] + (stops[stop + 1][c] - stops[stop][c]) * rest;
      picture.data[4 * i + c] = grey * (1 - opacity) + colour * opacity;
    }
    picture.data[4 * i + 3] = 255;
  }
  context.putImageData(picture, 0, 0);
}

/** The colour scale from -limit to +limit. */
export function drawScale(canvas) {
  const ramp = Float32Array.from({ length: 101 }, (_, i) => (i - 50) / 50);
  drawSigned(canvas, { drawn: ramp, height: 1, width: 101 }, 1, null);
}

/** The pixels of a picture at an address. */
export async function pixels(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

/** A picture on white; colour pictures are transparent where nothing counts. */
export function drawPixels(canvas, image) {
  canvas.width = image.width;
  canvas.height = image.height;
  const opaque = new ImageData(new Uint8ClampedArray(image.data), image.width, image.height), { data } = opaque;
  for (let i = 0; i < data.length; i += 4) {
    for (let c = i; c < i + 3; c++) data[c] = 255 + ((data[c] - 255) * data[i + 3]) / 255;
    data[i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(opaque, 0, 0);
}
