// The dialog that shows pictures as large as the window allows.

import { byId, make } from "/static/elements.js";

/** Show pictures, [caption, canvas or img, drawing over it or nothing] each, beside each other. */
export function enlarge(title, pictures) {
  const dialog = byId("large");
  byId("large-title").textContent = title;
  byId("large-close").onclick = () => dialog.close();
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };  // beside the pictures
  byId("large-body").replaceChildren(...pictures.map(([caption, picture, over]) => {
    const copy = make("canvas", { role: "img", "aria-label": caption, width: picture.naturalWidth ?? picture.width, height: picture.naturalHeight ?? picture.height });
    copy.getContext("2d").drawImage(picture, 0, 0);
    return make("figure", {}, make("div", { className: "over" }, copy, over ? over.cloneNode(true) : ""), make("figcaption", { className: "soft", textContent: caption }));
  }));
  dialog.showModal();
}
