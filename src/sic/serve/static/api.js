// Talking to the server: refusals become errors with the server's own sentence; a busy server is asked again, unless to edit.

export class Refused extends Error {}

async function ask(path, options, attempts = 5) {
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Refused("The server does not respond; is it still running?");
    }
    if (response.ok) return response;
    if (response.status === 503 && attempt < attempts) {
      const seconds = Number(response.headers.get("Retry-After")) || 1;
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      continue;
    }
    let sentence = `The server refused (${response.status}).`;
    try {
      sentence = (await response.json()).error || sentence;
    } catch { /* not one of our own sentences */ }
    throw new Refused(sentence);
  }
}

export const get = async (path) => (await ask(path)).json();
export const getBytes = async (path) => (await ask(path)).arrayBuffer();
export const post = async (path, content, attempts) =>
  (await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) }, attempts)).json();
/** Asked only once: an edit must not be made twice. */
export const edit = (path, content) => post(path, content, 1);

/** Ask about an image: { file }, { test } or { support }. */
function image(source, path, parameters) {
  const query = new URLSearchParams(parameters);
  for (const place of ["test", "support"]) if (source[place] !== undefined) query.append(place, source[place]);
  const body = new FormData();
  if (source.file) body.append("image", source.file, plain(source.file.name));
  return ask(`/api/v1/${path}?${query}`, { method: "POST", body: source.file ? body : undefined });
}

const plain = (name) => name.replace(/[^\p{L}\p{N}\p{P}\p{S} ]|[/\\]/gu, "_").slice(-120) || "image";

const asked = (classes, versus) => [...classes.map((name) => ["class", name]), ...(versus ? [["versus", versus]] : [])];

/** The explanation of an image for these classes (none: the answer's own). */
export async function explain(source, classes) {
  const parameters = [["maps", "true"], ["pictures", "true"], ...asked(classes)];
  return (await (await image(source, "explain", parameters)).json()).images[0];
}

/** The explanation of these classes with the regions that match, without maps and pictures; `versus`: compare the (only)
 * class with this one. */
export const matches = async (source, classes, versus) =>
  (await (await image(source, "explain", [["matches", "true"], ...asked(classes, versus)])).json()).images[0];

/** The same as a web page in one file. */
export const share = async (source, classes, versus) => (await image(source, "share", asked(classes, versus))).blob();

/** The server's description of the model, and its name in the page's header. */
export async function model() {
  const described = await get("/api/v1/model");
  document.getElementById("model-name").textContent = described.name;
  document.querySelector("nav").hidden = !described.supports;  // the other pages are about cases
  return described;
}
