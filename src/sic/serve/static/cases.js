// The page that shows all cases, how alike the classes are, and where images and cases lie.

import { get, getBytes, model } from "/static/api.js";
import { byId, fail, make, qualityWords, short } from "/static/elements.js";
import { enlarge } from "/static/enlarge.js";
import { drawPixels, drawSigned, pixels, prepare, scaleEnd } from "/static/maps.js";
import { openRelying } from "/static/tests.js";

const SVG = "http://www.w3.org/2000/svg";
const PAIRS = 10;
const MANY = 40;  // classes in the table
let described;
let mode = "signed";
const redraw = [];  // of the cases that have been in view

const openTest = (entry) => { location.href = `/?test=${entry.test}`; };

const images = (number) => `${number} ${number === 1 ? described.tests.kind.replace(/s$/, "") : described.tests.kind}`;

/** One case; its map is asked for when it comes into view. */
function card(one) {
  const picture = make("canvas", { "aria-hidden": "true" });
  const image = make("img", { src: `/api/v1/supports/${one.support}/image`, alt: `${one.name}: training image`, loading: "lazy" });
  const shown = one.shown
    ? make("button", { type: "button", className: "pair", title: "Enlarge", "aria-label": `Enlarge ${one.name}`, "data-support": one.support }, image, picture)
    : make("span", { className: "soft", textContent: "(its image was not kept)" });
  const relying = described.tests
    ? make("button", { type: "button", className: "relying", textContent: "Who relies on it?", "aria-label": `Which ${described.tests.kind} rely on ${one.name}?` })
    : null;
  relying?.addEventListener("click", () => openRelying(one, described.tests.kind, openTest));
  const box = make("li", {}, shown, make("strong", { textContent: one.name }), make("span", { className: "soft", textContent: short(one.source), title: one.source }), relying);
  if (one.shown) {
    const draw = async () => {
      if (mode === "colours") {
        drawPixels(picture, await pixels(`/api/v1/supports/${one.support}/picture`));
        return;
      }
      const ready = prepare(new Float32Array(await getBytes(`/api/v1/supports/${one.support}/map`)), [described.size, described.size]);
      drawSigned(picture, ready, scaleEnd(ready), await pixels(`/api/v1/supports/${one.support}/image`));
    };
    let drawn = null;
    redraw.push(() => (drawn ? draw() : null));
    const drawOnce = () => drawn ??= draw().catch((error) => { drawn = null; throw error; });
    new IntersectionObserver((entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      drawOnce().catch(fail);
    }).observe(box);
    shown.addEventListener("click", () => {
      const pictures = [[`Training image ${one.source}`, image], ["What the model remembers of it", picture]];
      Promise.all([drawOnce(), image.decode()]).then(() => enlarge(one.name, pictures)).catch(fail);
    });
  }
  return box;
}

function sheet(supports) {
  const classes = described.classes.map((name) => [name, supports.filter((one) => one.label === name)]);
  byId("sheet").replaceChildren(...classes.map(([name, own]) =>
    make("article", {}, make("h3", { textContent: name }), make("ul", {}, ...own.map(card)))));
}

// Light to dark blue: the same order for every kind of colour blindness, and in grey.
const shade = (share) => [247, 251, 255].map((light, c) => light + ([8, 48, 107][c] - light) * share);

/** Pairs of classes, the most alike first: [similarity, row, column]. */
function ranked(matrix) {
  const pairs = [];
  for (let r = 0; r < matrix.length; r++) {
    for (let c = r + 1; c < matrix.length; c++) pairs.push([Math.max(matrix[r][c] ?? -Infinity, matrix[c][r] ?? -Infinity), r, c]);
  }
  return pairs.sort((a, b) => b[0] - a[0]);
}

function alike(everything, names, rows) {
  const pairs = ranked(everything);
  byId("pairs").replaceChildren(...pairs.slice(0, PAIRS).map(([value, r, c]) => make("li", { textContent: `${names[r]} and ${names[c]}: ${value.toFixed(2)}` })));
  const picked = names.length <= MANY ? names.map((_, i) => i) : [...new Set(pairs.flatMap(([, r, c]) => [r, c]))].slice(0, MANY).sort((a, b) => a - b);
  const classes = picked.map((i) => names[i]), matrix = picked.map((r) => picked.map((c) => everything[r][c]));
  byId("alike-some").hidden = names.length <= MANY;
  byId("alike-some").textContent = `Shown: the ${MANY} of ${names.length} classes that are most alike.`;
  const values = matrix.flat().filter((value) => value !== null);
  const low = Math.min(0, ...values), high = Math.max(...values, low + 1e-9);
  byId("alike-low").textContent = low.toFixed(1);
  byId("alike-high").textContent = high.toFixed(1);
  const scale = byId("alike-scale"), context = scale.getContext("2d");
  scale.width = 100;
  scale.height = 1;
  for (let x = 0; x < 100; x++) {
    context.fillStyle = `rgb(${shade(x / 99).map(Math.round)})`;
    context.fillRect(x, 0, 1, 1);
  }
  const head = make("thead", {}, make("tr", {}, make("td", { textContent: rows }), ...classes.map((name) => make("th", { scope: "col", textContent: name, title: name }))));
  const body = make("tbody", {}, ...matrix.map((row, r) => make("tr", {}, make("th", { scope: "row", textContent: classes[r], title: classes[r] }),
    ...row.map((value, c) => {
      const cell = make("td", { textContent: value === null ? "–" : value.toFixed(1), className: r === c ? "own" : "" });
      if (value !== null) {
        const share = (value - low) / (high - low);
        cell.style.backgroundColor = `rgb(${shade(share).map(Math.round)})`;
        cell.style.color = share > 0.5 ? "#fff" : "#000";
      }
      return cell;
    }))));
  byId("alike").replaceChildren(head, body);
}

