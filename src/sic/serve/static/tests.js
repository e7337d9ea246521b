// Browsing the held-out images (test images, or validation images), and those that rely on a case.

import { get } from "/static/api.js";
import { byId, fail, make, signed, testButton } from "/static/elements.js";

const PAGE = 24;
const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export function startTests(tests, chosen) {
  let offset = 0, asked = 0;
  byId("tests").hidden = false;
  byId("tests-name").textContent = tests.name;
  byId("tests-number").textContent = tests.images;
  byId("tests-caution").textContent = tests.caution ?? "";

  async function list() {
    const mine = ++asked;
    try {
      for (;;) {
        const show = byId("tests-show").value;
        const page = await get(`/api/v1/tests?offset=${offset}&limit=${PAGE}&show=${show}`);
        if (mine !== asked) return;
        byId("tests-list").replaceChildren(...page.images.map((entry) => testButton(entry, null, chosen)));
        const last = Math.min(offset + PAGE, page.matching);
        const looked = page.looked_at < page.of ? ` ${page.looked_at} of ${page.of} are classified so far.` : "";
        byId("tests-place").textContent = (page.matching ? `${offset + 1} to ${last} of ${page.matching}.` : "None.") + looked;
        byId("tests-back").disabled = offset === 0;
        byId("tests-on").disabled = last >= page.matching;
        if (page.looked_at === page.of || !byId("tests").open) return;
        await wait(1000);
        if (mine !== asked || byId("tests-list").contains(document.activeElement)) return;
      }
    } catch (error) {
      fail(error);
    }
  }

  byId("tests").addEventListener("toggle", () => { if (byId("tests").open) list(); });
  byId("tests-show").addEventListener("change", () => { offset = 0; list(); });
  byId("tests-back").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); list(); });
  byId("tests-on").addEventListener("click", () => { offset += PAGE; list(); });
}

let opened = 0;  // number of the latest dialog: answers to older ones are dropped

/** The dialog "which images rely on this?" for a support { support, name }; `kind`: test images, or validation images. */
export async function openRelying(one, kind, chosen) {
  const mine = ++opened;
  const stale = () => mine !== opened || !dialog.open;
  const dialog = byId("relying"), body = byId("relying-body");
  byId("relying-title").textContent = `Which ${kind} rely on ${one.name}?`;
  byId("relying-close").onclick = () => dialog.close();
  body.replaceChildren(make("p", { textContent: "Looking …", role: "status" }));
  dialog.showModal();
  try {
    for (;;) {
      const found = await get(`/api/v1/supports/${one.support}/relying`);
      if (stale()) return;
      const far = found.looked_at < found.of ? `${found.looked_at} of ${found.of} ${kind} are classified so far. ` : "";
      const images = (number) => (number === 1 ? `1 ${kind.replace(/s$/, "")} is` : `${number} ${kind} are`);
      const summary = `${far}${images(found.answers)} answered with ${found.label}, the class of this case. ` +
        (found.needed ? `${found.needed} of them would get another answer without it.` : "None of them depends on this case alone.");
      const list = found.images.map((entry) => testButton(entry,
        make("span", {}, `adds ${signed(entry.evidence)}`, ...(entry.needed ? [make("strong", { textContent: ", needed" })] : [])),
        (picked) => { dialog.close(); chosen(picked); }));
      body.replaceChildren(make("p", { textContent: summary, role: "status" }), make("ul", { className: "thumbs" }, ...list));
      if (found.looked_at === found.of) return;
      await wait(1000);
      if (stale()) return;
    }
  } catch (error) {
    if (stale()) return;
    dialog.close();
    fail(error);
  }
}
