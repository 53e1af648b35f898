"use strict";

// The first integer from low on for which `holds`, which goes on to hold for all after it; `high` where there is none before.
function first(low, high, holds) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// A tiled product c = a b, (M,K) x (K,N), walked tile by tile: what has been loaded and stored after each step, in closed form.
// `diagonal` null: the whole product; a number: its lower triangle, of which only live tiles are computed.
function walk({ m, n, k, bm, bn, bk, diagonal }) {
  const rows = Math.ceil(m / bm), columns = Math.ceil(n / bn), steps = Math.ceil(k / bk);
  const heightOf = (i) => Math.min(bm, m - i * bm);
  const live = (i) => {
    if (diagonal === null) return columns;
    const last = Math.min((i + 1) * bm, m) - 1;
    return Math.max(0, Math.min(columns, Math.floor((last + diagonal) / bn) + 1));
  };
  // Entries of tile row i that are stored, of the columns before `column`.
  const stored = (i, column) => {
    if (diagonal === null) return heightOf(i) * column;
    let sum = 0;
    for (let r = i * bm; r < i * bm + heightOf(i); r++) sum += Math.max(0, Math.min(column, r + diagonal + 1));
    return sum;
  };
  // Before each row of tiles: tiles, elements loaded of a and b, elements stored.
  const before = [{ tiles: 0, a: 0, b: 0, c: 0 }];
  for (let i = 0; i < rows; i++) {
    const last = before[i], width = Math.min(n, live(i) * bn);
    before.push({
      tiles: last.tiles + live(i),
      a: last.a + heightOf(i) * k * live(i),
      b: last.b + k * width,
      c: last.c + stored(i, width),
    });
  }
  const total = before[rows];
  const tileOf = (number) => {
    const i = first(0, rows, (row) => before[row + 1].tiles > number);
    return { i, j: number - before[i].tiles };
  };
  return {
    rows, columns, steps, live, heightOf,
    widthOf: (j) => Math.min(bn, n - j * bn),
    depthOf: (s) => Math.min(bk, k - s * bk),
    tiles: total.tiles,
    length: total.tiles * steps,
    a: total.a,
    b: total.b,
    stores: total.c,
    loads: total.a + total.b,
    masked: total.tiles * steps * bk * (bm + bn) - total.a - total.b + total.tiles * bm * bn - total.c,
    tilesBefore: (i) => before[i].tiles,
    // How many rows of tiles have loaded column j of b before the tile that is being computed.
    rowsDone: (j, now) => Math.max(0, now.i - first(0, rows, (i) => live(i) > j)) + (j < now.j),
    // The tile and the slice of its depth at a step, and what has been moved when it is done. Step 0: nothing yet.
    at(step) {
      if (step === 0 || total.tiles === 0) return { tile: null, loads: 0, stores: 0 };
      const number = Math.floor((step - 1) / steps), s = (step - 1) % steps;
      const { i, j } = tileOf(number), done = before[i], depth = Math.min(k, (s + 1) * bk);
      const lines = heightOf(i) + Math.min(bn, n - j * bn);
      const loads = done.a + done.b + heightOf(i) * k * j + k * Math.min(n, j * bn) + lines * depth;
      return { tile: number, i, j, s, loads, stores: done.c + stored(i, Math.min(n, (s + 1 === steps ? j + 1 : j) * bn)) };
    },
  };
}

