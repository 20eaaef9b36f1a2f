import type { ColDef } from "ag-grid-community";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { post, type Row, useAnswer } from "../api";
import { Editor } from "../editor";
import { Grid } from "../grid";
import { CopyLink, count, Empty, Failure, Loading, several, short } from "../parts";
import { Picture } from "../picture";
import { useName } from "../review/name";
import { Saved } from "../saved";

const EXAMPLES: [string, string][] = [
  ["Iterations", "FROM iterations"],
  ["P(V = 1)", "SELECT iteration, domain, p, low, high, scored\nFROM p_v1\nORDER BY iteration, domain"],
  ["Hardest templates", "SELECT world, template, level, tasks, pass_1, pass_k\nFROM template_success\nWHERE iteration = (SELECT max(iteration) FROM template_success)\nORDER BY pass_1, tasks DESC\nLIMIT 20"],
  ["Rewards of RL", "SELECT iteration, stage, step, value\nFROM learning_curves\nWHERE name = 'reward'\nORDER BY iteration, stage, step"],
  ["Set aside", "SELECT reason, count(*) AS n\nFROM quarantine\nGROUP BY ALL\nORDER BY n DESC"],
];

interface Result {
  columns: Row[];
  rows: number;
  cut: boolean;
  plan: boolean;
  seconds: number;
  data: unknown[][];
}

export function Sql() {
  const url = useAddress();
  const asked = url.searchParams.get("sql") ?? "";
  const wanted = url.searchParams.get("saved") ?? "";
  const [kept, keep] = useState(0);
  const saved = useAnswer<Row[]>("/api/queries", kept);
  const open = saved.data?.find((one) => one.name === wanted);
  const [reviewer, setReviewer] = useName();
  const shown = useRef(""); // the saved query that the editor was given
  const [given, give] = useState({ is: asked || EXAMPLES[0][1] });
  const text = useRef(given.is); // what is typed: no reason to draw the page anew
  const [changed, change] = useState(false); // whether that is another query than the saved one that is open
  const [state, set] = useState<{ result?: Result; error?: string; at?: "query" | "export" }>({});
  const [picture, draw] = useState(false);
  const names = useAnswer<Row[]>("/api/sql/names").data;
  const running = useRef<AbortController>(undefined);

  const run = async (sql = text.current) => {
    running.current?.abort();
    const asking = (running.current = new AbortController());
    set((before) => ({ ...before, error: undefined, at: "query" }));
    const saves = open && sql.trim() === open.sql;
    change(!saves);
    go(withValues(new URL(location.href), { sql: saves ? null : sql }), true);
    try {
      const result = await (await post("/api/sql", { sql, form: "json" }, asking.signal)).json();
      set({ result });
    } catch (error) {
      if (!asking.signal.aborted) set({ error: (error as Error).message });
    }
  };
  useEffect(() => {
    if (asked) run(asked);
    return () => running.current?.abort();
  }, []);

  const put = (sql: string) => {
    text.current = sql;
    give({ is: sql });
    run(sql);
  };
  // The link of a saved query puts it into the editor; an address that has a text too keeps that.
  useEffect(() => {
    if (!wanted || asked) shown.current = "";
    if (!wanted || shown.current === wanted || !saved.data) return;
    if (!open) return set({ error: `No query is saved as ${wanted}: it was renamed or deleted.` });
    if (asked) return change(text.current.trim() !== open.sql);
    shown.current = wanted;
    put(open.sql);
  }, [wanted, asked, saved.data]);
  const example = (sql: string) => {
    go(withValues(new URL(location.href), { saved: null, sql }), true);
    put(sql);
  };

  const save = async (form: "csv" | "parquet") => {
    set((before) => ({ ...before, error: undefined, at: "export" }));
    try {
      const response = await post("/api/sql", { sql: text.current, form });
      const told = JSON.parse(response.headers.get("x-result")!);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await response.blob());
      link.download = `result.${form}`;
      link.click();
      URL.revokeObjectURL(link.href);
      set(({ result }) => ({ result, error: told.cut ? `The file holds the first ${count(told.rows)} rows: more is not exported at once. \`flywheel query\` has no such limit.` : undefined }));
    } catch (error) {
      set(({ result }) => ({ result, error: (error as Error).message }));
    }
  };

  const { result, error, at } = state;
  const columns = useMemo<ColDef<Row>[]>(() => (result ? result.columns.map(column) : []), [result]);
  const rows = useMemo<Row[]>(() => result?.data.map((row) => Object.fromEntries(row.map((value, n) => [`c${n}`, value]))) ?? [], [result]);
  const named = useMemo<Row[]>(() => result?.data.map((row) => Object.fromEntries(row.map((value, n) => [result.columns[n].name, value]))) ?? [], [result]);

  return (
    <>
      <div class="head">
        <h1>SQL</h1>
        <p class="soft">Read-only, over all tables and views of the workspace</p>
        <span class="push" />
        <CopyLink />
      </div>
      <div class="saved" role="group" aria-label="Examples">
        {EXAMPLES.map(([name, sql]) => (
          <button type="button" onClick={() => example(sql)}>
            {name}
          </button>
        ))}
      </div>
      {saved.error && <Failure error={saved.error} />}
      {!!saved.data?.length && (
        <nav class="saved" aria-label="Saved queries">
          {saved.data.map((one) => (
            <a href={`/sql?saved=${one.name}`} title={one.description || undefined} aria-current={one === open ? "true" : undefined}>
              {one.name}
            </a>
          ))}
        </nav>
      )}
      <div class="desk">
        <div>
          <Editor text={given} names={names} onChange={(typed) => ((text.current = typed), change(!!open && typed.trim() !== open.sql))} onRun={() => run()} />
          <div class="choices">
            <button type="button" class="main" onClick={() => run()} disabled={at === "query"}>
              Run
            </button>
            <span class="soft small">
              <kbd>Ctrl</kbd> <kbd>Enter</kbd> runs, <kbd>Ctrl</kbd> <kbd>Space</kbd> completes
            </span>
            <span class="push" />
            <button type="button" onClick={() => save("csv")} disabled={!result || !!at}>
              Export CSV
            </button>
            <button type="button" onClick={() => save("parquet")} disabled={!result || !!at}>
              Export Parquet
            </button>
          </div>
          <Saved
            open={open}
            changed={changed}
            sql={() => text.current}
            reviewer={reviewer}
            setReviewer={setReviewer}
            onSaved={(name) => {
              shown.current = name;
              change(false);
              go(withValues(new URL(location.href), name ? { saved: name, sql: null } : { saved: null, sql: text.current }), true);
              keep(kept + 1);
            }}
          />
        </div>
        {useMemo(() => <Names names={names} />, [names])}
      </div>
      {error && <Failure error={error} />}
      {at && <Loading what={at === "query" ? "the result" : "the file"} />}
      {result && !at && (
        <section aria-label="Result">
          <div class="choices">
            <p role="status" class="soft">
              {result.plan ? "How it would be answered" : result.cut ? `The first ${several(result.rows, "row")}; there are more` : several(result.rows, "row")}, {result.seconds} s
            </p>
            <span class="push" />
            {result.rows > 0 && !result.plan && (
              <div role="group" aria-label="Show as" class="either">
                <button type="button" aria-pressed={!picture} onClick={() => draw(false)}>
                  Table
                </button>
                <button type="button" aria-pressed={picture} onClick={() => draw(true)}>
                  Picture
                </button>
              </div>
            )}
          </div>
          {result.rows === 0 ? (
            <Empty>The query has an answer, and it has no rows.</Empty>
          ) : result.plan ? (
            <pre class="plan" tabIndex={0} aria-label="Plan">
              {result.data.map(([line]) => line).join("\n")}
            </pre>
          ) : picture ? (
            <Picture columns={result.columns} rows={named} />
          ) : (
            <div class="result">
              <Grid name="Result" columns={columns} rows={rows} rowHeight={32} />
            </div>
          )}
        </section>
      )}
    </>
  );
}

