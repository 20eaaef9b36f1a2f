// A picture of a result: lines, bars or points of its columns.
import { useMemo, useState } from "preact/hooks";
import type { Row } from "./api";
import { axis, Chart, colour, type Colours } from "./chart";

const MOST = 2000;

export function Picture({ columns, rows }: { columns: Row[]; rows: Row[] }) {
  const numbers = columns.filter(({ name }) => rows.some((row) => typeof row[name] === "number")).map(({ name }) => name);
  const others = columns.map(({ name }) => name);
  const [kind, setKind] = useState("line");
  const [chosenX, setX] = useState<string>();
  const [chosenY, setY] = useState<string>();
  const [by, setBy] = useState("");
  const x = chosenX && others.includes(chosenX) ? chosenX : (others.find((name) => !numbers.includes(name)) ?? others[0]);
  const y = chosenY && numbers.includes(chosenY) ? chosenY : (numbers.find((name) => name !== x) ?? numbers[0]);
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
    xAxis: axis(colours, { type: numeric ? "value" : "category", name: x, nameLocation: "middle", nameGap: 26, scale: true, splitLine: { show: false } }),
    grid: { left: 8, right: 14, top: 34, bottom: 26, containLabel: true },
    yAxis: axis(colours, { type: "value", name: y, scale: type !== "bar" }),
    series: names.map((name, n) => ({
      type,
      name,
      color: colour(colours, n),
      symbolSize: type === "scatter" ? 7 : 5,
      data: rows.filter((row) => !by || String(row[by]) === name).map((row) => [numeric ? row[x] : String(row[x]), row[y]]),
    })),
  };
}
