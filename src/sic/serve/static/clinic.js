// The page where the cases are changed: look, try, decide, take back.

import { edit, get, model, post } from "/static/api.js";
import { byId, clearMessage, fail, make, short, signed, truthWords } from "/static/elements.js";
import { openRelying } from "/static/tests.js";

const MOST_FLIPS = 48;
let described;
let clinic;

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const openTest = (entry) => { location.href = `/?test=${entry.test}`; };
const imageOf = (id) => `/api/v1/clinic/image?id=${encodeURIComponent(id)}`;
/** The figure that counts: accuracy, or mean average precision. */
const key = () => (described.task === "multi" ? "map" : "accuracy");
const figureName = () => (described.task === "multi" ? "mean average precision" : "accuracy if every image had to be answered");
const exact = (share) => `${(100 * share).toFixed(1)} %`;

async function refresh() {
  clinic = await get("/api/v1/clinic");
  byId("open").hidden = !(clinic.allowed && (clinic.state === "closed" || clinic.state === "failed"));
  byId("progress").hidden = clinic.state !== "opening";
  byId("progress").max = clinic.total || 1;
  byId("progress").value = clinic.done;
  byId("state").textContent = !clinic.allowed ? "On this server the cases cannot be changed from another machine."
    : {
      closed: "To measure the effect of a change, the model has to read all its training images once. This may take a while.",
      opening: `Reading the training images: ${clinic.done} of ${clinic.total || "…"}.`,
      open: "Changes are saved in the model at once and can be undone.",
      failed: clinic.error,
    }[clinic.state];
  byId("problems").replaceChildren(...clinic.problems.map((text) => make("li", { textContent: text })));
  const open = clinic.state === "open";
  byId("desk").hidden = !open;
  byId("past").hidden = !open || !clinic.history.length;
  if (open) show();
  return open;
}

function show() {
  const number = clinic.figures[key()];
  byId("now").replaceChildren("On ", String(clinic.figures.images), " validation images: ",
    make("strong", { id: "figure", textContent: exact(number), "data-value": number }), ` ${figureName()}.`);
  byId("undo").disabled = !clinic.can_undo;
  supports();
  byId("history").replaceChildren(...clinic.history.map((record) => {
    const words = {
      add: `${record.added.join(", ")} added`,
      drop: `${record.removed.join(", ")} taken out`,
      replace: `${record.removed.join(", ")} replaced by ${record.added.join(", ")}`,
      pin: "a case kept for good", unpin: "a case no longer kept for good",
      reselect: record.added.length ? `chosen again: ${record.added.join(", ")} instead of ${record.removed.join(", ")}` : "chosen again: the same cases",
    }[record.action];
    const change = `${exact(record.before[key()])} → ${exact(record.after[key()])}`;
    return make("li", { className: record.undone ? "undone" : "" }, `${record.label}: ${words} (${change}, ${record.when.replace("T", " ").slice(0, 16)})${record.undone ? ", taken back" : ""}`);
  }));
}

function supports() {
  const own = clinic.supports.filter((one) => one.label === byId("class").value);
  byId("supports").replaceChildren(...own.map((one) => {
    const action = (text, handler, properties = {}) => {
      const button = make("button", { type: "button", textContent: text, "aria-label": `${text}: ${one.name}`, ...properties });
      button.addEventListener("click", handler);
      return button;
    };
    const about = { support: one.index, source: one.source };
    const other = one.truth && !one.truth.includes(one.label) ? make("span", { className: "wrong", textContent: `Its label in the data is ${one.truth.join(", ")}.` }) : null;
    return make("li", { "data-support": one.index, "data-source": one.source },
      one.shown ? make("img", { src: `/api/v1/supports/${one.index}/image?${encodeURIComponent(one.source)}`, alt: one.name }) : make("span", { className: "soft", textContent: "Its image was not kept with the model." }),
      make("strong", { textContent: one.name + (one.pinned ? " (kept for good)" : "") }), make("span", { className: "soft", textContent: one.source }), other,
      make("span", { className: "soft", textContent: `adds ${signed(one.evidence)} to validation images of ${one.label} on average; the strongest case in ${one.strongest} answers` }),
      make("span", { className: "tools" },
        action("Take out …", () => preview({ action: "drop", ...about }, `Take out ${one.name} (${one.source})?`), { disabled: own.length === 1 }),
        action("Replace …", () => pick(one)),
        action(one.pinned ? "Do not keep" : "Keep for good", () => apply({ action: one.pinned ? "unpin" : "pin", ...about }, null)),
        described.tests ? action("Which images rely on it?", () => openRelying({ support: one.index, name: one.name }, described.tests.kind, openTest)) : null));
  }));
}