(() => {
  const root = document.getElementById("explorer");
  const byName = (name) => root.querySelector(`[name="${name}"]`);
  const out = (name) => root.querySelector(`[data-out="${name}"]`);
  const canvas = root.querySelector("canvas"), context = canvas.getContext("2d");
  const SIZES = ["m", "n", "k"], BLOCKS = ["bm", "bn", "bk"];
  const LIMIT = { m: 8192, n: 8192, k: 8192, bm: 512, bn: 512, bk: 512 };
  let problem, path, step = 0, timer = null;

  // What a slider passes: every size at first, then in ever larger strides.
  function stops(limit) {
    const found = [];
    for (let value = 1, stride = 1; value <= limit; value += stride) {
      found.push(value);
      if (value >= 16 * stride && value % (2 * stride) === 0) stride *= 2;
    }
    return found;
  }
  const divisors = (size) => stops(size).filter((value) => size % value === 0);
  const allowed = (name) => (name === "bn" && byName("triangle").checked ? divisors(problem.bm) : stops(LIMIT[name]));

  function place(name) {
    const values = allowed(name), slider = byName(`${name}-slider`);
    slider.max = values.length - 1;
    slider.value = values.findLastIndex((value) => value <= problem[name]);
    slider.setAttribute("aria-valuetext", problem[name]);
    byName(name).value = problem[name];
  }

  function set(name, value) {
    problem[name] = Math.max(1, Math.min(LIMIT[name], Math.round(value) || 1));
    change();
  }

  function change() {
    const triangle = byName("triangle").checked;
    if (triangle && problem.bm % problem.bn) problem.bn = divisors(problem.bm).findLast((value) => value <= problem.bn);
    const offset = byName("diagonal");
    offset.disabled = !triangle;
    problem.diagonal = triangle ? Math.round(Number(offset.value)) || 0 : null;
    [...SIZES, ...BLOCKS].forEach(place);
    path = walk(problem);
    pause();
    step = 0;
    byName("step").max = path.length;
    show();
  }

  const text = (number, digits = 0) => number.toLocaleString("en-US", { maximumFractionDigits: digits });

  function show() {
    const { m, n, k } = problem, now = path.at(step), itemsize = Number(byName("itemsize").value);
    const sms = Number(byName("device").value), moved = (path.loads + path.stores) * itemsize;
    const full = Math.ceil(m / problem.bm) * Math.ceil(n / problem.bn), waves = Math.ceil(path.tiles / sms);
    const busy = waves ? path.tiles / (waves * sms) : 0;
    const shown = {
      loads: text(path.loads), "loads-a": text(path.a), "loads-b": text(path.b), stores: text(path.stores),
      masked: text(path.masked), bytes: text(moved), tiles: text(path.tiles), waves: text(waves),
      "of-tiles": path.tiles < full ? `of ${text(full)}` : "all of them",
      "busy": `multiprocessors ${text(100 * busy)}% busy`,
      "each-a": `${text(path.a / (m * k), 2)} times each`, "each-b": `${text(path.b / (k * n), 2)} times each`,
      reuse: text(path.loads ? path.stores * k / path.loads : 0, 2),
      intensity: text(moved ? 2 * path.stores * k / moved : 0, 2),
      loaded: text(now.loads), stored: text(now.stores), at: text(step), length: text(path.length),
    };
    for (const [name, value] of Object.entries(shown)) out(name).textContent = value;
    byName("step").value = step;
    byName("step").setAttribute("aria-valuetext", `step ${text(step)} of ${text(path.length)}`);
    const where = now.tile === null ? "" : `, now at tile (${now.i}, ${now.j}) of the output, slice ${now.s} of its depth`;
    canvas.setAttribute("aria-label",
      `Matrices a (${m} by ${k}), b (${k} by ${n}) and their product, cut into tiles; step ${step} of ${path.length}${where}.`);
    draw(now);
  }

  function draw(now) {
    const { m, n, k, bm, bn, bk } = problem;
    const style = getComputedStyle(root), color = (name) => style.getPropertyValue(name).trim();
    const width = canvas.clientWidth, gap = 22, least = 16, most = Math.min(width, 560);
    let scale = (most - gap) / Math.max(k + n, k + m);
    const extent = (size) => Math.max(least, size * scale);
    const over = Math.max(extent(k) + extent(n), extent(k) + extent(m)) + gap - most;
    if (over > 0) scale *= Math.max(0.2, 1 - over / most);
    const K = extent(k), N = extent(n), M = extent(m), ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${K + gap + M + 2}px`;
    canvas.width = width * ratio;
    canvas.height = (K + gap + M + 2) * ratio;
    context.setTransform(ratio, 0, 0, ratio, Math.max(0, (width - K - gap - N) / 2) * ratio, ratio);
    const sms = Number(byName("device").value);
    const at = { a: [0, K + gap], b: [K + gap, 0], c: [K + gap, K + gap] };
    const fill = (matrix, x, y, w, h, [sx, sy], name, alpha = 1) => {
      context.globalAlpha = alpha;
      context.fillStyle = color(name);
      context.fillRect(at[matrix][0] + x * sx, at[matrix][1] + y * sy, w * sx, h * sy);
      context.globalAlpha = 1;
    };
    const scales = { a: [K / k, M / m], b: [N / n, K / k], c: [N / n, M / m] };
    fill("a", 0, 0, k, m, scales.a, "--panel");
    fill("b", 0, 0, n, k, scales.b, "--panel");
    fill("c", 0, 0, n, m, scales.c, "--panel");
    const tile = now.tile, wave = tile === null ? -1 : Math.floor(tile / sms);
    // What was loaded so far, the stronger the more often; and the output, by what is done and what is in the same wave.
    for (let i = 0; i < path.rows; i++) {
      const y = i * bm, h = path.heightOf(i), count = path.live(i);
      if (path.live(i) === 0) continue;
      const done = tile === null ? 0 : i < now.i ? count : i === now.i ? now.j : 0;
      if (done) fill("a", 0, y, k, h, scales.a, "--series-1", 0.12 + 0.4 * done / path.columns);
      fill("c", 0, y, Math.min(n, count * bn), h, scales.c, "--series-3", 0.12);
      if (done) fill("c", 0, y, Math.min(n, done * bn), h, scales.c, "--series-3", 0.55);
      if (wave >= 0) {
        const first = path.tilesBefore(i), from = Math.max(0, wave * sms - first), to = Math.min(count, (wave + 1) * sms - first);
        if (to > from) fill("c", from * bn, y, Math.min(n, to * bn) - from * bn, h, scales.c, "--series-3", 0.22);
      }
    }
    if (tile !== null) {
      for (let j = 0; j < path.columns; j++) {
        const done = path.rowsDone(j, now);
        if (done) fill("b", j * bn, 0, path.widthOf(j), k, scales.b, "--series-2", 0.12 + 0.4 * done / path.rows);
      }
      const x = now.j * bn, y = now.i * bm, z = now.s * bk, w = path.widthOf(now.j), h = path.heightOf(now.i);
      const depth = path.depthOf(now.s);
      fill("a", 0, y, z, h, scales.a, "--series-1", 0.25);
      fill("b", x, 0, w, z, scales.b, "--series-2", 0.25);
      fill("a", z, y, depth, h, scales.a, "--series-1");
      fill("b", x, z, w, depth, scales.b, "--series-2");
      fill("c", x, y, w, h, scales.c, "--series-3");
    }
    lines("a", k, m, bk, bm, scales.a, at.a, color);
    lines("b", n, k, bn, bk, scales.b, at.b, color);
    lines("c", n, m, bn, bm, scales.c, at.c, color);
    context.fillStyle = color("--ink");
    context.font = "600 14px system-ui, sans-serif";
    context.fillText("a", at.a[0], at.a[1] - 7);
    context.fillText("b", at.b[0] - 14, at.b[1] + 12);
    context.fillText("c", at.c[0], at.c[1] - 7);
  }

  function lines(matrix, across, down, stepAcross, stepDown, [sx, sy], [x, y], color) {
    const width = across * sx, height = down * sy;
    context.strokeStyle = color("--paper");
    context.lineWidth = 1;
    context.beginPath();
    for (let at = stepAcross; stepAcross * sx >= 4 && at < across; at += stepAcross) {
      context.moveTo(x + at * sx, y);
      context.lineTo(x + at * sx, y + height);
    }
    for (let at = stepDown; stepDown * sy >= 4 && at < down; at += stepDown) {
      context.moveTo(x, y + at * sy);
      context.lineTo(x + width, y + at * sy);
    }
    context.stroke();
    context.strokeStyle = color("--faint");
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    byName("play").textContent = "Play";
  }

  function play() {
    if (timer !== null) return pause();
    if (step >= path.length) step = 0;
    // From a third of a second a step for a few steps, down to a quarter of a minute for all.
    const pace = Math.min(350, 15000 / path.length), stride = Math.max(1, Math.ceil(16 / pace));
    byName("play").textContent = "Pause";
    timer = setInterval(() => {
      step = Math.min(path.length, step + stride);
      show();
      if (step >= path.length) pause();
    }, Math.max(16, pace));
  }

  function move(to) {
    pause();
    step = Math.max(0, Math.min(path.length, to));
    show();
  }

  [...SIZES, ...BLOCKS].forEach((name) => {
    byName(`${name}-slider`).addEventListener("input", (event) => set(name, allowed(name)[event.target.value]));
    byName(name).addEventListener("change", (event) => set(name, Number(event.target.value)));
  });
  ["triangle", "diagonal"].forEach((name) => byName(name).addEventListener("change", change));
  ["device", "itemsize"].forEach((name) => byName(name).addEventListener("change", show));
  byName("play").addEventListener("click", play);
  byName("forward").addEventListener("click", () => move(step + 1));
  byName("back").addEventListener("click", () => move(step - 1));
  byName("step").addEventListener("input", (event) => move(Number(event.target.value)));
  root.querySelectorAll("[data-preset]").forEach((button) =>
    button.addEventListener("click", () => {
      const { triangle, ...sizes } = JSON.parse(button.dataset.preset);
      byName("triangle").checked = triangle;
      byName("diagonal").value = 0;
      problem = { ...sizes };
      change();
    }));
  new ResizeObserver(() => draw(path.at(step))).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(path.at(step)));
  root.querySelector("[data-preset]").click();
})();
