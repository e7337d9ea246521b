// The page that shows one image, its answer and the reasons.

import { explain, get, matches, model, share } from "/static/api.js";
import { difference } from "/static/difference.js";
import { breakable, byId, clearMessage, fail, make, percent, truthWords } from "/static/elements.js";
import { introduce, offerCases, offerTests, VISIBLE } from "/static/introduction.js";
import { pixels, scaleEnd } from "/static/maps.js";
import { forget, light, linkRegions } from "/static/matches.js";
import { decode, panel } from "/static/panel.js";
import { Region } from "/static/region.js";
import { openRelying, startTests } from "/static/tests.js";

const narrow = matchMedia("(max-width: 50rem)").matches;
const MOST = 4;  // classes explained at once
const MANY = 60;  // classes from which on they are found by name, not listed

let described;
let few = narrow ? 3 : 8;  // classes listed before "more"
let current = null;  // { source, answer, image, region, classes: Map, shown: [names], panels, between, matched: Map, matching: Set, drawn }
let mode = "signed";
let asked = 0;  // number of the latest request: answers to older ones are dropped
let everyClass = false;

const touch = () => byId("paint").getAttribute("aria-pressed") === "true";

/** Look at an image: { file }, { test, truth } or { support }. */
async function look(source) {
  const mine = ++asked;
  clearMessage();
  byId("busy").hidden = false;
  try {
    const answer = await explain(source, []);
    if (mine !== asked) return;
    const image = await pixels(`data:image/png;base64,${answer.image}`);
    const classes = new Map();
    for (const found of answer.classes) classes.set(found.name, await decode(found, answer.size));
    if (mine !== asked) return;
    const region = new Region(answer.size);
    region.addEventListener("change", sums);
    current = { source, answer, image, region, classes, shown: [...classes.keys()].slice(0, MOST), panels: [], between: null, matched: new Map(), matching: new Set(), drawn: null };
    everyClass = false;
    byId("radius").max = Math.round(answer.size[1] / 2);
    byId("radius").value = region.radius;
    byId("result").hidden = false;
    document.body.classList.add("answered");
    tell();
    await show();
    byId("result").focus({ preventScroll: false });
    byId("result").scrollIntoView({ block: "start" });
  } catch (error) {
    fail(error);
  } finally {
    if (mine === asked) byId("busy").hidden = true;
  }
}

/** The answer in words. */
function tell() {
  const { answer, source } = current;
  const nearest = `${answer.nearest} (${percent(answer.probabilities[answer.nearest])})`;
  byId("answer").textContent = answer.similar_case
    ? `Answer: ${answer.labels.map((name) => `${name} (${percent(answer.probabilities[name])})`).join(" and ")}`
    : described.by_similarity ? "Answer: no similar case" : `Best guess: ${nearest}`;
  byId("unlike").hidden = answer.similar_case;
  byId("unlike").textContent = answer.similar_case ? ""
    : !described.by_similarity ? "The model is not sure: no class reaches 50\u00a0%."
    : `This image does not resemble any case closely enough: no class reaches 50 %. The nearest is ${nearest}; do not treat it as an answer.`;
  const others = Object.entries(answer.probabilities).filter(([name, value]) => value >= 0.5 && !answer.labels.includes(name)).map(([name]) => name);
  byId("others").hidden = !others.length;
  byId("others").textContent = `The model is undecided: ${others.length > 3 ? `${others.length} other classes` : others.join(" and ")} would also be a yes.`;
  byId("promise").hidden = !described.promise;
  byId("promise").textContent = answer.promised ? "The promise of the model covers this answer." : "The promise of the model does not cover this answer.";
  byId("truth").hidden = !source.truth && source.support === undefined;
  if (source.support !== undefined) {
    byId("truth").textContent = `Training image ${answer.name}: it is itself a case of ${answer.truth}, so it is compared with itself, too.`;
  } else if (source.truth) {
    const kind = described.tests.kind.replace(/s$/, "");
    byId("truth").textContent = `${kind[0].toUpperCase()}${kind.slice(1)} ${answer.name}. True class: ${truthWords(source.truth)}.${answer.similar_case ? ` The answer is ${answer.right ? "right" : "wrong"}.` : ""}`;
  }
  byId("text").textContent = answer.text;
}

