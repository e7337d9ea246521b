// The reasons for one class: map, sum, cases.

import { getBytes } from "/static/api.js";
import { make, percent, signed, unbroken } from "/static/elements.js";
import { enlarge } from "/static/enlarge.js";
import { outlines, regionList, regionWords } from "/static/matches.js";
import { drawPixels, drawScale, drawSigned, floats, inside, pixels, prepare, scaleEnd } from "/static/maps.js";
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

/** A colour scale; its ends are filled in when a map is drawn. */
export function legend(meaning = "blue lowers the score, red raises it") {
  const scale = make("canvas", { "aria-hidden": "true" });
  drawScale(scale);
  const low = make("span", { className: "number" }), high = make("span", { className: "number" });
  const words = make("span", { className: "words", textContent: `${meaning} (per pixel; values beyond the ends are clipped)` });
  return { box: make("div", { className: "legend" }, low, scale, high, words), low, high };
}

/** The sum behind the score as bars; the server names the steps. */
function steps(explained, { bias }) {
  const threshold = explained.limit;
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
function caseCard(one, name, { size, relying, kind }, larger) {
  let latest;
  const share = make("span", {});
  const bar = make("div", { className: "share-bar", "aria-hidden": "true", hidden: true }, share);
  const from = make("span", { className: "region number" });
  const picture = make("canvas", { role: "img", "aria-label": `What the model remembers of ${one.name}` });
  let lines = null, list = null;
  const image = make("img", { src: `/api/v1/supports/${one.support}/image`, alt: `${one.name}: training image ${one.source}` });
  const shown = one.shown
    ? make("button", { type: "button", className: "pair", title: "Enlarge", "aria-label": `Enlarge ${one.name}` }, image, picture)
    : make("p", { className: "missing", textContent: "Its image was not kept with the model." });
  const matched = () => [`${one.name} adds ${signed(one.evidence)}`, picture, lines, list];
  if (one.shown) {
    shown.addEventListener("click", () => enlarge(`${one.name} adds ${signed(one.evidence)}`, latest === "matches"
      ? [larger(), matched()]
      : [[`Training image ${one.source}`, image], ["What the model remembers of it", picture]], name));
  }
  const button = relying
    ? make("button", { type: "button", className: "relying", textContent: `Which ${kind} rely on this?`, "aria-label": `Which ${kind} rely on ${one.name}, ${one.source}?` })
    : null;
  button?.addEventListener("click", () => relying(one));
  const frame = make("div", { className: "over" }, shown);
  const alike = typeof one.likeness === "number" ? make("span", { className: "number", textContent: ` (${percent(one.likeness)} alike)`, "data-likeness": one.likeness }) : "";
  const box = make("li", { "data-support": one.support }, frame,
    make("span", {}, make("strong", {}, `${one.name} adds `, make("span", { className: "number", textContent: signed(one.evidence), "data-evidence": one.evidence })), alike),
    make("span", { className: "soft", textContent: one.source, title: one.source }), bar, from, button);

  return {
    box,
    /** Its picture with the regions that match, to enlarge; null without a picture. */
    matched: () => (one.shown ? matched() : null),
    async draw(mode) {
      latest = mode;  // another one may be chosen while this one is on its way
      if (!one.shown) return;
      lines?.remove();
      list?.remove();
      lines = list = null;
      shown.classList.toggle("one", mode === "matches");  // the outlines say what counts, so the image is not needed twice
      picture.setAttribute("aria-label", mode === "matches" ? `${one.name} with the regions that match the image` : `What the model remembers of ${one.name}`);
      if (mode === "matches") {
        one.image ??= await pixels(`/api/v1/supports/${one.support}/image`);
        if (mode !== latest) return;
        drawPixels(picture, one.image);
        if (!one.regions) return;  // on their way
        frame.append(lines = outlines(one.regions, "support", size));  // over the button, so that regions can be chosen
        bar.before(list = regionList(one.regions));
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

/** What the numbers of the cases are made of. */
function strength(cases) {
  const known = cases.find((one) => typeof one.strength === "number");
  if (!known) return [];
  return [make("p", { className: "soft", "data-strength": known.strength, textContent: `What a case adds is strength times likeness. The strength of this image is ${known.strength.toFixed(2)}, the same for all cases; its likeness to each case is in brackets.` })];
}

const part = (value, whole) => (Math.abs(whole) < 0.005 ? "hardly any" : percent(Math.max(0, value / whole)));

/** A list of the other classes, to choose the one to compare with; none in a model without cases. */
function versus(explained, { others, compared, compare }) {
  if (!explained.cases.length) return null;
  const none = make("option", { value: "", textContent: "no other class" });
  const select = make("select", { "data-versus": explained.name }, none, ...others.filter(([name]) => name !== explained.name)
    .map(([name, probability]) => make("option", { value: name, textContent: `${name} (${percent(probability)})` })));
  select.value = compared(explained.name) ?? "";
  select.addEventListener("change", () => compare(explained.name, select.value || null));
  return make("label", { className: "versus" }, "Compare with ", select);
}

/** The panel of a class; `context.relying` opens the list of images that rely on a case, if there are any. */
export function panel(explained, context) {
  const { region, image, touch, signal } = context;
  const { box: place, canvas, under } = stage(region, "", touch, signal);
  const { box: beside, canvas: original } = stage(region, "The image as the model sees it", touch, signal, true);
  drawPixels(under, image);
  drawPixels(original, image);
  const scale = legend();
  const caption = make("span", {});
  const larger = make("button", { type: "button", className: "enlarge", textContent: "Enlarge", "aria-label": `Enlarge the pictures of ${explained.name}` });
  const drawn = () => [caption.textContent, canvas, lines, list];
  larger.addEventListener("click", () => enlarge(`${explained.name}: ${percent(explained.probability)}`, lines
    ? [drawn(), ...cases.map((one) => one.matched()).filter(Boolean)]
    : [drawn(), ["The image as the model sees it", original]], explained.name));
  const whole = make("p", { className: "region" });
  const cases = explained.cases.map((one) => caseCard(one, explained.name, context, drawn));
  const matched = make("div", {}), told = make("p", { className: "told" });
  const title = make("h3", {});
  let lines = null, list = null;
  const box = make("article", { className: "panel", "aria-label": explained.name, "data-class": explained.name, "data-place": explained.name },
    make("div", { className: "tools" }, make("h2", { textContent: `Why ${explained.name}: ${percent(explained.probability)}` }), versus(explained, context)),
    make("div", { className: "pictures" },
      make("figure", {}, place, make("figcaption", {}, caption, larger)),
      make("figure", { className: "original" }, beside, make("figcaption", { textContent: "The image as the model sees it" }))),
    scale.box, matched, whole,
    make("h3", { textContent: "The score is a sum" }), ...steps(explained, context).filter(Boolean),
    ...(cases.length ? [
      title,
      ...strength(explained.cases),
      make("ul", { className: "cases" }, ...cases.map((one) => one.box)),
    ] : []));

  /** The same numbers in the image and in the cases, and what each region adds to the score. */
  function showMatches() {
    if (!explained.regions) {
      matched.replaceChildren(make("p", { className: "soft", textContent: "Finding the regions that match …" }));
      return;
    }
    place.append(lines = outlines(explained.regions, "image", context.size));
    list = regionList(explained.regions);
    matched.replaceChildren(explained.words ? make("p", { textContent: unbroken(explained.words) }) : "", list, told);
    tell(null);
  }

  /** What the region that is lit adds, and to which cases it is alike. */
  function tell(number) {
    const lit = explained.regions?.find((region) => region.number === number);
    const partners = explained.cases.flatMap((one) => (one.regions ?? []).filter((region) => region.number === number).map((region) => `${one.name} ${signed(region.evidence)}`));
    told.replaceChildren(...(lit ? [`${regionWords(lit)} for ${explained.name}: ${partners.join(", ")}.`] : [
      "Regions with the same number look alike to the model. Beside a number is what the region adds to the score, with its share of the evidence. ",
      make("span", { className: "fine", textContent: "Point at a region, or choose it, to see its partners; Esc clears." }),
      make("span", { className: "coarse", textContent: "Tap a region to see its partners." }),
    ]));
  }
  box.addEventListener("region", (event) => tell(event.detail));

  return {
    box,
    explained,
    /** How much of the evidence covers the image, from 0 to 1. */
    blend(share) { canvas.style.opacity = share; },
    /** Say why there are no regions. */
    refuse(sentence) { matched.replaceChildren(make("p", { className: "error", textContent: sentence })); },
    draw(mode, limit) {
      caption.textContent = { signed: `Evidence for (red) and against (blue) ${explained.name}`, colours: "What the model recognised", matches: "Regions that match the cases" }[mode];
      lines?.remove();
      lines = list = null;
      matched.replaceChildren();
      title.textContent = `The cases: training images of this class, and ${mode === "matches" ? "their regions that match the image" : "what the model remembers of them"}`;
      place.setAttribute("aria-label", mode === "matches" ? `The image, with the regions that match the cases of ${explained.name}` : `The image, with the evidence for and against ${explained.name}`);
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
