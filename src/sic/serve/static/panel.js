// The reasons for one class: map, sum, cases.

import { getBytes } from "/static/api.js";
import { make, percent, signed } from "/static/elements.js";
import { enlarge } from "/static/enlarge.js";
import { light, outlines, regionList } from "/static/matches.js";
import { drawPixels, drawScale, drawSigned, floats, inside, pixels, prepare, scaleEnd, total } from "/static/maps.js";
import { stage } from "/static/region.js";

/** A class as the server explained it, with its maps decoded. */
export async function decode(found, size) {
  return {
    ...found,
    map: floats(found.map),
    colours: await pixels(`data:image/png;base64,${found.picture}`),
    cases: found.cases.map((one) => ({ ...one, map: floats(one.map) })),
    ready: prepare(floats(found.map), size),
  };
}

function legend(meaning = "blue lowers the score, red raises it") {
  const scale = make("canvas", { "aria-hidden": "true" });
  drawScale(scale);
  const low = make("span", { className: "number" }), high = make("span", { className: "number" });
  const words = make("span", { className: "words", textContent: `${meaning} (per pixel; values beyond the ends are clipped)` });
  return { box: make("div", { className: "legend" }, low, scale, high, words), low, high };
}

/** The sum behind the score as bars; the server names the steps. */
function steps(explained, { bias, threshold }) {
  let sum = 0;
  const bars = explained.steps.map((step) => {
    const from = step.kind === "score" ? 0 : sum;
    sum = from + step.value;
    return { ...step, from, to: sum };
  });
  const ends = bars.flatMap((bar) => [bar.from, bar.to]);
  const low = Math.min(...ends), high = Math.max(...ends, 0.5, threshold);
  const at = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const rows = bars.map(({ label, value, kind, from, to }) => {
    const bar = make("span", { className: kind });
    bar.style.left = at(Math.min(from, to));
    bar.style.width = `${(100 * Math.abs(to - from)) / (high - low)}%`;
    const zero = make("span", { className: "zero" });
    zero.style.left = at(0);
    const limit = make("span", { className: "limit", hidden: kind !== "score" || Math.abs(threshold) < 0.005, title: "50 %" });
    limit.style.left = at(threshold);
    const words = kind === "score" ? `${label} (${explained.verdict})` : label;
    return make("li", { className: kind === "score" ? "sum" : "" }, make("span", { className: "label", textContent: words }),
      make("span", { className: "plot", "aria-hidden": "true" }, bar, zero, limit),
      make("span", { className: "number", textContent: signed(value), "data-value": value }));
  });
  const other = explained.constant - bias;
  const note = Math.abs(other) < 0.005 ? null
    : make("p", { className: "soft", textContent: `${signed(other)} of the evidence comes from the positional encoding, not from pixels.` });
  return [make("ol", { className: "steps" }, ...rows), note];
}

