// What the pictures of iterations are made of, as options of the charts.
import type { Row } from "./api";
import { axis, colour, type Colours } from "./chart";
import { label } from "./parts";

type Option = (colours: Colours) => Record<string, unknown>;

const percent = (value: number) => `${Math.round(100 * value)}%`;
const unique = <T>(values: T[]): T[] => [...new Set(values)];

// Rows of another workspace that is laid over this one have its name as `of`.
const named = (row: Row, name: string) => (row.of ? `${name} · ${row.of}` : name);
const iterationOf = (row: Row) => named(row, label(row.iteration));

export const beside = (own: Row[], theirs: Row[] | undefined, of: string | undefined): Row[] => (theirs ? [...own, ...theirs.map((row) => ({ ...row, of }))] : own);

// A line a domain over the iterations, with the interval of each point.
export function overTime(rows: Row[], value: string, low: string, high: string, signed = false): Option {
  const numbers = unique(rows.map((row) => row.iteration)).sort((a, b) => a - b);
  const domains = unique(rows.map((row) => row.domain)).sort((a, b) => (a === "all" ? -1 : b === "all" ? 1 : a < b ? -1 : 1));
  const lines = unique(rows.map((row) => row.of ?? "")).flatMap((of) => domains.map((domain) => ({ of, domain })));
  return (colours) => ({
    xAxis: axis(colours, { type: "category", data: numbers.map(label), splitLine: { show: false } }),
    yAxis: axis(colours, { type: "value", axisLabel: { color: colours.soft, fontSize: 11.5, formatter: percent }, ...(signed ? { scale: true } : { min: 0, max: 1 }) }),
    series: lines.flatMap(({ of, domain }, n) => {
      const own = rows.filter((row) => row.domain === domain && (row.of ?? "") === of && row[value] != null);
      if (!own.length) return [];
      const color = colours.of(domain);
      const at = (row: Row) => numbers.indexOf(row.iteration);
      const name = named({ of }, domain);
      return [
        { type: "line", name, color, symbol: of ? "emptyDiamond" : "circle", symbolSize: 7, lineStyle: { width: domain === "all" ? 2.5 : 1.5, type: of ? "dashed" : "solid" }, data: own.map((row) => [at(row), row[value]]), tooltip: { valueFormatter: (one: number) => percent(one) } },
        whiskers(name, color, own.filter((row) => row[low] != null).map((row) => [at(row), row[low], row[high]]), 5 * (n - (lines.length - 1) / 2)),
      ];
    }),
  });
}

// An upright line from low to high, a little beside the others of its iteration.
function whiskers(name: string, color: string, data: number[][], aside: number) {
  return {
    type: "custom",
    name,
    color,
    data,
    encode: { x: 0, y: [1, 2] },
    tooltip: { show: false },
    silent: true,
    z: 1,
    renderItem: (_: unknown, api: any) => {
      const [x, top] = api.coord([api.value(0), api.value(2)]);
      const foot = api.coord([api.value(0), api.value(1)])[1];
      return { type: "line", shape: { x1: x + aside, x2: x + aside, y1: top, y2: foot }, style: { stroke: color, lineWidth: 1.5, opacity: 0.55 } };
    },
  };
}

// Bars one upon another for each iteration: rows of iteration, name, value.
export function bars(rows: Row[], unit: string): Option {
  const numbers = unique(rows.map((row) => row.iteration)).sort((a, b) => a - b);
  const names = unique(rows.map((row) => row.name));
  const stacks = unique(rows.map((row) => row.of ?? ""));
  const fixed = ["sft", "ct", "quarantine"];
  return (colours) => ({
    grid: { left: 8, right: 14, top: 48, bottom: 4, containLabel: true },
    xAxis: axis(colours, { type: "category", data: numbers.map(label), splitLine: { show: false } }),
    yAxis: axis(colours, { type: "value", name: unit, nameLocation: "end", nameGap: 8 }),
    series: stacks.flatMap((of) => names.map((name, n) => ({
      type: "bar",
      stack: of || "own",
      name: named({ of }, name),
      itemStyle: of ? { opacity: 0.55 } : {},
      color: fixed.includes(name) ? colours.of(name) : colour(colours, n),
      barMaxWidth: 46,
      data: numbers.map((k) => rows.find((row) => row.iteration === k && row.name === name && (row.of ?? "") === of)?.value ?? 0),
      tooltip: { valueFormatter: (value: number) => (Number.isInteger(value) ? String(value) : value.toFixed(1)) },
    }))),
  });
}

// Iterations beside one another, from the tasks down to the stores.
export function funnel(rows: Row[]): Option {
  const names = unique([...rows].sort((a, b) => a.position - b.position).map((row) => row.name)).reverse();
  const each = unique(rows.map(iterationOf));
  return (colours) => ({
    xAxis: axis(colours, { type: "value" }),
    yAxis: axis(colours, { type: "category", data: names.map((name) => name.replaceAll("_", " ")), splitLine: { show: false } }),
    series: each.map((one, n) => ({
      type: "bar",
      name: one,
      color: colour(colours, n),
      data: names.map((name) => rows.find((row) => iterationOf(row) === one && row.name === name)?.rows ?? 0),
    })),
  });
}

export function passes(rows: Row[]): Option {
  const each = unique(rows.map(iterationOf));
  const ks = unique(rows.map((row) => row.k)).sort((a, b) => a - b);
  return (colours) => ({
    xAxis: axis(colours, { type: "category", data: ks, name: "k", nameLocation: "end", splitLine: { show: false } }),
    yAxis: axis(colours, { type: "value", min: 0, max: 1, axisLabel: { color: colours.soft, fontSize: 11.5, formatter: percent } }),
    grid: { left: 8, right: 26, top: 34, bottom: 4, containLabel: true },
    series: each.map((name, n) => ({
      type: "line",
      name,
      color: colour(colours, n),
      symbolSize: 7,
      data: ks.map((one) => rows.find((row) => iterationOf(row) === name && row.k === one)?.pass ?? null),
      tooltip: { valueFormatter: percent },
    })),
  });
}

export function curves(rows: Row[]): Option {
  const lines = new Map<string, Row[]>();
  const domains = unique(rows.map((row) => row.domain));
  for (const row of rows) {
    const name = named(row, domains.length > 1 ? `${label(row.iteration)} ${row.domain}` : label(row.iteration));
    lines.get(name)?.push(row) ?? lines.set(name, [row]);
  }
  return (colours) => ({
    xAxis: axis(colours, { type: "value", name: "step", nameLocation: "middle", nameGap: 24, scale: true, minInterval: 1, splitLine: { show: false } }),
    yAxis: axis(colours, { type: "value", scale: true }),
    grid: { left: 8, right: 14, top: 34, bottom: 24, containLabel: true },
    series: [...lines].map(([name, own], n) => ({ type: "line", name, color: colour(colours, n), showSymbol: own.length < 40, symbolSize: 4, data: own.map((row) => [row.step, row.value]) })),
  });
}
