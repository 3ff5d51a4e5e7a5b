"use strict";
/* Behaviour: plots and tables are made when they come into view, and all of them before printing. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = new Map();
  const tables = new Map();

  function draw(node, printing = false) {
    plots.get(node)?.dispose();
    const width = printing ? PRINTED_WIDTH : node.clientWidth;
    if (width) plots.set(node, drawChart(node, data, { dark: dark.matches && !printing, width, printing }));
  }
  function fill(node) {
    if (!tables.has(node)) tables.set(node, trialTable(node, data.cells, data.dashboard));
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      if (entry.target.classList.contains("plot")) draw(entry.target);
      else fill(entry.target);
    }
  }, { rootMargin: "400px" });
  const wanted = [...document.querySelectorAll(".plot, .trials")];
  wanted.forEach((node) => seen.observe(node));

  const again = () => [...plots.keys()].filter((node) => node.clientWidth).forEach((node) => draw(node));
  dark.addEventListener("change", again);
  let waiting = 0;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(again, 150);
  });

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((node) => { node.open = true; });
    for (const node of wanted) {
      if (node.classList.contains("plot")) draw(node, true);
      else fill(node);
    }
    tables.forEach((table) => table.print(true));
  });
  window.addEventListener("afterprint", () => {
    tables.forEach((table) => table.print(false));
    closed.forEach((node) => { node.open = false; });
    again();
  });

  function openTarget() {
    const node = document.getElementById(location.hash.slice(1));
    if (node instanceof HTMLDetailsElement) node.open = true;
  }
  window.addEventListener("hashchange", openTarget);
  document.querySelectorAll('a[href^="#cell-"]').forEach((link) => link.addEventListener("click", () => {
    document.getElementById(link.hash.slice(1)).open = true;
  }));
  openTarget();

  document.querySelectorAll(".buttons").forEach((node) => { node.hidden = false; });
  document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const status = button.parentNode.querySelector("[role=status]");
    status.textContent = (await copied(source.textContent)) ? "Copied." : "The browser does not allow it: copy the text below.";
  }));
  async function copied(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea"); // browsers without the clipboard API on file pages
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }
})();