/** One case: its image, what the model remembers of it, what it adds, and how much of that comes from the region. */
function caseCard(one, { size, relying, kind }, lit) {
  let latest;
  const share = make("span", {});
  const bar = make("div", { className: "share-bar", "aria-hidden": "true", hidden: true }, share);
  const from = make("span", { className: "region number" });
  const picture = make("canvas", { role: "img", "aria-label": `What the model remembers of ${one.name}` });
  const over = make("span", { className: "over" }, picture);
  let lines = null, list = null;
  const image = make("img", { src: `/api/v1/supports/${one.support}/image`, alt: `${one.name}: training image ${one.source}` });
  const shown = one.shown
    ? make("button", { type: "button", className: "pair", title: "Enlarge", "aria-label": `Enlarge ${one.name}` }, image, over)
    : make("p", { className: "missing", textContent: "Its image was not kept with the model." });
  if (one.shown) {
    shown.addEventListener("click", () => enlarge(`${one.name} adds ${signed(one.evidence)}`, [[`Training image ${one.source}`, image], [latest === "matches" ? "Regions that match the image" : "What the model remembers of it", picture, lines]]));
  }
  const button = relying
    ? make("button", { type: "button", className: "relying", textContent: `Which ${kind} rely on this?`, "aria-label": `Which ${kind} rely on ${one.name}, ${one.source}?` })
    : null;
  button?.addEventListener("click", () => relying(one));
  const box = make("li", { "data-support": one.support }, shown,
    make("strong", {}, `${one.name} adds `, make("span", { className: "number", textContent: signed(one.evidence), "data-evidence": one.evidence })),
    make("span", { className: "soft", textContent: one.source, title: one.source }), bar, from, button);

  return {
    box,
    async draw(mode) {
      latest = mode;  // another one may be chosen while this one is on its way
      if (!one.shown) return;
      lines?.remove();
      list?.remove();
      lines = list = null;
      if (mode === "matches") {
        one.image ??= await pixels(`/api/v1/supports/${one.support}/image`);
        if (mode !== latest) return;
        drawPixels(picture, one.image);
        if (!one.regions) return;  // on their way
        over.append(lines = outlines(one.regions, "support", size));
        from.before(list = regionList(one.regions, lit));
      } else if (mode === "colours") {
        one.colours ??= await pixels(`/api/v1/supports/${one.support}/picture`);
        if (mode === latest) drawPixels(picture, one.colours);
      } else {
        one.own ??= prepare(new Float32Array(await getBytes(`/api/v1/supports/${one.support}/map`)), size);
        one.image ??= await pixels(`/api/v1/supports/${one.support}/image`);
        if (mode === latest) drawSigned(picture, one.own, scaleEnd(one.own), one.image);
      }
    },
    sum(mask) {
      const value = mask ? inside(one.map, mask) : null;
      from.textContent = value === null ? "" : `${signed(value)} of it from here (${part(value, one.evidence)})`;
      from.dataset.value = value ?? "";
      bar.hidden = value === null;
      share.style.width = value === null ? "0" : `${Math.min(100, Math.max(0, (100 * value) / one.evidence))}%`;
      return value;
    },
  };
}

const part = (value, whole) => (Math.abs(whole) < 0.005 ? "hardly any" : percent(Math.max(0, value / whole)));

