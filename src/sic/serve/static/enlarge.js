// The dialog that shows pictures as large as the window allows.

import { byId, make } from "/static/elements.js";
import { light } from "/static/matches.js";

/** Show pictures beside each other: [caption, canvas or img, drawing over it or nothing, list below it or nothing] each.
 * `place`: the class whose regions they show. */
export function enlarge(title, pictures, place = "") {
  const dialog = byId("large"), body = byId("large-body");
  byId("large-title").textContent = title;
  byId("large-close").onclick = () => dialog.close();
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };  // beside the pictures
  body.dataset.place = place;
  body.replaceChildren(...pictures.map(([caption, picture, over, list]) => {
    const copy = make("canvas", { role: "img", "aria-label": caption, width: picture.naturalWidth ?? picture.width, height: picture.naturalHeight ?? picture.height });
    copy.getContext("2d").drawImage(picture, 0, 0);
    return make("figure", {}, make("div", { className: "over" }, copy, over?.cloneNode(true) ?? ""), make("figcaption", { className: "soft", textContent: caption }), list?.cloneNode(true) ?? "");
  }));
  dialog.showModal();
  light();
}
