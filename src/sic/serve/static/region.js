// The part of the image that a person points at: a circle under the pointer, or what was marked with it.

import { make } from "/static/elements.js";

export class Region extends EventTarget {
  constructor([height, width]) {
    super();
    this.height = height;
    this.width = width;
    this.radius = Math.max(2, Math.round(width / 8));
    this.at = null;  // the circle's centre, in pixels of the map
    this.marked = null;  // Uint8Array, or null where nothing is marked
    this.resting = false;  // whether pictures are for something else now
  }

  /** What sums are taken over: the marked region, else the circle, else null (everything). */
  get mask() {
    if (this.marked) return this.marked;
    if (!this.at) return null;
    const mask = new Uint8Array(this.height * this.width);
    this.fill(mask);
    return mask;
  }

  /** Pixels whose centre lies in the circle. */
  fill(mask) {
    const { x, y } = this.at, r = this.radius;
    for (let v = Math.max(0, Math.floor(y - r)); v <= Math.min(this.height - 1, Math.ceil(y + r)); v++) {
      for (let u = Math.max(0, Math.floor(x - r)); u <= Math.min(this.width - 1, Math.ceil(x + r)); u++) {
        if ((u + 0.5 - x) ** 2 + (v + 0.5 - y) ** 2 <= r * r) mask[v * this.width + u] = 1;
      }
    }
  }

  move(at) {
    this.at = at;
    this.dispatchEvent(new Event("change"));
  }

  mark() {
    if (!this.at) return;
    this.marked ??= new Uint8Array(this.height * this.width);
    this.fill(this.marked);
    this.dispatchEvent(new Event("change"));
  }

  resize(radius) {
    this.radius = Math.min(Math.max(1, radius), Math.round(this.width / 2));
    this.dispatchEvent(new Event("change"));
  }

  rest(resting) {
    if (resting === this.resting) return;
    this.resting = resting;
    this.at = null;
    this.dispatchEvent(new Event("change"));
  }

  clear() {
    this.marked = null;
    this.at = null;
    this.dispatchEvent(new Event("change"));
  }
}

const SVG = "http://www.w3.org/2000/svg";

/** A canvas to draw a map on, and one under it for blending. The region can be moved and marked over it, until `signal`;
 * `touch()` says whether fingers mark. `second`: the keyboard moves the same circle in another picture. */
export function stage(region, label, touch, signal, second = false) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const under = make("canvas", { "aria-hidden": "true", className: "under" });
  const shade = make("canvas", { "aria-hidden": "true", width: region.width, height: region.height });
  const outline = document.createElementNS(SVG, "svg");
  outline.setAttribute("class", "pointer");
  outline.setAttribute("viewBox", `0 0 ${region.width} ${region.height}`);
  const circles = [0, 1].map(() => outline.appendChild(document.createElementNS(SVG, "circle")));
  const box = make("div", { className: "stage", "aria-label": label }, canvas, under, shade, outline);

  const update = () => {
    box.tabIndex = second || region.resting ? -1 : 0;
    box.setAttribute("role", region.resting ? "img" : "application");
    box.classList.toggle("resting", region.resting);
    if (region.resting) box.removeAttribute("aria-describedby");
    else box.setAttribute("aria-describedby", "how");
    outline.classList.toggle("visually-hidden", !region.at);
    if (region.at) {
      for (const circle of circles) {
        circle.setAttribute("cx", region.at.x);
        circle.setAttribute("cy", region.at.y);
        circle.setAttribute("r", region.radius);
      }
    }
    const context = shade.getContext("2d");
    context.clearRect(0, 0, region.width, region.height);
    if (!region.marked) return;
    const dark = context.createImageData(region.width, region.height);
    for (let i = 0; i < region.marked.length; i++) dark.data[4 * i + 3] = region.marked[i] ? 0 : 140;
    context.putImageData(dark, 0, 0);
  };
  region.addEventListener("change", update, { signal });
  update();

  const place = (event) => {
    const bounds = box.getBoundingClientRect();
    return {
      x: ((event.clientX - bounds.left) / bounds.width) * region.width,
      y: ((event.clientY - bounds.top) / bounds.height) * region.height,
    };
  };
  let painting = false;
  const mayPaint = (event) => event.pointerType !== "touch" || touch();
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || region.resting) return;
    region.move(place(event));
    if (!mayPaint(event)) return;
    painting = true;
    box.setPointerCapture(event.pointerId);
    region.mark();
  });
  box.addEventListener("pointermove", (event) => {
    if (region.resting) return;
    region.move(place(event));
    if (painting) region.mark();
  });
  for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, () => { painting = false; });
  box.addEventListener("pointerleave", (event) => { if (!painting && !region.resting && event.pointerType !== "touch") region.move(null); });
  box.addEventListener("keydown", (event) => {
    if (region.resting) return;
    const step = Math.max(1, Math.round(region.width / 32));
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    const middle = { x: region.width / 2, y: region.height / 2 };
    if (event.key in moves) {
      const from = region.at ?? middle, [dx, dy] = moves[event.key];
      const bounded = (value, end) => Math.min(Math.max(0, value), end);
      region.move({ x: bounded(from.x + dx, region.width), y: bounded(from.y + dy, region.height) });
    } else if (event.key === "+" || event.key === "=") region.resize(region.radius + step);
    else if (event.key === "-") region.resize(region.radius - step);
    else if (event.key === "Enter" || event.key === " ") {
      if (!region.at) region.move(middle);
      region.mark();
    } else if (event.key === "Escape") region.clear();
    else return;
    event.preventDefault();
  });
  return { box, canvas, under };
}
