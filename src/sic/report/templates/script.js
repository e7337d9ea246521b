"use strict";
// Points of the map: a thumbnail for the one that is pointed at or focused.
const plane = document.getElementById("plane"), tip = document.getElementById("tip");
const shot = tip.querySelector(".shot");
function show(mark) {
  if (!mark) { tip.hidden = true; return; }
  const size = 88, columns = Number(shot.dataset.columns), cell = Number(mark.dataset.t);
  shot.style.backgroundSize = columns * size + "px auto";
  shot.style.backgroundPosition = -(cell % columns) * size + "px " + -Math.floor(cell / columns) * size + "px";
  shot.hidden = mark.dataset.none === "1";
  tip.querySelector("strong").textContent = mark.dataset.n;
  tip.querySelector("small").textContent = mark.dataset.i;
  tip.hidden = false;
  const frame = plane.getBoundingClientRect(), box = mark.getBoundingClientRect();
  const x = box.right - frame.left + 8, y = box.top - frame.top - 20;
  tip.style.left = Math.max(0, x + tip.offsetWidth > frame.width ? box.left - frame.left - tip.offsetWidth - 8 : x) + "px";
  tip.style.top = Math.max(0, Math.min(y, frame.height - tip.offsetHeight)) + "px";
}
for (const kind of ["pointerover", "focusin"]) plane.addEventListener(kind, (e) => show(e.target.closest("[data-t]")));
for (const kind of ["pointerleave", "focusout"]) plane.addEventListener(kind, () => show(null));
document.getElementById("highlight").addEventListener("change", (e) => {
  for (const mark of plane.querySelectorAll("[data-c]"))
    mark.classList.toggle("dim", e.target.value !== "" && !mark.dataset.c.split(" ").includes(e.target.value));
});
// A link into a closed section opens it; so does printing.
function reveal() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", reveal);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
reveal();
