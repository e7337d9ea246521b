// Regions of an image and of its cases that match: the same number and colour on both sides, as in the figures of sic.

import { make, percent, signed } from "/static/elements.js";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#cccccc", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7"];

function draw(tag, attributes, parent) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return parent.appendChild(element);
}

/** Outlines with numbers, to lie over a picture; `side`: image or support. */
export function outlines(regions, side, [height, width]) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("class", "outlines");
  picture.setAttribute("aria-hidden", "true");  // the buttons say the same
  for (const region of regions) {
    const place = region[side];
    if (!region.number || !place?.outline.length) continue;
    const group = draw("g", { "data-region": region.number }, picture);
    const path = place.outline.map((polygon) => `M${polygon.map((point) => point.join(" ")).join("L")}Z`).join("");
    draw("path", { d: path, class: "around" }, group);
    draw("path", { d: path, class: "line", stroke: COLOURS[region.number] }, group);
    const [x, y] = place.centre;
    draw("circle", { cx: x, cy: y, r: width / 24, fill: COLOURS[region.number], stroke: "#222", "stroke-width": width / 300 }, group);
    draw("text", { x, y, "font-size": width / 16 }, group).textContent = region.number;
  }
  return picture;
}

/** The number of a region on its colour. */
function mark(number) {
  const box = make("span", { className: "mark", textContent: number || "–", "aria-hidden": "true" });
  box.style.background = COLOURS[number];
  return box;
}

const named = (number) => (number ? `Region ${number}` : "No match");

const part = (share) => percent(Math.max(0, share));

/** What a region adds, in words. */
export const regionWords = ({ number, evidence, share }) => `${named(number)}: ${signed(evidence)}, ${part(share)} of the evidence`;

/** What each region adds, as buttons. */
export function regionList(regions) {
  return make("ul", { className: "regions" }, ...regions.map((region) => {
    const { number, evidence, share } = region;
    return make("li", {}, make("button", { type: "button", "data-region": number, "aria-label": regionWords(region), "aria-pressed": "false" },
      mark(number), make("span", { className: "number", textContent: `${number ? "" : "no match "}${signed(evidence)} (${part(share)})`, "data-share": evidence })));
  }));
}

/** Why one class and not another: the difference of their scores as a sum over the regions; `contrast` as the server sends it. */
export function differences({ class: name, versus, difference, regions }) {
  const end = Math.max(1e-9, Math.abs(difference), ...regions.map((region) => Math.abs(region.difference)));
  const row = (value, colour, words, ...before) => {
    const bar = make("span", { className: "bar" });
    bar.style.left = `${50 + 50 * Math.min(0, value / end)}%`;
    bar.style.width = `${50 * Math.abs(value / end)}%`;
    if (colour) bar.style.background = colour;
    return [...before, make("span", { className: "plot", "aria-hidden": "true" }, bar, make("span", { className: "zero" })),
      make("span", { className: "number", textContent: signed(value), "data-difference": value }), make("small", { className: "soft", textContent: words })];
  };
  const rows = regions.map((region) => {
    const words = `${region.number ? named(region.number) : "The rest"}: ${signed(region.evidence)} for ${name}, ${signed(region.versus)} for ${versus}`;
    const button = make("button", { type: "button", "data-region": region.number, "aria-pressed": "false", "aria-label": `${words}; difference ${signed(region.difference)}` },
      ...row(region.difference, COLOURS[region.number], words, mark(region.number)));
    return make("li", {}, button);
  });
  const sum = make("li", { className: "sum" }, ...row(difference, null, `${name} less ${versus}`, make("span", { textContent: "Sum" })));
  return make("ol", { className: "differences" }, ...rows, sum);
}

// Regions as { place, number }: the one under the pointer, the one with the focus, and the one that was chosen with a click, a
// tap or a key. A place is a class, with its image and its cases; its regions light up together, wherever they are shown.
let hovered = null, focused = null, kept = null;

function regionOf(element) {
  const found = element.closest?.("[data-region]");
  return found ? { place: found.closest("[data-place]")?.dataset.place, number: Number(found.dataset.region) } : null;
}

const same = (one, other) => one !== null && other !== null && one.place === other.place && one.number === other.number;

/** Light up a region and its partners; places are told of it by the event "region", whose detail is its number or null. */
export function light() {
  const now = hovered ?? focused ?? kept;
  for (const one of document.querySelectorAll("[data-region]")) {
    const own = regionOf(one), here = now !== null && own.place === now.place;
    one.classList.toggle("lit", here && own.number === now.number);
    one.classList.toggle("dim", here && own.number !== now.number);
    if (one.hasAttribute("aria-pressed")) one.setAttribute("aria-pressed", String(same(own, kept)));
  }
  for (const one of document.querySelectorAll("[data-place]")) {
    one.dispatchEvent(new CustomEvent("region", { detail: now?.place === one.dataset.place ? now.number : null }));
  }
}

/** Choose no region. */
export function forget() {
  hovered = focused = kept = null;
  light();
}

/** From now on regions light up when they are pointed at, focused, or chosen. */
export function linkRegions() {
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;  // a tap chooses
    hovered = regionOf(event.target);
    light();
  });
  const leave = () => { hovered = null; light(); };
  document.addEventListener("pointerout", leave);
  document.addEventListener("close", leave, true);  // of the dialog under the pointer
  document.addEventListener("focusin", (event) => { focused = regionOf(event.target); light(); });
  document.addEventListener("focusout", () => { focused = null; light(); });
  document.addEventListener("click", (event) => {
    const chosen = regionOf(event.target);
    if (chosen === null && event.target.closest("button, a, input, select, summary, label")) return;
    if (chosen === null || same(chosen, kept)) forget();
    else {
      kept = chosen;
      light();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) forget();  // else it closes the dialog
  });
}
