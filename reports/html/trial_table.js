"use strict";
/* The table of all trials: sorted by its headings, filtered by cell, text and status, one page at a time. */
function trialTable(place, cells, dashboard) {
  const PAGE = 25;
  const rows = together(cells);
  const count = rows.id.length;
  const shown = (row) => (rows.scale[row] * rows.dev[row]).toFixed(rows.scale[row] === 1 ? 3 : 1).replace("-", "−");
  const columns = [
    { head: "rank", values: rows.rank, figure: true },
    { head: "dev", values: rows.dev, figure: true, descends: true, show: shown },
    { head: "cell", values: rows.cell, show: (row) => cells[rows.cell[row]].title },
    { head: "trial", values: rows.number, figure: true, descends: false },
    { head: "status", values: rows.status, show: (row) => (rows.error[row] ? `${rows.status[row]}: ${rows.error[row]}` : rows.status[row]) },
    { head: "from", values: rows.from },
    { head: "best epoch", values: rows.epoch, figure: true, show: (row) => `${rows.epoch[row]} of ${rows.epochs[row]}` },
    { head: "seconds", values: rows.seconds, figure: true },
    { head: "setting", values: rows.setting, long: true },
    { head: "id", values: rows.id },
  ];
  const state = { column: 0, descends: false, page: 0, text: "", status: "", cell: "" };
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const breakable = (name) => name.split(/(?<=[._])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));
  const texts = (row) => columns.map((column) => text(column, row));
  const text = (column, row) => {
    const value = column.values[row];
    if (value === null || value === "") return "–";
    return column.show ? column.show(row) : String(value);
  };

  const filter = make("input", { type: "search", "aria-label": `Filter the trials of ${place.dataset.title}` });
  const status = make("select", { "aria-label": `Status of the trials of ${place.dataset.title}` }, make("option", { value: "" }, "all"));
  for (const known of new Set(rows.status)) status.append(make("option", { value: known }, known));
  const chosen = make("select", { "aria-label": "Cell of the trials" }, make("option", { value: "" }, "all"));
  cells.forEach((cell, at) => chosen.append(make("option", { value: at }, cell.title)));
  const before = make("button", { type: "button" }, "Previous");
  const after = make("button", { type: "button" }, "Next");
  const said = make("span", { role: "status" });
  const head = make("tr");
  const body = make("tbody");
  const heads = columns.map((column, at) => {
    const button = make("button", { type: "button" }, ...breakable(column.head));
    button.addEventListener("click", () => {
      state.descends = state.column === at ? !state.descends : Boolean(column.descends);
      state.column = at;
      state.page = 0;
      show();
    });
    const cellOfHead = make("th", { scope: "col" }, button);
    if (column.figure) cellOfHead.className = "figure";
    head.append(cellOfHead);
    return cellOfHead;
  });
  head.append(make("th", { scope: "col" }, "MLflow"));

  let order = [];
  let printing = false;
  const compare = (a, b) => {
    const { values } = columns[state.column];
    const one = values[a];
    const other = values[b];
    const lacks = (value) => value === null || value === "";
    if (lacks(one) || lacks(other)) return lacks(one) - lacks(other) || a - b;
    const rank = one < other ? -1 : one > other ? 1 : 0;
    return (state.descends ? -rank : rank) || a - b;
  };
  const matches = (row) =>
    (state.cell === "" || rows.cell[row] === Number(state.cell)) &&
    (!state.status || rows.status[row] === state.status) &&
    (!state.text || texts(row).join(" ").toLowerCase().includes(state.text));

  function show() {
    order = [];
    for (let row = 0; row < count; row += 1) if (matches(row)) order.push(row);
    order.sort(compare);
    heads.forEach((node, at) =>
      at === state.column
        ? node.setAttribute("aria-sort", state.descends ? "descending" : "ascending")
        : node.removeAttribute("aria-sort"));
    showPage();
  }
  function showPage() {
    const first = printing ? 0 : state.page * PAGE;
    const shown = order.slice(first, first + PAGE);
    body.replaceChildren(...shown.map(rowOf));
    before.disabled = state.page === 0;
    after.disabled = first + PAGE >= order.length;
    const until = first + shown.length;
    said.textContent = shown.length ? `${first + 1} to ${until} of ${order.length} (${count} in all)` : "No trial matches.";
    printed.textContent = order.length > shown.length ? `${shown.length} of ${order.length} trials are printed; the page has the others.` : "";
  }
  function rowOf(row) {
    const node = make("tr");
    columns.forEach((column) => node.append(make("td", column.figure ? { class: "figure" } : column.long ? { class: "long" } : {}, text(column, row))));
    const run = rows.run[row];
    const label = `MLflow run of trial ${rows.number[row]}, ${cells[rows.cell[row]].title}`;
    node.append(make("td", {}, run ? make("a", { href: `${dashboard}/#/runs/${run}`, "aria-label": label }, "run") : "–"));
    return node;
  }

  filter.addEventListener("input", () => { state.text = filter.value.trim().toLowerCase(); state.page = 0; show(); });
  status.addEventListener("change", () => { state.status = status.value; state.page = 0; show(); });
  chosen.addEventListener("change", () => { state.cell = chosen.value; state.page = 0; show(); });
  before.addEventListener("click", () => { state.page -= 1; showPage(); });
  after.addEventListener("click", () => { state.page += 1; showPage(); });
  const printed = make("p", { class: "only-print footnote" });
  const region = make("div", { class: "wide", role: "region", tabindex: "0", "aria-label": `Trials of ${place.dataset.title}` },
    make("table", { class: "many" }, make("thead", {}, head), body));
  place.append(
    make("div", { class: "controls" }, make("label", {}, "Filter", filter), make("label", {}, "Cell", chosen), make("label", {}, "Status", status), before, after, said),
    region, printed);
  show();
  return { print: (is) => { printing = is; showPage(); } };
}

/* The trials of all cells as columns, each with its cell, its setting as text, and its rank within its task. */
function together(cells) {
  const names = ["number", "id", "status", "from", "dev", "epoch", "epochs", "seconds", "run", "error", "setting"];
  const all = Object.fromEntries([...names, "cell", "scale", "rank"].map((name) => [name, []]));
  cells.forEach((cell, at) => cell.rows.id.forEach((_, row) => {
    for (const name of names) all[name].push(cell.rows[name][row]);
    all.cell.push(at);
    all.scale.push(cell.scale);
    all.rank.push(null);
  }));
  const tasks = Map.groupBy(all.id.keys(), (row) => cells[all.cell[row]].task);
  for (const rows of tasks.values()) {
    const scored = rows.filter((row) => all.dev[row] !== null);
    scored.sort((a, b) => (all.scale[a] === 1 ? all.dev[a] - all.dev[b] : all.dev[b] - all.dev[a]));
    scored.forEach((row, at) => { all.rank[row] = at && all.dev[row] === all.dev[scored[at - 1]] ? all.rank[scored[at - 1]] : at + 1; });
  }
  return all;
}
