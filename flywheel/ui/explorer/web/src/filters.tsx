// Filters on any column: what is chosen, and a form for one more.
import { useState } from "preact/hooks";
import { type Row, useAnswer } from "./api";

const WORDS: Record<string, string> = {
  is: "is",
  not: "is not",
  has: "contains",
  least: "is at least",
  most: "is at most",
  empty: "is empty",
  filled: "is not empty",
};
const OF_KIND: Record<string, string[]> = {
  text: ["is", "not", "has", "empty", "filled"],
  number: ["is", "not", "least", "most", "empty", "filled"],
  truth: ["is", "not", "empty", "filled"],
  time: ["least", "most", "empty", "filled"],
};

interface Props {
  columns: Row[];
  chosen: string[];
  choose: (where: string[]) => void;
}

function inWords(filter: string): string {
  const [column, operator, ...value] = filter.split(":");
  return [column.replaceAll("_", " "), WORDS[operator] ?? operator, value.join(":")].filter(Boolean).join(" ");
}

export function Filters({ columns, chosen, choose }: Props) {
  const [name, setName] = useState("world");
  const [operator, setOperator] = useState("is");
  const [value, setValue] = useState("");
  const [open, setOpen] = useState(false);
  const column = columns.find((one) => one.name === name);
  const operators = OF_KIND[column?.kind ?? "text"];
  const known = useAnswer<Row[]>(open && column ? `/api/values/${name}` : null);
  const bare = operator === "empty" || operator === "filled";
  const used = operators.includes(operator) ? operator : operators[0];

  const add = (event: Event) => {
    event.preventDefault();
    const filter = bare ? `${name}:${used}` : `${name}:${used}:${value}`;
    if (!chosen.includes(filter)) choose([...chosen, filter]);
    setValue("");
  };

  return (
    <div class="filters">
      {chosen.map((filter) => (
        <button type="button" class="chip" onClick={() => choose(chosen.filter((one) => one !== filter))} aria-label={`Remove the filter ${inWords(filter)}`}>
          {inWords(filter)} <span aria-hidden="true">×</span>
        </button>
      ))}
      <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Filter by a column</summary>
        <form onSubmit={add}>
          <select aria-label="Column" value={name} onChange={(event) => setName(event.currentTarget.value)}>
            {columns.map((one) => (
              <option value={one.name}>{one.name.replaceAll("_", " ")}</option>
            ))}
          </select>
          <select aria-label="Comparison" value={used} onChange={(event) => setOperator(event.currentTarget.value)}>
            {operators.map((one) => (
              <option value={one}>{WORDS[one]}</option>
            ))}
          </select>
          {!bare && (
            <>
              <input aria-label="Value" list="known-values" required value={value} onInput={(event) => setValue(event.currentTarget.value)} maxLength={400} />
              <datalist id="known-values">
                {known.data?.map((one) => (
                  <option value={one.value}>{one.n}</option>
                ))}
              </datalist>
            </>
          )}
          <button>Add filter</button>
        </form>
        {column?.meaning && <p class="soft">{column.meaning}</p>}
      </details>
    </div>
  );
}