function plane(overview) {
  const points = overview.projection.points;
  const xs = points.map((point) => point.x), ys = points.map((point) => point.y);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const width = 640, height = 440, edge = 14;
  const place = (point) => [
    edge + ((point.x - left) / (Math.max(...xs) - left || 1)) * (width - 2 * edge),
    edge + ((point.y - top) / (Math.max(...ys) - top || 1)) * (height - 2 * edge),
  ];
  const svg = byId("plane");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const drawn = [...points.filter((point) => point.support === null), ...points.filter((point) => point.support !== null)];
  svg.replaceChildren(...drawn.map((point) => {
    const [x, y] = place(point), isCase = point.support !== null;
    const mark = document.createElementNS(SVG, isCase ? "path" : "circle");
    if (isCase) mark.setAttribute("d", `M${x} ${y - 7}l7 7l-7 7l-7 -7z`);
    else { mark.setAttribute("cx", x); mark.setAttribute("cy", y); mark.setAttribute("r", 4); }
    mark.setAttribute("class", isCase ? "case" : "image");
    mark.dataset.labels = JSON.stringify(point.labels);
    const title = document.createElementNS(SVG, "title");
    title.textContent = `${isCase ? `Case ${overview.supports[point.support].name}` : `${described.tests.kind.replace(/s$/, "")} of ${point.labels.map((label) => overview.classes[label]).join(", ") || "none of the classes"}`}: ${point.id}`;
    mark.append(title);
    return mark;
  }));
  const number = points.length - overview.supports.length;
  byId("plane-count").textContent = `${overview.supports.length} cases` + (number ? ` and ${images(number)}` : "") + `, placed by ${{ tsne: "t-SNE", pca: "principal components" }[overview.projection.method] ?? overview.projection.method}.`;
  highlight();
}

function highlight() {
  const label = Number(byId("plane-class").value);
  let cases = 0, others = 0;
  for (const mark of byId("plane").children) {
    const chosen = JSON.parse(mark.dataset.labels).includes(label);
    mark.classList.toggle("chosen", chosen);
    if (chosen) mark.classList.contains("case") ? cases++ : others++;
  }
  byId("plane-words").textContent = label < 0 ? "" : `${cases} cases${others ? ` and ${images(others)}` : ""} in red`;
}

function show(overview) {
  const kinds = [["supports", "cases with cases", overview.support_similarity]];
  if (overview.image_similarity) kinds.unshift(["images", `${described.tests.kind} with cases`, overview.image_similarity]);
  byId("alike-what").replaceChildren(...kinds.map(([value, text]) => make("option", { value, textContent: text })));
  const draw = () => {
    const [kind, , matrix] = kinds.find(([value]) => value === byId("alike-what").value);
    byId("alike-words").textContent = kind === "images"
      ? `Each row: ${described.tests.kind} of one class. Each column: how similar they are, on average, to the cases of a class. High numbers off the framed diagonal are classes that are easily confused.`
      : "How similar the cases of two classes are, on average. High numbers off the framed diagonal are classes that are easily confused.";
    alike(matrix, overview.classes, kind === "images" ? "images of ↓ like →" : "");
  };
  byId("alike-what").onchange = draw;
  draw();
  plane(overview);
}

for (const button of byId("modes").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    mode = button.dataset.mode;
    for (const other of byId("modes").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    for (const draw of redraw) draw()?.catch(fail);
  });
}
byId("plane-class").addEventListener("change", highlight);

try {
  described = await model();
  byId("quality").replaceChildren(...qualityWords(described));
  byId("plane-class").append(make("option", { value: "-1", textContent: "no class" }), ...described.classes.map((name, label) => make("option", { value: String(label), textContent: name })));
  sheet((await get("/api/v1/supports")).supports);
  for (;;) {
    const overview = await get("/api/v1/overview");
    show(overview);
    if (!described.tests || overview.images >= described.tests.images) break;
    let progress;
    do {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      progress = await get("/api/v1/tests?limit=1");
      byId("plane-count").textContent = `The model has looked at ${progress.looked_at} of ${progress.of} ${described.tests.kind} so far.`;
    } while (progress.looked_at < progress.of);
    if (overview.images === (await get("/api/v1/overview")).images) { show(overview); break; }
  }
} catch (error) {
  fail(error);
}