function column({ name, type }: Row, n: number): ColDef<Row> {
  const number = /^(u?int|float|double|decimal)/.test(type);
  return {
    colId: `c${n}`,
    field: `c${n}`,
    headerName: name,
    width: Math.min(Math.max(90, 9 * name.length + 40, number ? 100 : 170), 320),
    cellClass: number ? "number" : undefined,
    valueFormatter: ({ value }) => short(value),
  };
}

// The tables and views with their columns, for whoever does not know them by heart.
function Names({ names }: { names?: Row[] }) {
  const [open, setOpen] = useState(false);
  const tables = useMemo(() => {
    const found = new Map<string, Row[]>();
    for (const row of names ?? []) found.get(row.table)?.push(row) ?? found.set(row.table, [row]);
    return [...found];
  }, [names]);
  return (
    <details class="names card" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Tables and views</summary>
      {open && !names && <Loading what="them" />}
      {(open ? tables : []).map(([table, columns]) => (
        <details>
          <summary>
            <code>{table}</code>
          </summary>
          {columns[0].about && <p class="soft small">{columns[0].about}</p>}
          <ul>
            {columns.map((one) => (
              <li>
                <code>{one.name}</code> <span class="soft small">{one.type.toLowerCase()}{one.meaning ? `: ${one.meaning}` : ""}</span>
              </li>
            ))}
          </ul>
        </details>
      ))}
    </details>
  );
}
