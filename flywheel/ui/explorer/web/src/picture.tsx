// A picture of a result: lines, bars or points of its columns.
import { useMemo, useState } from "preact/hooks";
import type { Row } from "./api";
import { axis, Chart, colour, type Colours } from "./chart";

const MOST = 2000;
const ORDERED = /^(iteration|step|k|.+_at)$/;
const KEYS = /^(iteration|step|k|level|sample|seed)$/; // numbers that name a thing

export function Picture({ columns, rows }: { columns: Row[]; rows: Row[] }) {
  const others = columns.map(({ name }) => name);
  const valuesOf = (name: string) => [...new Set(rows.map((row) => row[name]))].filter((value) => value !== null);
  const numbers = others.filter((name) => valuesOf(name).some((value) => typeof value === "number"));
  const [chosenKind, setKind] = useState<string>();
  const [chosenX, setX] = useState<string>();
  const [chosenY, setY] = useState<string>();
  const [chosenBy, setBy] = useState<string>();
  // Across: what goes on from row to row, else the words that tell most rows apart. Up: what was measured, if it varies.
  const spread = (name: string) => valuesOf(name).length;
  const widest = (names: string[]) => [...names].sort((a, b) => spread(b) - spread(a))[0];
  const ordered = others.filter((name) => ORDERED.test(name));
  const words = others.filter((name) => !numbers.includes(name));
  const x = chosenX && others.includes(chosenX) ? chosenX : (widest(ordered.filter((name) => spread(name) > 1)) ?? widest(words.filter((name) => spread(name) > 1)) ?? ordered[0] ?? words[0] ?? others[0]);
  const measured = numbers.filter((name) => name !== x && !KEYS.test(name));
  const real = measured.filter((name) => columns.some((one) => one.name === name && /^(float|double|decimal)/.test(one.type)));
  const y = chosenY && numbers.includes(chosenY) ? chosenY : (real.find((name) => spread(name) > 1) ?? measured.find((name) => spread(name) > 1) ?? measured[0] ?? numbers[0]);
  const kind = chosenKind ?? (ORDERED.test(x) || numbers.includes(x) ? "line" : "bar");
  // Rows of the same place are of several things: one line for each of them.
  const by = chosenBy ?? (spread(x) < rows.length ? words.find((name) => name !== x && spread(name) > 1 && spread(name) <= 12) : "") ?? "";
  const shown = rows.slice(0, MOST);
  const option = useMemo(() => (colours: Colours) => drawn(colours, kind, x, y, by, shown), [kind, x, y, by, rows]);
  if (!numbers.length) return <p class="soft">A picture needs a column of numbers; this result has none.</p>;
  const choose = (label: string, value: string, set: (value: string) => void, names: string[], none = "") => (
    <label>
      {label}{" "}
      <select value={value} onChange={(event) => set(event.currentTarget.value)}>
        {none && <option value="">{none}</option>}
        {names.map((name) => (
          <option value={name}>{name}</option>
        ))}
      </select>
    </label>
  );
  return (
    <>
      <div class="choices">
        {choose("Draw", kind, setKind, ["line", "bar", "scatter"])}
        {choose("across", x, setX, others)}
        {choose("up", y, setY, numbers)}
        {choose("one for each", by, setBy, others.filter((name) => name !== x && name !== y), "(one)")}
      </div>
      <Chart title={`${y} by ${x}`} note={rows.length > MOST ? `The first ${MOST} rows.` : undefined} height={320} option={option} columns={by ? [by, x, y] : [x, y]} rows={shown} />
    </>
  );
}

function drawn(colours: Colours, type: string, x: string, y: string, by: string, rows: Row[]) {
  const numeric = rows.every((row) => row[x] === null || typeof row[x] === "number") && type !== "bar";
  const names = [...new Set(rows.map((row) => (by ? String(row[by]) : y)))].slice(0, 12);
  return {
    xAxis: axis(colours, { type: numeric ? "value" : "category", name: x, nameLocation: "middle", nameGap: 26, scale: true, minInterval: rows.every((row) => row[x] === null || row[x] % 1 === 0) ? 1 : 0, splitLine: { show: false } }),
    grid: { left: 8, right: 14, top: 34, bottom: 26, containLabel: true },
    yAxis: axis(colours, { type: "value", scale: type !== "bar" }),
    series: names.map((name, n) => ({
      type,
      name,
      color: colour(colours, n),
      symbolSize: type === "scatter" ? 7 : 5,
      data: rows.filter((row) => !by || String(row[by]) === name).map((row) => [numeric ? row[x] : String(row[x]), row[y]]),
    })),
  };
}