function listClasses() {
  const { answer, shown } = current;
  const ranked = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  const visible = everyClass ? ranked : ranked.filter(([name], i) => i < few || shown.includes(name));
  byId("classes").replaceChildren(...visible.map(([name, probability]) => {
    const box = make("input", { type: "checkbox", checked: shown.includes(name), "aria-label": `Show ${name} beside the others`, "data-tick": name });
    box.addEventListener("change", () => choose(box.checked ? [...shown, name].slice(-MOST) : shown.filter((other) => other !== name), `[data-tick="${CSS.escape(name)}"]`));
    const button = make("button", { type: "button", "data-name": name, "aria-pressed": String(shown.includes(name)) }, ...breakable(name));
    button.addEventListener("click", () => choose([name], `[data-name="${CSS.escape(name)}"]`));
    const fill = make("span", { className: probability >= 0.5 ? "fill yes" : "fill" });
    const from = Math.min(described.floor, probability);  // no evidence, no bar
    const none = described.floor >= VISIBLE && probability - described.floor < 0.005;
    fill.style.left = `${100 * from}%`;
    fill.style.width = `${100 * (probability - from)}%`;
    const floor = make("span", { className: "floor" });
    floor.style.width = `${100 * described.floor}%`;
    return make("li", {}, box, button, make("span", { className: "track", "aria-hidden": "true" }, floor, fill, make("span", { className: "half" })),
      make("span", { className: none ? "number none" : "number", textContent: none ? "none" : percent(probability), "data-probability": probability }));
  }));
  byId("more").hidden = ranked.length <= visible.length || ranked.length > MANY;
  byId("more").textContent = `Show all ${ranked.length} classes`;
}

/** Show other classes; those not yet explained are asked for. */
async function choose(names, focus) {
  if (!names.length) names = current.shown.slice(0, 1);
  const mine = ++asked, here = current;
  const missing = names.filter((name) => !here.classes.has(name));
  clearMessage();
  try {
    if (missing.length) {
      byId("busy").hidden = false;
      const more = await explain(here.source, missing);
      for (const found of more.classes) here.classes.set(found.name, await decode(found, more.size));
    }
    if (mine !== asked) return;
    here.shown = names;
    await show();
    document.querySelector(focus)?.focus();
  } catch (error) {
    fail(error);
  } finally {
    if (mine === asked) byId("busy").hidden = true;
  }
}

async function show() {
  listClasses();
  const { answer, classes, shown, region, image } = current;
  current.gone?.abort();  // what was shown before need not follow the pointer any more
  current.gone = new AbortController();
  const context = {
    signal: current.gone.signal, region, image, touch, size: answer.size, bias: answer.bias,
    relying: described.tests ? relying : null, kind: described.tests?.kind,
    others: Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]),
    compared: (name) => (shown.length === 2 ? shown.find((other) => other !== name) : null),
    compare: (name, other) => choose(other ? [name, other] : [name], `[data-versus="${CSS.escape(name)}"]`),
  };
  current.panels = shown.map((name) => panel(classes.get(name), context));
  byId("panels").replaceChildren(...current.panels.map((one) => one.box));
  byId("panels").classList.toggle("two", shown.length > 1);
  beside();
  current.between = shown.length === 2 ? difference(...ranked(current), context) : null;
  byId("difference").hidden = !current.between;
  byId("difference").replaceChildren(...(current.between ? [current.between.box] : []));
  await draw();
  sums();
}

/** The classes shown, the one that scores most first. */
const ranked = ({ shown, classes }) => shown.map((name) => classes.get(name)).sort((one, other) => other.logit - one.logit);

/** Classes beside each other share one colour scale. */
async function draw() {
  const here = current, { shown, classes } = here, matching = mode === "matches";
  const wanted = described.supports && (matching || here.between);
  const known = here.matched.get(JSON.stringify(shown));
  for (const name of shown) join(classes.get(name), known?.classes.find((found) => found.name === name));
  const drawn = JSON.stringify([mode, shown]);
  if (here.drawn !== drawn) forget();
  here.drawn = drawn;
  here.region.rest(matching);
  for (const id of ["measure", "how", "blending"]) byId(id).hidden = matching;  // the image itself is shown, and regions are chosen
  byId("panels").classList.toggle("matching", matching);
  blend();
  const end = scaleEnd(...here.panels.map((one) => one.explained.ready));
  if (described.supports) here.between?.draw(known?.contrast ?? null);
  await Promise.all(here.panels.map((one) => one.draw(mode, end)));
  if (here !== current || here.shown !== shown) return;  // others were chosen meanwhile
  light();
  if (wanted && !known) match(here, shown).catch(fail);
}

/** Add the regions that match to a class and its cases, or take them away. */
function join(explained, found) {
  explained.regions = found ? found.regions ?? [] : null;
  explained.words = found?.words;
  explained.cases.forEach((one, slot) => { one.regions = found ? found.cases[slot].regions ?? [] : null; });
}

/** Ask for the regions that match, of all classes shown, so that they share their numbers. */
async function match(here, shown) {
  const key = JSON.stringify(shown), [first, second] = ranked(here).map((one) => one.name);
  if (here.matching.has(key) || here.matched.has(key)) return;
  here.matching.add(key);
  const still = () => here === current && JSON.stringify(here.shown) === key;
  try {
    here.matched.set(key, await (shown.length === 2 ? matches(here.source, [first], second) : matches(here.source, shown)));
  } catch (error) {
    if (still()) for (const one of [...(mode === "matches" ? here.panels : []), here.between]) one?.refuse(error.message);
    return;
  } finally {
    here.matching.delete(key);
  }
  if (still()) await draw();
}

