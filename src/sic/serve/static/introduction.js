// The start page: what the model knows, how good it is, and images to try.

import { byId, fail, make, percent, qualityWords } from "/static/elements.js";

export const VISIBLE = 0.01;  // a smaller probability is shown as "under 1 %", whether there is evidence or not

/** At most `number` of these, evenly spread. */
function spread(all, number) {
  const length = Math.min(number, all.length);
  return Array.from({ length }, (_, i) => all[Math.floor(((i + 0.5) * all.length) / length)]);
}

/** Buttons with pictures to begin with; `entries`: the address of the picture, what it is, and how to look at it. */
function offer(words, entries) {
  byId("examples").hidden = false;
  byId("examples-words").textContent = words;
  byId("examples-list").replaceChildren(...entries.map(({ src, label, open }) => {
    const button = make("button", { type: "button", "aria-label": label }, make("img", { src, alt: "" }));
    button.addEventListener("click", () => open().catch(fail));
    return make("li", {}, button);
  }));
}

/** At most `number` held-out images as examples: `open(place)` looks at one. */
export function offerTests(tests, number, open) {
  const one = tests.kind.replace(/s$/, "");
  const places = spread([...Array(tests.images).keys()], number);
  offer(`From the ${tests.name}.`, places.map((place, i) => ({
    src: `/api/v1/tests/${place}/image`, label: `Example ${i + 1}, a ${one}`, open: () => open(place),
  })));
}

/** At most `number` cases as examples, where there are no held-out images: `open(entry)` looks at one. */
export function offerCases(cases, number, open) {
  const shown = spread(cases.filter((one) => one.shown), number);
  if (!shown.length) return;
  offer("Cases of the model. It was trained on these images, so expect less of others.", shown.map((one) => ({
    src: `/api/v1/supports/${one.support}/image`, label: `Example: ${one.name}, a training image`, open: () => open(one),
  })));
}

/** What the model knows, and how good it is. */
export function introduce(described) {
  const { classes, supports, terms } = described;
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
    (described.floor >= VISIBLE ? `, and \u201cnone\u201d means no evidence at all (${percent(described.floor)}, where the bars start)` : "") +
    ". Choose a class to see its reasons; tick another one to compare.";
}
