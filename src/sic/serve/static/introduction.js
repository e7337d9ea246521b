// The start page: what the model knows, how good it is, and images to try.

import { byId, fail, make, percent, qualityWords } from "/static/elements.js";

/** At most `number` of these, evenly spread. */
function spread(all, number) {
  const length = Math.min(number, all.length);
  return Array.from({ length }, (_, i) => all[Math.floor(((i + 0.5) * all.length) / length)]);
}

/** What the model knows, how good it is, and at most `examples` images to begin with: `open(place)` looks at one. */
export function introduce(described, examples, open) {
  const { classes, supports, terms, tests } = described;
  const number = classes.length.toLocaleString("en");
  const named = classes.length <= 12 ? `${number} classes: ${classes.join(", ")}.`
    : `${number} classes, such as ${spread(classes, 12).join(", ")}.`;
  if (supports) {
    byId("knows").replaceChildren(`${named} It compares every image with `, make("a", { href: "/cases", textContent: `${supports} cases` }), ".");
  } else {
    byId("introduction").textContent = "The model gives every class a score. This page shows the best classes, and which parts of the image are responsible.";
    byId("knows").textContent = `${named} It is a ${described.method_title}: a score is a sum over the pixels of the image. It has no cases, so no training image explains an answer.`;
    byId("modes").querySelector('[data-mode="matches"]').hidden = true;
  }
  byId("quality").replaceChildren(...qualityWords(described));
  byId("terms").hidden = !terms;
  byId("terms-words").textContent = terms ?? "";
  byId("classes-words").textContent = (described.exclusive ? "The probabilities of all classes add up to 100\u00a0%" : "Each class is judged by itself: 50 % or more is a yes") +
    (described.floor ? `, and \u201cnone\u201d means no evidence at all (${percent(described.floor)}, where the bars start)` : "") +
    ". Choose a class to see its reasons; tick another one to compare.";
  if (!tests) return;
  const places = spread([...Array(tests.images).keys()], examples);
  const one = tests.kind.replace(/s$/, "");
  byId("examples").hidden = false;
  byId("examples-words").textContent = `From the ${tests.name}.`;
  byId("examples-list").replaceChildren(...places.map((place, i) => {
    const button = make("button", { type: "button", "aria-label": `Example ${i + 1}, a ${one}` }, make("img", { src: `/api/v1/tests/${place}/image`, alt: "" }));
    button.addEventListener("click", () => open(place).catch(fail));
    return make("li", {}, button);
  }));
}