const blend = () => current?.panels.forEach((one) => one.blend(byId("blend").value / 100));

/** The image stands beside the evidence if there is room: not with two classes, which are compared instead. */
function beside() {
  const two = current?.shown.length > 1;
  byId("side").disabled = two;
  byId("panels").classList.toggle("side", !two && byId("side").getAttribute("aria-pressed") === "true");
}

let speaking;
function sums() {
  if (!current) return;
  const mask = current.region.mask;
  const words = current.panels.map((one) => one.sum(mask)).join(" ");
  current.between?.sum(mask);
  byId("clear").disabled = !current.region.marked;
  byId("radius").value = current.region.radius;
  clearTimeout(speaking);  // screen readers get the last word only
  speaking = setTimeout(() => { byId("region-words").textContent = words; }, 500);
}

const relying = (one) => openRelying(one, described.tests.kind, (entry) => look({ test: entry.test, truth: entry.truth }));

/** Files from a dialog, a drop or the clipboard. */
function take(files) {
  const images = [...files].filter((file) => file.size);
  if (!images.length) return;
  if (images.length > 1) {
    byId("queue").replaceChildren(...images.map((file) => {
      const button = make("button", { type: "button", textContent: file.name });
      button.addEventListener("click", () => look({ file }));
      return make("li", {}, button);
    }));
  } else byId("queue").replaceChildren();
  look({ file: images[0] });
}

async function save() {
  try {
    const { source, shown } = current, [first, second] = ranked(current).map((one) => one.name);
    const page = await (described.supports && shown.length === 2 ? share(source, [first], second) : share(source, shown));
    const link = make("a", { href: URL.createObjectURL(page), download: `${current.answer.name.replace(/.*\//, "").replace(/\.\w+$/, "")}-explained.html` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  } catch (error) {
    fail(error);
  }
}

byId("file").addEventListener("change", (event) => { take(event.target.files); event.target.value = ""; });
document.addEventListener("paste", (event) => take(event.clipboardData.files));
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") take(event.dataTransfer.files);
  });
}
for (const button of byId("modes").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    mode = button.dataset.mode;
    for (const other of byId("modes").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    draw().catch(fail);
  });
}
byId("radius").addEventListener("input", (event) => current?.region.resize(Number(event.target.value)));
byId("clear").addEventListener("click", () => current?.region.clear());
byId("share").addEventListener("click", save);
byId("blend").addEventListener("input", blend);
byId("side").addEventListener("click", (event) => {
  const pressed = event.currentTarget.getAttribute("aria-pressed") === "true";
  event.currentTarget.setAttribute("aria-pressed", String(!pressed));
  beside();
});
byId("paint").addEventListener("click", (event) => {
  const on = !touch();
  event.currentTarget.setAttribute("aria-pressed", String(on));
  for (const one of document.querySelectorAll(".stage")) one.classList.toggle("painting", on);
});
byId("more").addEventListener("click", () => { everyClass = true; listClasses(); });
byId("other").addEventListener("change", (event) => {
  const name = described.classes.find((one) => one.toLowerCase() === event.target.value.trim().toLowerCase());
  if (!name) return;
  event.target.value = "";
  choose([name], `[data-name="${CSS.escape(name)}"]`);
});

/** Look at a held-out image by its number. */
async function open(place) {
  const [entry] = (await get(`/api/v1/tests?offset=${place}&limit=1`)).images;
  if (entry) await look({ test: entry.test, truth: entry.truth });
}

/** The examples come without the rest of the page if they cannot be listed. */
async function offerSupports() {
  const { supports } = await get("/api/v1/supports");
  offerCases(supports, narrow ? 3 : 6, ({ support }) => look({ support }));
}

linkRegions();
try {
  described = await model();
  introduce(described);
  if (described.tests) offerTests(described.tests, narrow ? 3 : 6, open);
  else if (described.supports) offerSupports().catch(fail);
  if (!described.supports) few = 5;
  const { classes } = described;
  byId("other").hidden = classes.length <= MANY;
  byId("names").replaceChildren(...(classes.length > MANY ? classes : []).map((name) => make("option", { value: name })));
  for (const id of ["measure", "bars"]) byId(id).open = !narrow;
  if (described.tests) startTests(described.tests, (entry) => look({ test: entry.test, truth: entry.truth }));
  const wanted = new URLSearchParams(location.search).get("test");
  if (wanted !== null && /^\d+$/.test(wanted)) await open(wanted);
} catch (error) {
  fail(error);
}
