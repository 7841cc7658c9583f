"use strict";
// Sortable tables; the meanings of headings on hover, focus and touch; folded parts opened for printing.
(() => {
  const collator = new Intl.Collator("en", { numeric: true });

  const units = { kB: 1e3, MB: 1e6, GB: 1e9, ms: 1e3, s: 1e6 };

  const number = (text) => {
    const found = text.replace("−", "-").match(/^([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: (kB|MB|GB|ms|s)\b)?/i);
    return found ? Number(found[1]) * (units[found[2]] || 1) : null;
  };

  // Unknown values stay last in either direction.
  const comparator = (index, direction) => (one, other) => {
    const [first, second] = [one, other].map((row) => row.cells[index].textContent.trim());
    if ((first === "NA") !== (second === "NA")) return first === "NA" ? 1 : -1;
    const [a, b] = [number(first), number(second)];
    const order = a !== null && b !== null ? a - b : collator.compare(first, second);
    return direction * order;
  };

  const sortBy = (heading) => {
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    const body = heading.closest("table").tBodies[0];
    body.append(...[...body.rows].sort(comparator(heading.cellIndex, direction)));
  };

  // Folded parts are opened while the page is printed, and closed again afterwards.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const folded of opened) folded.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const folded of opened) folded.open = false;
  });

  // A link into a folded section unfolds it.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const inner = target.querySelector(":scope > details");
    if (inner) inner.open = true;
    for (let folded = target.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", unfold);
  unfold();

  const tip = document.getElementById("tip");
  let active = null;
  const hide = () => { active = null; tip.hidden = true; };
  const place = () => {
    if (!active) return;
    const at = active.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 0 ? above : at.bottom + 6}px`;
  };
  const show = (element) => {
    active = element;
    tip.textContent = element.dataset.tip;
    tip.hidden = false;
    place();
  };

  for (const button of document.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
    if (!button.dataset.tip) continue;
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => show(button));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, hide);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", place, { passive: true, capture: true });
})();