/** The panel of a class; `context.relying` opens the list of images that rely on a case, if there are any. */
export function panel(explained, context) {
  const { region, image, touch, signal } = context;
  const { box: place, canvas, under } = stage(region, `The image, with the evidence for and against ${explained.name}`, touch, signal);
  const { box: beside, canvas: original } = stage(region, "The image as the model sees it", touch, signal);
  beside.tabIndex = -1;  // the keyboard moves the same circle in the other picture
  drawPixels(under, image);
  drawPixels(original, image);
  const scale = legend();
  const caption = make("span", {});
  const larger = make("button", { type: "button", className: "enlarge", textContent: "Enlarge", "aria-label": `Enlarge the pictures of ${explained.name}` });
  larger.addEventListener("click", () => enlarge(`${explained.name}: ${percent(explained.probability)}`, [[caption.textContent, canvas, lines], ["The image as the model sees it", original]]));
  const whole = make("p", { className: "region" });
  const lit = (number) => light(box, number);
  const cases = explained.cases.map((one) => caseCard(one, context, lit));
  const matched = make("div", {});
  let lines = null;
  const box = make("article", { className: "panel", "aria-label": explained.name, "data-class": explained.name },
    make("h2", { textContent: `Why ${explained.name}: ${percent(explained.probability)}` }),
    make("div", { className: "pictures" },
      make("figure", {}, place, make("figcaption", {}, caption, larger)),
      make("figure", { className: "original" }, beside, make("figcaption", { textContent: "The image as the model sees it" }))),
    scale.box, matched, whole,
    make("h3", { textContent: "The score is a sum" }), ...steps(explained, context).filter(Boolean),
    ...(cases.length ? [
      make("h3", { textContent: "The cases: training images of this class, and what the model remembers of them" }),
      make("ul", { className: "cases" }, ...cases.map((one) => one.box)),
    ] : []));

  /** The same numbers in the image and in the cases, and what each region adds to the score. */
  function showMatches() {
    if (!explained.regions) {
      matched.replaceChildren(make("p", { className: "soft", textContent: explained.cases.length ? "Finding the regions that match …" : "This model has no cases to match." }));
      return;
    }
    place.append(lines = outlines(explained.regions, "image", context.size));
    for (const group of lines.children) {
      group.addEventListener("pointerenter", () => lit(Number(group.dataset.region)));
      group.addEventListener("pointerleave", () => lit(null));
    }
    matched.replaceChildren(regionList(explained.regions, lit),
      make("p", { className: "soft", textContent: "Regions with the same number match. Choose one to find its partners; its number says how much it adds, and which share of the evidence that is." }));
  }

  return {
    box,
    explained,
    /** How much of the evidence covers the image, from 0 to 1. */
    blend(share) { canvas.style.opacity = share; },
    draw(mode, limit) {
      caption.textContent = { signed: `Evidence for (red) and against (blue) ${explained.name}`, colours: "What the model recognised", matches: "Regions that match the cases" }[mode];
      lines?.remove();
      lines = null;
      matched.replaceChildren();
      scale.box.hidden = mode !== "signed";
      scale.low.textContent = `−${limit.toPrecision(2)}`;
      scale.high.textContent = `+${limit.toPrecision(2)}`;
      if (mode === "signed") drawSigned(canvas, explained.ready, limit, image);
      else drawPixels(canvas, mode === "colours" ? explained.colours : image);
      if (mode === "matches") showMatches();
      return Promise.all(cases.map((one) => one.draw(mode)));
    },
    /** Show what comes from inside the mask, and say it. */
    sum(mask) {
      const values = cases.map((one) => one.sum(mask));
      const value = mask ? inside(explained.map, mask) : null;
      const marked = region.marked ? "The marked region" : "The circle";
      whole.textContent = value === null ? "" : `${marked}: ${signed(value)} of the evidence for ${explained.name}`;
      whole.dataset.value = value ?? "";
      if (value === null) return "";
      const parts = values.map((one, slot) => `${explained.cases[slot].name} ${signed(one)} of ${signed(explained.cases[slot].evidence)}`);
      return `${marked} gives ${explained.name} ${signed(value)}${parts.length ? `: ${parts.join(", ")}` : ""}.`;
    },
  };
}

/** Where two classes differ: their maps' difference explains the difference of their scores. */
export function difference(first, second, context) {
  const map = first.map.map((value, i) => value - second.map[i]);
  const ready = prepare(map, context.size, total(map.map(Math.abs)));  // for and against may cancel out
  const end = scaleEnd(ready);
  const { box: place, canvas } = stage(context.region, `Where ${first.name} and ${second.name} differ`, context.touch, context.signal);
  const scale = legend(`blue: more for ${second.name}, red: more for ${first.name}`);
  scale.low.textContent = `−${end.toPrecision(2)}`;
  scale.high.textContent = `+${end.toPrecision(2)}`;
  const words = make("p", { className: "region" });
  const gap = first.logit - second.logit;
  const [ahead, behind] = gap >= 0 ? [first, second] : [second, first];
  drawSigned(canvas, ready, end, context.image);
  const box = make("div", {},
    make("h2", { textContent: `${first.name} or ${second.name}?` }),
    make("div", { className: "body" }, make("div", {}, place, scale.box),
      make("div", {},
        make("p", { textContent: `${ahead.name} scores ${signed(ahead.logit)}, ${behind.name} ${signed(behind.logit)}: ${ahead.name} leads by ${Math.abs(gap).toFixed(2)}.` }),
        make("p", { textContent: `Red parts of the image speak more for ${first.name} than for ${second.name}, blue ones the other way round. All parts together make the lead.` }), words)));
  return {
    box,
    sum(mask) {
      const value = mask ? inside(map, mask) : null;
      words.dataset.value = value ?? "";
      words.textContent = value === null ? ""
        : `Inside ${context.region.marked ? "the marked region" : "the circle"}: ${signed(value)} of the difference of ${signed(gap)}, in favour of ${value >= 0 ? first.name : second.name}.`;
    },
  };
}
