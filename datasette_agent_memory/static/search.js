// The search page as one types. The server answers each change with the whole page, as it does
// without this; its parts marked data-am-part take the place of those that are here.

const form = document.getElementById("am-form");
const question = document.getElementById("am-q");
const said = document.getElementById("am-said");
const answer = () => document.getElementById("am-answer");
const still = matchMedia("(prefers-reduced-motion: reduce)");

const TYPING_PAUSE_MS = 150;
const SLIDING_PAUSE_MS = 40;
const MOVING_MS = 250;

let timer;
let asking; // the AbortController of the request that is under way
let typing = false; // whether the newest entry of the history is of what is being typed

document.documentElement.classList.add("am-live");

// Asking

function addressOfForm() {
  const given = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value.trim() !== "") given.append(name, value);
  const query = given.toString();
  return form.action + (query ? `?${query}` : "");
}

async function show(address) {
  asking?.abort();
  const controller = asking = new AbortController();
  answer().setAttribute("aria-busy", "true");
  try {
    const response = await fetch(address, { signal: controller.signal, headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (controller.signal.aborted) return;
    const message = page.querySelector(".message-error");
    if (!page.getElementById("am-answer")) return say(message ? message.textContent : `Error ${response.status}`, true);
    document.title = page.title;
    takeOver(page);
    say(document.getElementById("am-count")?.textContent.trim().replace(/\s+/g, " ") ?? "");
  } catch (error) {
    if (error.name !== "AbortError") say("The server does not answer.", true);
  } finally {
    if (asking === controller) answer().removeAttribute("aria-busy");
  }
}

function say(text, isError = false) {
  said.textContent = text;
  // An error is seen, too; what a reader hears of an answer is in it.
  said.className = isError ? "message-error" : "am-hidden";
}

function ask(pause) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const address = addressOfForm();
    if (address === location.href) return;
    // One entry of the history for what is typed in one go: back leads to what was asked before.
    history[typing ? "replaceState" : "pushState"](null, "", address);
    typing = true;
    show(address);
  }, pause);
}

function leave() {
  typing = false;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask(0);
  leave();
});
for (const control of form.elements) {
  if (control.type === "submit") continue;
  const change = () => ask(control.type === "search" ? TYPING_PAUSE_MS : SLIDING_PAUSE_MS);
  // What is being composed, as Chinese is from its sounds, is no question yet.
  control.addEventListener("input", (event) => event.isComposing || change());
  control.addEventListener("compositionend", change);
  control.addEventListener("change", leave);
}

// An address of this page, by a link or by the browser's buttons

function fillForm(address) {
  const given = new URL(address).searchParams;
  for (const control of form.elements) if (control.name) control.value = given.get(control.name) ?? "";
  sliders.forEach((follow) => follow());
}

addEventListener("popstate", () => {
  clearTimeout(timer);
  leave();
  fillForm(location.href);
  show(location.href);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-am-live]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  leave();
  history.pushState(null, "", link.href);
  fillForm(link.href);
  show(link.href);
});

// Taking over what has changed

function hitsById() {
  return new Map([...document.querySelectorAll(".am-hit")].map((hit) => [hit.dataset.amId, hit]));
}

function takeOver(page) {
  const before = hitsById();
  const tops = new Map([...before].map(([id, hit]) => [id, hit.getBoundingClientRect().top]));
  const focused = document.activeElement;
  const focusedHit = focused?.closest?.(".am-hit")?.dataset.amId;
  const opened = [...answer().querySelectorAll("details[id][open]")].map((details) => details.id);

  for (const part of document.querySelectorAll("[data-am-part]")) {
    const other = page.getElementById(part.id);
    if (other) part.replaceChildren(...other.childNodes);
  }
  for (const control of form.elements) {
    // What a parameter is when it is not given may be another one now, as by a preset.
    const other = control.id && page.getElementById(control.id);
    if (!other) continue;
    if (control.type === "number") control.placeholder = other.placeholder;
    else if (control.tagName === "SELECT") control.options[0].text = other.options[0].text;
  }
  sliders.forEach((follow) => follow());

  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  const hits = hitsById();
  for (const [id, hit] of hits) {
    const known = before.get(id)?.querySelector(".am-more");
    // What was unfolded stays so, and is not fetched again.
    if (known?.open) hit.querySelector(".am-more")?.replaceWith(known);
    if (id === focusedHit && !document.contains(focused)) hit.querySelector(".am-hit-link").focus({ preventScroll: true });
  }
  if (still.matches) return;
  // All are measured before any moves: each measuring after a change would lay out the page again.
  const places = [...hits].map(([id, hit]) => [hit, tops.get(id), hit.getBoundingClientRect().top]);
  for (const [hit, from, to] of places) if (Math.min(from ?? to, to) < innerHeight) move(hit, from, to);
}

