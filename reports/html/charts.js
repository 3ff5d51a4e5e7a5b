"use strict";
/* The plots: options of Apache ECharts from the page's data. Tooltips are drawn on the canvas, as the policy requires. */
const PRINTED_WIDTH = 680;
const SYMBOLS = ["circle", "rect", "triangle", "diamond", "pin"];

function drawChart(node, data, look) {
  const kind = node.dataset.kind;
  const subject = data[kind][node.dataset.place];
  const ink = look.dark ? "#d5dae1" : "#30363d";
  const paint = {
    ...look, ink, modes: data.colours, rule: look.dark ? "#3a424d" : "#d5dae1", quiet: look.dark ? "#8c97a5" : "#7a8591",
    point: look.dark ? "#6b9fe6" : "#3b76c4",
  };
  const { height, option } = { cost, history, sizes }[kind](subject, paint, data.cells);
  node.style.minHeight = "0";
  node.style.height = `${height}px`;
  const chart = echarts.init(node, null, { width: look.width, height, devicePixelRatio: look.printing ? 2 : undefined });
  chart.setOption({
    animation: false, backgroundColor: "transparent", textStyle: { color: ink, fontFamily: "system-ui, sans-serif" },
    tooltip: { renderMode: "richText", confine: true, trigger: "item" }, ...option,
  });
  return chart;
}

const short = (value) => {
  if (typeof value !== "number") return String(value);
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
};

function numberAxis(paint, name, more = {}) {
  return {
    type: "value", scale: true, name, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: paint.ink },
    axisLine: { show: true, lineStyle: { color: paint.quiet } }, splitLine: { lineStyle: { color: paint.rule } },
    axisLabel: { color: paint.ink, hideOverlap: true, formatter: short }, ...more,
  };
}
/* An axis that ends at round numbers (1, 2, 5 × 10^k), but never beyond its metric's limits. */
function roundAxis(values, [low = null, high = null] = []) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return {};
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const rough = (most - least || Math.abs(most) / 10 || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const interval = [1, 2, 5, 10].find((step) => rough <= step * power * (1 + 1e-9)) * power;
  const below = Math.floor(least / interval + 1e-9) * interval;
  const above = Math.ceil(most / interval - 1e-9) * interval;
  const min = Math.max(low ?? -Infinity, below === above ? below - interval : below);
  const max = Math.min(high ?? Infinity, below === above ? above + interval : above);
  return { min: Number(min.toPrecision(12)), max: Number(max.toPrecision(12)), interval };
}
const scoreAxis = (paint, name, more = {}) => numberAxis(paint, name, { nameGap: 40, ...more });

/* A legend; its number of lines is estimated from its letters, so that the grid starts below it. */
function withLegend(paint, names) {
  const width = [...new Set(names)].reduce((sum, name) => sum + 7 * name.length + 45, 0);
  const lines = Math.ceil(width / Math.max(200, paint.width - 40));
  const legend = { top: 0, left: 0, right: 0, icon: "circle", textStyle: { color: paint.ink }, data: [...new Set(names)] };
  return { legend, top: 14 + 26 * lines };
}

/* The next of 1, 2 and 5 × 10^k, below or above. */
function roundTo(value, side) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 2, 5, 10].map((step) => Number((step * power).toPrecision(12)));
  return side > 0 ? steps.find((step) => step >= value) : steps.filter((step) => step <= value).at(-1);
}
function logTicks(paint, low, high) {
  const values = [];
  const some = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of some) values.push(Number((step * 10 ** power).toPrecision(12)));
  }
  const customValues = values.filter((value) => value >= low && value <= high);
  return { axisLabel: { color: paint.ink, hideOverlap: true, formatter: short, customValues }, axisTick: { customValues } };
}

/* Points are the trials in the cells' tables; the best so far covers all trials. */
function history(subject, paint, cells) {
  const series = [];
  const shown = [];
  let last = 2;
  for (const line of subject.lines) {
    const { rows } = cells[line.place];
    const color = paint.modes[line.mode] ?? paint.point;
    const all = rows.dev.flatMap((dev, row) => (dev === null ? [] : [row]));
    const point = (row) => [rows.number[row], subject.scale * rows.dev[row]];
    all.forEach((row) => shown.push(subject.scale * rows.dev[row]));
    last = Math.max(last, ...line.best.map(([number]) => number));
    series.push({
      type: "line", name: line.name, step: "end", showSymbol: false, color, lineStyle: { width: 2 },
      data: line.best.map(([number, dev]) => [number, subject.scale * dev]), silent: true,
    }, {
      type: "scatter", name: line.name, symbolSize: all.length > 300 ? 3 : 7, color, data: all.map(point),
      itemStyle: { opacity: all.length > 300 ? 0.4 : 0.8 },
    });
    const stopped = all.filter((row) => rows.status[row] === "stopped");
    if (stopped.length) {
      series.at(-1).data = all.filter((row) => rows.status[row] !== "stopped").map(point);
      series.push({ type: "scatter", name: line.name, symbolSize: 6, data: stopped.map(point), itemStyle: { color: "transparent", borderColor: color } });
    }
  }
  const over = withLegend(paint, subject.lines.map((line) => line.name));
  return {
    height: 250 + over.top,
    option: {
      legend: over.legend, grid: { left: 56, right: 16, top: over.top, bottom: 44 }, series,
      xAxis: numberAxis(paint, "trial", { min: 1, max: last, minInterval: 1 }), yAxis: scoreAxis(paint, subject.y, roundAxis(shown, subject.limits)),
      tooltip: { renderMode: "richText", confine: true, formatter: (item) => `${item.seriesName}, trial ${item.value[0]}: dev ${short(item.value[1])}` },
    },
  };
}

