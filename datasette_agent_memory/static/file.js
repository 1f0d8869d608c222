// The lines that the address names, as #L3 or #L3-L9: marked, in view, and with the focus.

const file = document.querySelector(".am-file");
const { first, last, total } = Object.fromEntries(
  Object.entries(file.dataset).map(([name, value]) => [name, Number(value)]),
);

function namedLines() {
  const match = /^#L(\d+)(?:-L(\d+))?$/.exec(location.hash);
  if (!match) return null;
  const lines = [Number(match[1]), Number(match[2] ?? match[1])];
  return lines[0] <= lines[1] ? lines : lines.reverse();
}

function show() {
  file.querySelector(".am-here")?.remove();
  const lines = namedLines();
  if (!lines) return;
  const [start, end] = lines;
  if (end < first || start > last) {
    goToPageOf(start);
    return;
  }
  const from = Math.max(start, first);
  const here = document.createElement("div");
  here.className = "am-here";
  here.style.gridRow = `${from - first + 1} / ${Math.min(end, last) - first + 2}`;
  file.append(here);
  const line = document.getElementById(`L${from}`);
  if (!line.matches("a")) line.tabIndex = -1;
  line.scrollIntoView();
  line.focus({ preventScroll: true });
}

function goToPageOf(line) {
  const url = new URL(location.href);
  if (line < 1 || line > total || url.searchParams.get("from") === String(line)) return;
  url.searchParams.set("from", line);
  location.replace(url);
}

// One line number is in the order of the Tab key; the arrows lead to the others.
const numbers = [...file.querySelectorAll(".am-number")];
numbers.slice(1).forEach((number) => { number.tabIndex = -1; });

file.addEventListener("focusin", ({ target }) => {
  if (!target.matches(".am-number")) return;
  for (const number of numbers) number.tabIndex = number === target ? 0 : -1;
});
file.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const next = step && numbers[numbers.indexOf(event.target) + step];
  if (!next || !event.target.matches(".am-number")) return;
  event.preventDefault();
  next.focus();
});
file.addEventListener("click", (event) => {
  const number = event.target.closest(".am-number");
  const lines = namedLines();
  if (!number || !event.shiftKey || !lines) return;
  event.preventDefault();
  const line = Number(number.textContent);
  location.hash = `L${Math.min(lines[0], line)}-L${Math.max(lines[0], line)}`;
});

addEventListener("hashchange", show);
show();