/** Before and after, and the images that get another answer. */
function outcomeBody(outcome, tense) {
  const before = outcome.before[key()], after = outcome.after[key()];
  const order = { to_wrong: 0, neither: 1, to_right: 2 };
  const flips = [...outcome.flips].sort((a, b) => order[a.direction] - order[b.direction]);
  const count = (direction) => flips.filter((flip) => flip.direction === direction).length;
  const answer = (names) => names.join(", ") || "no similar case";
  const [right, wrong] = key() === "map" ? ["More labels right", "More labels wrong"] : ["Turned right", "Turned wrong"];
  const list = flips.slice(0, MOST_FLIPS).map((flip) => make("li", {}, make("div", {},
    make("img", { src: imageOf(flip.id), alt: "", loading: "lazy" }),
    make("div", { textContent: `in truth ${truthWords(flip.truth)}` }),
    make("div", { className: { to_right: "right", to_wrong: "wrong", neither: "" }[flip.direction], textContent: `${{ to_right: "✓ ", to_wrong: "✗ ", neither: "" }[flip.direction]}${answer(flip.before)} → ${answer(flip.after)}` }))));
  return [
    make("div", { className: "figures" },
      make("span", {}, "before ", make("strong", { textContent: exact(before), "data-before": before })),
      make("span", {}, "after ", make("strong", { textContent: exact(after), "data-after": after })),
      make("span", { className: after < before ? "wrong" : "right", textContent: after === before ? "no change" : `${signed(100 * (after - before))} percentage points` })),
    make("p", { textContent: flips.length
      ? `${flips.length} of ${outcome.before.images} validation images ${tense} another answer. ${right}: ${count("to_right")}; ${wrong.toLowerCase()}: ${count("to_wrong")}; as right or wrong as before: ${count("neither")}.`
      : `No validation image ${tense === "get" ? "gets" : tense} another answer.` }),
    make("ul", { className: "thumbs" }, ...list),
  ];
}

function openOutcome(title, ...children) {
  byId("outcome").replaceChildren(make("h2", { id: "outcome-title", textContent: title }), ...children);
  byId("outcome").hidden = false;
  byId("outcome").focus();
  byId("outcome").scrollIntoView({ block: "nearest" });
}

async function preview(wanted, title) {
  clearMessage();
  try {
    const outcome = await post("/api/v1/clinic/preview", wanted);
    const yes = make("button", { type: "button", className: "primary", textContent: "Do it", id: "do" });
    const no = make("button", { type: "button", textContent: "Leave it as it is", id: "leave" });
    yes.addEventListener("click", () => apply(wanted, "Done"));
    no.addEventListener("click", () => { byId("outcome").hidden = true; });
    const changes = outcome.added.length || outcome.removed.length
      ? make("p", { textContent: [outcome.removed.length ? `Taken out: ${outcome.removed.join(", ")}.` : "", outcome.added.length ? `Put in: ${outcome.added.join(", ")}.` : ""].join(" ") })
      : make("p", { textContent: "The cases would stay the same." });
    openOutcome(title, changes, make("div", { className: "tools" }, yes, no), ...outcomeBody(outcome, "would get"));
  } catch (error) {
    fail(error);
  }
}

async function apply(wanted, title) {
  clearMessage();
  try {
    const outcome = await edit("/api/v1/clinic/apply", wanted);
    await refresh();
    if (title) openOutcome(title, ...outcomeBody(outcome, "get"));
  } catch (error) {
    fail(error);
  }
}

async function undo() {
  clearMessage();
  try {
    const outcome = await edit("/api/v1/clinic/undo", {});
    await refresh();
    openOutcome("The last change was taken back", ...outcomeBody(outcome, "get"));
  } catch (error) {
    fail(error);
  }
}

/** Choose a training image that takes the place of a case. */
async function pick(one) {
  clearMessage();
  try {
    const found = await get(`/api/v1/clinic/candidates?class=${encodeURIComponent(one.label)}&near=${one.index}`);
    byId("pick-title").textContent = `Which image should replace ${one.name} (${one.source})?`;
    byId("pick-words").textContent = `Training images that show only ${one.label}, the most similar to this case first` +
      (found.total > found.images.length ? ` (the first ${found.images.length} of ${found.total}).` : ".");
    byId("pick-list").replaceChildren(...found.images.filter((image) => !image.support).map((image) => {
      const button = make("button", { type: "button", "data-id": image.id }, make("img", { src: imageOf(image.id), alt: "", loading: "lazy" }), make("span", { textContent: short(image.id) }));
      button.addEventListener("click", () => {
        byId("pick").close();
        preview({ action: "replace", support: one.index, source: one.source, image: image.id }, `Replace ${one.name} (${one.source}) by ${image.id}?`);
      });
      return make("li", {}, button);
    }));
    byId("pick").showModal();
  } catch (error) {
    fail(error);
  }
}

byId("open").addEventListener("click", async () => {
  byId("open").hidden = true;
  clearMessage();
  try {
    await post("/api/v1/clinic/open", {});
    await watch();
  } catch (error) {
    byId("open").hidden = false;
    fail(error);
  }
});
byId("class").addEventListener("change", () => { byId("outcome").hidden = true; supports(); });
byId("reselect").addEventListener("click", () => preview({ action: "reselect", label: byId("class").value }, `Choose the cases of ${byId("class").value} again?`));
byId("undo").addEventListener("click", undo);
byId("pick-close").addEventListener("click", () => byId("pick").close());

async function watch() {
  while (!(await refresh()) && clinic.state === "opening") await wait(700);
}

try {
  described = await model();
  byId("class").append(...described.classes.map((name) => make("option", { value: name, textContent: name })));
  await watch();
} catch (error) {
  fail(error);
}
