// Small helpers for making parts of the page. Nothing here takes markup: names of files and classes stay text.

export const byId = (id) => document.getElementById(id);

/** An element with properties (and data-… or aria-… attributes) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A share in percent, rounded, but never to 0 %, 100 % or (from below) 50 %. */
export function percent(share) {
  if (share >= 0.495 && share < 0.5) return "just under 50\u00a0%";
  if (share > 0 && share < 0.005) return "under 1\u00a0%";
  if (share >= 0.995 && share < 1) return "over 99\u00a0%";
  return `${Math.round(100 * share)}\u00a0%`;
}

/** A sentence of the server whose numbers stay on one line with their percent signs. */
export const unbroken = (sentence) => sentence.replaceAll(" %", "\u00a0%");

export const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

export function fail(error) {
  const message = byId("message");
  message.textContent = error.message;
  message.hidden = false;
}

export const clearMessage = () => { byId("message").hidden = true; };

/** The last part of an image's id: what fits below a small picture. */
export const short = (id) => id.replace(/.*\//, "");

/** A name that may be broken after its underscores; as text it stays what it is. */
export const breakable = (name) => name.split(/(?<=_)/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));

/** What an image shows in truth; several answers may be right. */
export const truthWords = (names) => (names.length > 3 ? `any of ${names.length} classes` : names.join(", ") || "none of the classes");

/** How good the model is, as the server says it. */
export function qualityWords({ quality }) {
  if (!quality) return [make("p", { className: "soft", textContent: "No metrics are stored with this model." })];
  return [
    make("p", { textContent: `On ${quality.kind}:` }),
    make("ul", {}, ...quality.lines.map((line) => make("li", { textContent: unbroken(line) }))),
    quality.caution ? make("p", { className: "soft", textContent: quality.caution }) : "",
    quality.promise ? make("p", { textContent: quality.promise }) : "",
  ];
}

/** Whether the answer to a held-out image is right; without a similar case there is only a nearest class (several labels: none). */
function verdict({ answer, right, similar_case }) {
  if (answer === null) return null;
  if (!similar_case) {
    const nearest = answer.length ? `, nearest class ${right ? "right" : "wrong"}` : "";
    return make("span", { className: "soft", textContent: `no similar case${nearest}` });
  }
  return right ? make("span", { className: "right", textContent: "✓ right" })
    : make("span", { className: "wrong", textContent: `✗ answer: ${answer.join(", ")}` });
}

/** A button with a held-out image, its truth and the answer to it. */
export function testButton(entry, extra, chosen) {
  const picture = make("img", { src: `/api/v1/tests/${entry.test}/image`, alt: "", loading: "lazy" });
  const button = make("button", { type: "button", title: entry.name }, picture, make("span", { textContent: truthWords(entry.truth) }), verdict(entry), extra);
  button.addEventListener("click", () => chosen(entry));
  return make("li", {}, button);
}
