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

/** What each region adds, as buttons; `chosen(number)` is called when one is pointed at, focused or pressed. */
export function regionList(regions, chosen) {
  return make("ul", { className: "regions" }, ...regions.map((region) => {
    const name = region.number ? `Region ${region.number}` : "No match";
    const mark = make("span", { className: "mark", textContent: region.number || "–", "aria-hidden": "true" });
    mark.style.background = COLOURS[region.number];
    const button = make("button", { type: "button", "data-region": region.number, "aria-label": `${name}: ${signed(region.evidence)}` },
      mark, make("span", { className: "number", textContent: `${signed(region.evidence)} (${percent(Math.max(0, region.share))})`, "data-share": region.evidence }));
    for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, () => chosen(region.number));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => chosen(null));
    return make("li", {}, button);
  }));
}

/** Light up a region and its partners inside `box`; null: all alike. */
export function light(box, number) {
  for (const one of box.querySelectorAll("[data-region]")) {
    const mine = Number(one.dataset.region) === number;
    one.classList.toggle("lit", number !== null && mine);
    one.classList.toggle("dim", number !== null && !mine);
  }
}