function cost(subject, paint) {
  const series = [];
  const several = subject.groups.length > 1;
  subject.groups.forEach((group, at) => {
    const named = (text) => (several ? `${group.encoder}: ${text}` : text);
    const front = group.points.filter((point) => point.pareto).sort((a, b) => a.seconds - b.seconds);
    series.push({
      type: "line", name: named("Pareto set"), step: "end", showSymbol: false, silent: true, color: paint.quiet,
      lineStyle: { type: ["solid", "dashed", "dotted"][at % 3] }, data: front.map((point) => [point.seconds, point.score]),
    });
    for (const point of group.points) {
      const color = paint.modes[point.mode] ?? paint.point;
      series.push({
        type: "scatter", name: named(point.name), symbol: SYMBOLS[at % SYMBOLS.length], symbolSize: 12,
        data: [[point.seconds, point.score]], color,
        itemStyle: { color: point.pareto ? color : "transparent", borderColor: color, borderWidth: 2 },
      });
    }
  });
  const seconds = subject.groups.flatMap((group) => group.points.map((point) => point.seconds));
  const [low, high] = [roundTo(Math.min(...seconds) / 1.1, -1), roundTo(Math.max(...seconds) * 1.1, 1)];
  const over = withLegend(paint, series.map((one) => one.name));
  return {
    height: 290 + over.top,
    option: {
      legend: over.legend, grid: { left: 56, right: 24, top: over.top, bottom: 44 },
      xAxis: numberAxis(paint, "seconds of one run", { type: "log", min: low, max: high, ...logTicks(paint, low, high) }),
      yAxis: scoreAxis(paint, subject.y, roundAxis(subject.groups.flatMap((group) => group.points.map((point) => point.score)), subject.limits)), series,
      tooltip: { renderMode: "richText", confine: true, formatter: (item) => `${item.seriesName}\n${short(item.value[1])} in ${short(item.value[0])} s` },
    },
  };
}

/* Each mode's score over the sizes of train; its band is one standard deviation over seeds to either side. */
function sizes(subject, paint) {
  const series = subject.lines.flatMap((line) => {
    const color = paint.modes[line.mode] ?? paint.point;
    const band = { type: "line", name: line.name, stack: line.name, stackStrategy: "all", symbol: "none", silent: true, color, lineStyle: { opacity: 0 } };
    return [
      { ...band, data: line.points.map(([size, score, std]) => [size, score - std]) },
      { ...band, data: line.points.map(([size, , std]) => [size, 2 * std]), areaStyle: { color, opacity: 0.15 } },
      { type: "line", name: line.name, color, symbolSize: 8, lineStyle: { width: 2 }, data: line.points },
    ];
  });
  const spread = subject.lines.flatMap((line) => line.points.flatMap(([, score, std]) => [score - std, score + std]));
  const [low, high] = [subject.sizes[0], subject.sizes.at(-1)];
  const over = withLegend(paint, subject.lines.map((line) => line.name));
  return {
    height: 290 + over.top,
    option: {
      legend: over.legend, grid: { left: 56, right: 24, top: over.top, bottom: 44 },
      xAxis: numberAxis(paint, "training examples", {
        type: "log", min: low / 1.1, max: high * 1.1, axisTick: { customValues: subject.sizes }, splitLine: { show: false },
        axisLabel: { color: paint.ink, hideOverlap: true, customValues: subject.sizes, formatter: (value) => value.toLocaleString("fr") },
      }),
      yAxis: scoreAxis(paint, subject.y, roundAxis(spread, subject.limits)), series,
      tooltip: { renderMode: "richText", confine: true, formatter: ({ seriesName, value: [size, score, std] }) => `${seriesName}, ${size} examples: ${short(score)} ± ${short(std)}` },
    },
  };
}
