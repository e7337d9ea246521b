// Where two classes differ: pixel by pixel, and region by region. Both explain the difference of their scores.

import { make, signed } from "/static/elements.js";
import { differences, outlines } from "/static/matches.js";
import { drawPixels, drawSigned, inside, prepare, scaleEnd, total } from "/static/maps.js";
import { legend } from "/static/panel.js";
import { stage } from "/static/region.js";

/** What tells `first` from `second`, an explained class that scores less. */
export function difference(first, second, context) {
  const map = first.map.map((value, i) => value - second.map[i]);
  const ready = prepare(map, context.size, total(map.map(Math.abs)));  // for and against may cancel out
  const end = scaleEnd(ready);
  const { box: place, canvas } = stage(context.region, `Where ${first.name} and ${second.name} differ`, context.touch, context.signal);
  const scale = legend(`blue: more for ${second.name}, red: more for ${first.name}`);
  scale.low.textContent = `−${end.toPrecision(2)}`;
  scale.high.textContent = `+${end.toPrecision(2)}`;
  const words = make("p", { className: "region" }), regions = make("figure", {}), table = make("div", {});
  const gap = first.logit - second.logit;
  drawSigned(canvas, ready, end, context.image);
  const box = make("div", {},
    make("h2", { textContent: `Why ${first.name} and not ${second.name}?` }),
    make("p", { textContent: `${first.name} scores ${signed(first.logit)}, ${second.name} ${signed(second.logit)}: ${first.name} leads by ${gap.toFixed(2)}.` }),
    make("div", { className: "pictures" },
      make("figure", {}, place, scale.box, make("figcaption", { textContent: "Pixel by pixel: all parts together make the lead." }), words),
      regions),
    table);
  const say = (sentence, className) => { regions.replaceChildren(make("p", { className, textContent: sentence })); table.replaceChildren(); };

  return {
    box,
    /** Show the difference region by region: `contrast` as the server sends it; null: it is on its way. */
    draw(contrast) {
      const known = new Map((contrast ? [...second.regions, ...first.regions] : []).map((region) => [region.number, region]));
      const placed = [...known.values()].filter((region) => region.number);
      if (!contrast || !placed.length) {
        say(contrast ? first.words ?? "No regions match." : "Finding the regions that match …", "soft");
        return;
      }
      const picture = make("canvas", { role: "img", "aria-label": "The image with its numbered regions" });
      drawPixels(picture, context.image);
      regions.replaceChildren(make("div", { className: "over" }, picture, outlines(placed, "image", context.size)),
        make("figcaption", { textContent: "Region by region: those with a number match regions of the cases." }));
      table.replaceChildren(make("p", { textContent: `What each region adds to the score of ${first.name}, less what it adds to that of ${second.name}:` }), differences(contrast));
    },
    /** Say why there are no regions. */
    refuse(sentence) { say(sentence, "error"); },
    sum(mask) {
      const value = mask ? inside(map, mask) : null;
      words.dataset.value = value ?? "";
      words.textContent = value === null ? ""
        : `Inside ${context.region.marked ? "the marked region" : "the circle"}: ${signed(value)} of the difference of ${signed(gap)}, in favour of ${value >= 0 ? first.name : second.name}.`;
    },
  };
}
