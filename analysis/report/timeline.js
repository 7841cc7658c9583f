"use strict";
// A traced step as lanes of bars that can be zoomed, moved and read. Text from traces is set as text, never as markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LANE = 20, GAP = 3, GROUP = 20, AXIS = 22, SMALLEST_SPAN_US = 0.5;
  const cells = JSON.parse(document.getElementById("timeline-data").textContent);
  const view = document.getElementById("timeline-view");
  const detail = document.getElementById("timeline-detail");
  const range = document.getElementById("timeline-range");
  const choice = document.getElementById("timeline-cell");
  const state = { cell: cells[0], from: 0, to: 1, selected: null, width: 0, left: 0 };

  const element = (name, attributes, parent) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };
  const shown = (us) => {
    const size = Math.abs(us);
    const [divisor, unit] = size >= 1e6 ? [1e6, "s"] : size >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    return `${Number((us / divisor).toPrecision(5))} ${unit}`;
  };
  const x = (us) => state.left + ((us - state.from) / (state.to - state.from)) * (state.width - state.left);
  const at = (px) => state.from + ((px - state.left) / (state.width - state.left)) * (state.to - state.from);

  // The position of each lane; a group's name takes a separate line.
  const layout = () => {
    let y = AXIS, group = null;
    const lanes = state.cell.lanes.map((lane) => {
      const opens = lane.group !== group;
      if (opens) { group = lane.group; y += GROUP; }
      const placed = { lane, y, opens };
      y += LANE + GAP;
      return placed;
    });
    return { lanes, height: y };
  };

  const ticks = () => {
    const rough = (state.to - state.from) / Math.max(3, (state.width - state.left) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    for (let tick = Math.ceil(state.from / step) * step; tick <= state.to; tick += step) found.push(tick);
    return found;
  };

  const drawAxis = (svg, height) => {
    for (const tick of ticks()) {
      element("line", { x1: x(tick), x2: x(tick), y1: AXIS - 4, y2: height, class: "grid" }, svg);
      if (x(tick) > state.width - 44) continue; // no room for its label
      const text = element("text", { x: x(tick) + 3, y: AXIS - 8, class: "tick" }, svg);
      text.textContent = shown(tick);
    }
  };

  const rectangle = (parent, start, duration, y, kind, height = LANE) => {
    const first = Math.max(x(start), state.left), last = Math.min(x(start + duration), state.width);
    if (last < state.left || first > state.width) return null;
    const attributes = { x: first, y, width: Math.max(last - first, 1), height, class: `bar k-${kind}` };
    return element("rect", attributes, parent);
  };

  const drawFills = (parent, lane, y) => {
    for (const [kind, spans] of lane.fills) {
      const path = spans
        .filter(([start, duration]) => start + duration >= state.from && start <= state.to)
        .map(([start, duration]) => {
          const first = Math.max(x(start), state.left), last = Math.min(x(start + duration), state.width);
          return `M${first.toFixed(2)} ${y}h${Math.max(last - first, 0.3).toFixed(2)}v${LANE}H${first.toFixed(2)}z`;
        })
        .join("");
      if (path) element("path", { d: path, class: `k-${kind}` }, parent);
    }
  };

  const drawBar = (parent, bar, y) => {
    const [start, duration, kind, label, , wait] = bar;
    const box = rectangle(parent, start, duration, y, kind);
    if (!box) return;
    if (wait > 0) rectangle(parent, start, wait, y, "wait");
    if (bar === state.selected) box.classList.add("selected");
    const room = Number(box.getAttribute("width")) - 8;
    if (room < 24) return;
    const text = element("text", { x: Number(box.getAttribute("x")) + 4, y: y + 14, class: `label on-${kind}` }, parent);
    const letters = Math.floor(room / 6.6);
    text.textContent = label.length > letters ? `${label.slice(0, Math.max(1, letters - 1))}…` : label;
  };

  const draw = () => {
    state.width = Math.max(view.clientWidth, 240);
    state.left = state.width < 560 ? 90 : 132;
    const { lanes, height } = layout();
    const svg = element("svg", { width: state.width, height, viewBox: `0 0 ${state.width} ${height}`, "aria-hidden": "true" });
    drawAxis(svg, height);
    for (const { lane, y, opens } of lanes) {
      if (opens) element("text", { x: 0, y: y - 6, class: "group" }, svg).textContent = lane.group;
      element("text", { x: 0, y: y + 14, class: "lane" }, svg).textContent = lane.label;
      element("rect", { x: state.left, y, width: state.width - state.left, height: LANE, class: "track" }, svg);
      drawFills(svg, lane, y);
      for (const bar of lane.bars) drawBar(svg, bar, y);
    }
    view.replaceChildren(svg);
    range.textContent = `${shown(state.from)} to ${shown(state.to)} of ${shown(state.cell.length)}`;
  };

  let queued = false;
  const redraw = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; draw(); });
  };

  const show = (from, to) => {
    const length = state.cell.length;
    const span = Math.min(Math.max(to - from, Math.min(SMALLEST_SPAN_US, length)), length);
    state.from = Math.min(Math.max(from, 0), length - span);
    state.to = state.from + span;
    redraw();
  };
  const zoom = (factor, centre = (state.from + state.to) / 2) =>
    show(centre - (centre - state.from) * factor, centre + (state.to - centre) * factor);
  const move = (share) => show(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));
  const whole = () => show(0, state.cell.length);

  const select = (lane, bar) => {
    state.selected = bar;
    detail.textContent = bar
      ? `${lane.group}, from ${shown(bar[0])} to ${shown(bar[0] + bar[1])}: ${bar[4]}`
      : `${lane.group}: ${lane.label}`;
  };

  const isCollective = (bar) => bar[2] === "collective" || bar[2] === "unsplit";
  const collectives = () => state.cell.lanes
    .flatMap((lane) => lane.bars.filter(isCollective).map((bar) => [lane, bar]))
    .sort(([, one], [, other]) => one[0] - other[0]);
  const next = () => {
    const all = collectives();
    if (!all.length) { detail.textContent = "This step shows no collective."; return; }
    const index = all.findIndex(([, bar]) => bar === state.selected);
    const [lane, bar] = all[(index + 1) % all.length];
    select(lane, bar);
    show(bar[0] - bar[1], bar[0] + 2 * bar[1]);
  };

  // Select the bar under the pointer, the shortest if there are several.
  const point = (event) => {
    const box = view.getBoundingClientRect();
    const time = at(event.clientX - box.left), height = event.clientY - box.top;
    const slack = (2 * (state.to - state.from)) / (state.width - state.left);
    const found = layout().lanes.find(({ y }) => height >= y && height < y + LANE);
    if (!found || event.clientX - box.left < state.left) return;
    const under = found.lane.bars.filter((bar) => time >= bar[0] - slack && time <= bar[0] + bar[1] + slack);
    select(found.lane, under.sort((one, other) => one[1] - other[1])[0] || null);
    redraw();
  };

  const acts = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.3), right: () => move(0.3), all: whole, next };
  const keys = {
    "+": acts.in, "=": acts.in, ArrowUp: acts.in, "-": acts.out, ArrowDown: acts.out, ArrowLeft: acts.left,
    ArrowRight: acts.right, 0: whole, Home: whole, n: next, N: next,
  };
  for (const button of document.querySelectorAll("#timeline [data-act]")) {
    button.addEventListener("click", acts[button.dataset.act]);
  }
  view.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  // One pointer drags, two pinch; the wheel zooms with Ctrl, or if the drawing has the focus.
  const pointers = new Map();
  view.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.clientX);
    view.setPointerCapture(event.pointerId);
    point(event);
  });
  view.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) { point(event); return; }
    const per = (state.to - state.from) / (state.width - state.left);
    if (pointers.size === 1) {
      const moved = (event.clientX - pointers.get(event.pointerId)) * per;
      show(state.from - moved, state.to - moved);
    } else {
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      const before = Math.abs(pointers.get(event.pointerId) - other), now = Math.abs(event.clientX - other);
      if (before > 8 && now > 8) zoom(before / now, at((event.clientX + other) / 2 - view.getBoundingClientRect().left));
    }
    pointers.set(event.pointerId, event.clientX);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    view.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== view) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event.clientX - view.getBoundingClientRect().left));
  }, { passive: false });

  const choose = () => {
    state.cell = cells[Number(choice.value)];
    state.selected = null;
    for (const notes of document.querySelectorAll(".timeline-notes")) notes.hidden = notes.dataset.cell !== choice.value;
    whole();
  };
  choice.addEventListener("change", choose);
  new ResizeObserver(redraw).observe(view);
  const busiest = cells.findIndex((cell) => cell.lanes.some((lane) => lane.bars.some(isCollective)));
  choice.value = String(Math.max(0, busiest));
  choose();
})();
