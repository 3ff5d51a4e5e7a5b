"use strict";
/* The plots: options of Apache ECharts from the page's data. Tooltips are drawn on the canvas, as the policy requires. */
const PRINTED_WIDTH = 680;
const NARROW_AXIS = 110;
const MODES = { feature_extraction: "#3b76c4", fine_tuning: "#d9580f", stack_and_finetune: "#8a4fd0" };
const SYMBOLS = ["circle", "rect", "triangle", "diamond", "pin"];
const MOST_WHOLE = 6;
const SMALLEST_RANGE = 1e-12;

function drawChart(node, data, look) {
  const kind = node.dataset.kind;
  const subject = ["tuning", "cost", "history"].includes(kind) ? data[kind][node.dataset.place] : data.cells[node.dataset.place];
  const ink = look.dark ? "#d5dae1" : "#30363d";
  const paint = {
    ...look, ink, rule: look.dark ? "#3a424d" : "#d5dae1", quiet: look.dark ? "#8c97a5" : "#7a8591",
    best: look.dark ? "#ffb454" : "#c2410c", point: look.dark ? "#6b9fe6" : "#3b76c4",
  };
  const { height, option } = { tuning, cost, history: (one, look) => history(one, look, data.cells), parallel, scatter, learning, residuals }[kind](subject, paint);
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

/* A log axis labels decades; a narrower one labels its ends. */
function logAxis(low, high) {
  const decades = Math.floor(Math.log10(high) + 1e-9) - Math.ceil(Math.log10(low) - 1e-9);
  return decades >= 1 ? {} : { axisLabel: { showMinLabel: true, showMaxLabel: true } };
}

/* Axis ends that are not round numbers have no labels, which would overlap their neighbours'. */
const withoutEnds = (paint) => ({ color: paint.ink, hideOverlap: true, formatter: short, showMinLabel: false, showMaxLabel: false });

function tuning(subject, paint) {
  const series = [];
  subject.lines.forEach((line, at) => {
    const color = MODES[line.mode] ?? paint.point;
    line.bands.forEach((band, level) => series.push({
      type: "custom", name: line.name, silent: true, clip: true, data: band.length ? [0] : [], itemStyle: { color }, tooltip: { show: false },
      renderItem: (_, api) => ({
        type: "polygon", style: { fill: color, opacity: level ? 0.16 : 0.09 },
        shape: { points: [...band.map(([x, low]) => api.coord([x, low])), ...[...band].reverse().map(([x, , high]) => api.coord([x, high]))] },
      }),
    }));
    series.push({
      type: "line", name: line.name, data: line.points, showSymbol: false, color, lineStyle: { width: 2, type: ["solid", "dashed", "dotted"][at % 3] },
    });
  });
  const ends = subject.lines.flatMap((line) => line.bands.flat().flatMap(([, low, high]) => [low, high]).concat(line.points.map(([, y]) => y)));
  const over = withLegend(paint, subject.lines.map((line) => line.name));
  const last = Math.max(...subject.lines.map((line) => line.points[line.points.length - 1][0]));
  return {
    height: 290 + over.top,
    option: {
      legend: over.legend, grid: { left: 56, right: 16, top: over.top, bottom: 44 },
      xAxis: numberAxis(paint, subject.x, { min: 1, max: last, minInterval: 1, axisLabel: { ...withoutEnds(paint), showMinLabel: true } }),
      yAxis: scoreAxis(paint, subject.y, roundAxis(ends, subject.limits)),
      tooltip: { renderMode: "richText", confine: true, trigger: "axis", valueFormatter: (value) => short(value) },
      series,
    },
  };
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
    const color = MODES[line.mode] ?? paint.point;
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
      const color = MODES[point.mode] ?? paint.point;
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

const withLabels = (paint, { axisLabel = {} }) => ({ axisLabel: { color: paint.ink, hideOverlap: true, formatter: short, ...axisLabel } });

/* A hyperparameter's axis: categories, or numbers in the range of the space, logarithmic if the range is. */
function searchedAxis(axis, values, paint) {
  if (axis.values.length) return { type: "category", data: axis.values, boundaryGap: true, axisLabel: { color: paint.ink } };
  const numbers = values.filter((value) => typeof value === "number");
  if (numbers.length < values.filter((value) => value !== null).length) {
    return { type: "category", data: [...new Set(values.filter((value) => value !== null).map(String))], axisLabel: { color: paint.ink } };
  }
  const low = axis.low ?? Math.min(...numbers);
  const high = axis.high ?? Math.max(...numbers);
  const log = axis.log && low > 0;
  return {
    type: log ? "log" : "value", min: low, max: high > low ? high : low + (Math.abs(low) || SMALLEST_RANGE), scale: true,
    ...withLabels(paint, log ? logAxis(low, high) : { axisLabel: {} }),
  };
}

function parallel(cell, paint) {
  const axes = cell.axes;
  const vertical = paint.width / (axes.length + 1) < NARROW_AXIS;
  const rows = cell.rows;
  const scores = cell.lines.map((row) => cell.scale * rows.dev[row]);
  const value = (at, row) => rows.settings[at][row] ?? "-";
  const lines = cell.lines.map((row, place) => [...axes.map((_, at) => value(at, row)), scores[place]]);
  const line = { lineStyle: { color: paint.ink } };
  const each = axes.map((axis, at) => ({
    dim: at, name: axis.name, ...searchedAxis(axis, rows.settings[at], paint), axisLine: line, axisTick: line,
  }));
  each.push({
    dim: axes.length, name: cell.score, type: "value", scale: true, ...roundAxis(scores, cell.limits), axisLine: line, axisTick: line,
    axisLabel: { color: paint.ink, formatter: short },
  });
  if (!vertical) [each[0].nameTextStyle, each.at(-1).nameTextStyle] = [{ align: "left" }, { align: "right" }];  // not past the edges
  const shades = paint.dark ? ["#66778c", "#6b9fe6", "#d6e6ff"] : ["#b3c1d1", "#5b8fd0", "#123a73"];
  return {
    height: vertical ? 70 * each.length + 40 : 340,
    option: {
      parallel: {
        layout: vertical ? "vertical" : "horizontal", left: vertical ? 20 : 70, right: vertical ? 30 : 60, top: vertical ? 30 : 46, bottom: 30,
        parallelAxisDefault: {
          nameLocation: vertical ? "start" : "end", nameGap: vertical ? 8 : 18,
          nameTextStyle: { color: paint.ink, fontWeight: "bold", ...(vertical ? { align: "left", verticalAlign: "bottom", padding: [0, 0, 8, 8] } : { width: paint.width / each.length - 12, overflow: "truncate" }) },
        },
      },
      parallelAxis: each,
      visualMap: { show: false, dimension: axes.length, min: Math.min(...scores), max: Math.max(...scores), inRange: { color: shades }, seriesIndex: 0 },
      series: [
        { type: "parallel", data: lines.slice(1), lineStyle: { width: 1, opacity: lines.length > 100 ? 0.4 : 0.8 } },
        { type: "parallel", data: lines.slice(0, 1), lineStyle: { width: 4, color: paint.best, opacity: 1 } },
      ],
      tooltip: { show: false },
    },
  };
}

function scatter(cell, paint) {
  const rows = cell.rows;
  const wide = Math.max(1, Math.min(cell.axes.length, Math.floor(paint.width / 290)));
  const [across, down, gap] = [paint.width / wide, 210, 54];
  const option = { grid: [], xAxis: [], yAxis: [], series: [] };
  cell.axes.forEach((axis, at) => {
    const [column, row] = [at % wide, Math.floor(at / wide)];
    option.grid.push({ left: column * across + gap, top: row * down + 14, width: across - gap - 24, height: down - 66 });
    const found = searchedAxis(axis, rows.settings[at], paint);
    const each = (across - gap - 24) / (found.data?.length || 1);
    const label = found.data && found.data.length <= MOST_WHOLE ? { interval: 0, width: each - 4, overflow: "truncate" } : { hideOverlap: true, formatter: short };
    option.xAxis.push({ ...numberAxis(paint, axis.name), ...found, gridIndex: at, axisLabel: { ...found.axisLabel, ...label } });
    option.yAxis.push(scoreAxis(paint, column === 0 ? cell.score : "", { gridIndex: at, nameGap: 34, ...roundAxis(cell.points.map((one) => cell.scale * rows.dev[one]), cell.limits) }));
    const drawn = cell.points.filter((one) => rows.settings[at][one] !== null);
    const value = (one) => [rows.settings[at][one], cell.scale * rows.dev[one], rows.number[one]];
    option.series.push({
      type: "scatter", xAxisIndex: at, yAxisIndex: at, symbolSize: drawn.length > 300 ? 4 : 7, itemStyle: { color: paint.point, opacity: drawn.length > 300 ? 0.45 : 0.75 },
      data: drawn.filter((one) => one !== cell.lines[0]).map(value),
    }, {
      type: "scatter", xAxisIndex: at, yAxisIndex: at, symbol: "diamond", symbolSize: 13, itemStyle: { color: paint.best }, z: 3,
      data: drawn.filter((one) => one === cell.lines[0]).map(value),
    });
  });
  option.tooltip = { renderMode: "richText", confine: true, formatter: (item) => `trial ${item.value[2]}\n${short(item.value[0])}: dev ${short(item.value[1])}` };
  return { height: down * Math.ceil(cell.axes.length / wide), option };
}

function learning(cell, paint) {
  const best = cell.lines[0];
  const last = Math.max(1, ...cell.curves.map(([, curve]) => (curve.length ? curve[curve.length - 1][0] : 1)));
  const series = cell.curves.map(([row, curve]) => ({
    type: "line", name: `trial ${cell.rows.number[row]}`, symbol: "circle", symbolSize: curve.length > 1 ? 3 : 6, z: row === best ? 3 : 2,
    color: row === best ? paint.best : paint.point, lineStyle: { width: row === best ? 3.5 : 1, opacity: row === best ? 1 : 0.6 },
    itemStyle: { opacity: row === best ? 1 : 0.6 }, data: curve.filter(([, score]) => score !== null).map(([epoch, score]) => [epoch, cell.scale * score]),
  }));
  return {
    height: 320,
    option: {
      grid: { left: 56, right: 24, top: 14, bottom: 44 }, series,
      xAxis: numberAxis(paint, "epoch", { min: last > 1 ? 1 : 0, max: Math.max(2, last), minInterval: 1 }), yAxis: scoreAxis(paint, cell.score, roundAxis(series.flatMap((one) => one.data.map(([, y]) => y)), cell.limits)),
      tooltip: { renderMode: "richText", confine: true, formatter: (item) => `${item.seriesName}, epoch ${item.value[0]}: dev ${short(item.value[1])}` },
    },
  };
}

function residuals(cell, paint) {
  return {
    height: 320,
    option: {
      grid: { left: 56, right: 24, top: 14, bottom: 44 }, xAxis: numberAxis(paint, "gold"), yAxis: scoreAxis(paint, "predicted − gold"),
      tooltip: { renderMode: "richText", confine: true, formatter: (item) => `gold ${short(item.value[0])}: ${short(item.value[1])} off` },
      series: [{
        type: "scatter", symbolSize: 5, itemStyle: { color: paint.point, opacity: 0.6 },
        data: cell.residuals.map(([gold, predicted]) => [gold, predicted - gold]),
        markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: paint.quiet, type: "solid" }, data: [{ yAxis: 0 }] },
      }],
    },
  };
}