function move(hit, from, to) {
  if (from === undefined) {
    hit.animate([{ opacity: 0 }, { opacity: 1 }], MOVING_MS);
    return;
  }
  const by = from - to;
  if (by) {
    hit.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: MOVING_MS, easing: "ease-out" });
  }
}

// Unfolding a result

document.addEventListener("toggle", async (event) => {
  const more = event.target;
  if (!more.open || !more.dataset?.amChunk || more.dataset.amLoaded) return;
  more.dataset.amLoaded = "yes";
  try {
    const response = await fetch(more.dataset.amChunk);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const chunk = page.getElementById("am-chunk");
    if (!chunk) throw new Error(response.status);
    chunk.removeAttribute("id");
    more.append(chunk);
  } catch {
    delete more.dataset.amLoaded; // to be tried again
  }
}, { capture: true });

// Sliders beside the numbers: a number that is blank is the default, which a slider cannot say.

const sliders = [];
// Moving one of these means that it is to have an effect.
const SWITCH = { half_life: "decay", lambda: "mmr" };

for (const number of document.querySelectorAll("#am-tune > .am-field input[type=number]")) {
  const slider = document.createElement("input");
  const scale = number.name === "half_life" ? logarithmic(1, 365) : { min: 0, max: 1, step: 0.01, to: (x) => x, from: (x) => x };
  Object.assign(slider, { type: "range", min: scale.min, max: scale.max, step: scale.step });
  slider.setAttribute("aria-label", `${number.labels[0].textContent.trim()}, as a slider`);
  const both = document.createElement("span");
  both.className = "am-slider";
  number.replaceWith(both);
  both.append(slider, number);
  const follow = () => {
    slider.value = scale.from(Number(number.value || number.placeholder));
    slider.setAttribute("aria-valuetext", number.value || `${number.placeholder} (default)`);
  };
  sliders.push(follow);
  follow();
  number.addEventListener("input", follow);
  slider.addEventListener("input", () => {
    number.value = scale.to(Number(slider.value));
    slider.setAttribute("aria-valuetext", number.value);
    const name = SWITCH[number.name];
    const control = name && form.elements[name];
    if (control && control.value !== "1" && !(control.value === "" && control.options[0].text.startsWith("on"))) control.value = "1";
    ask(SLIDING_PAUSE_MS);
  });
  slider.addEventListener("change", leave);
}

function logarithmic(least, most) {
  return {
    min: 0, max: 100, step: 1,
    to: (x) => Math.round(least * (most / least) ** (x / 100)),
    from: (value) => 100 * Math.log(Math.min(most, Math.max(least, value)) / least) / Math.log(most / least),
  };
}

// Keys

function isField(element) {
  return element.matches?.("input, select") || element.isContentEditable;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.isComposing) return;
  const links = [...document.querySelectorAll(".am-hit-link")];
  const at = event.target;
  const hit = at.closest?.(".am-hit");
  if (event.key === "/" && !isField(at)) {
    // Datasette 1.0 opens its jump menu by this key; here it is the search that one jumps to.
    event.stopImmediatePropagation();
    event.preventDefault();
    question.focus();
    question.select();
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && links.length && (at === question || (hit && !isField(at)))) {
    event.preventDefault();
    const now = hit ? links.indexOf(hit.querySelector(".am-hit-link")) : -1;
    const next = now + (event.key === "ArrowDown" ? 1 : -1);
    if (next < 0) question.focus();
    else links[Math.min(next, links.length - 1)].focus();
  } else if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && at.matches?.(".am-hit-link")) {
    const more = hit.querySelector(".am-more");
    const unfolds = (event.key === "ArrowRight") === (getComputedStyle(hit).direction === "ltr");
    if (more) more.open = unfolds;
  } else if (event.key === "Escape" && hit) {
    const more = hit.querySelector(".am-more[open]");
    if (more) more.open = false;
    else question.focus();
  }
}, { capture: true });
