// What all pages share. Each works without it.

// Datasette 0.65 closes every <details> that a click is outside of. That is meant for its menus:
// ours stay as their reader left them.
let open = [];
document.addEventListener("click", () => {
  open = [...document.querySelectorAll(".am-main details[open]")];
}, { capture: true });
document.addEventListener("click", () => {
  for (const details of open) details.open = true;
});
