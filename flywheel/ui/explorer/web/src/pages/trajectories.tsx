import type { ColDef, IDatasource } from "ag-grid-community";
import { useMemo, useState } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { get, type Row, useAnswer, useStanding } from "../api";
import { Filters } from "../filters";
import { element, Grid } from "../grid";
import { CopyLink, count, Empty, Failure, label, short, useNarrow, when } from "../parts";

// What leads to a list that is asked for often.
const SAVED: [string, string][] = [
  ["All", ""],
  ["Verified rollouts", "?where=stage:is:rollout&where=success:is:true"],
  ["Failed rollouts", "?where=stage:is:rollout&where=success:is:false&sort=-steps"],
  ["Recordings", "?where=source:is:recording"],
  ["Evaluations", "?where=stage:is:evaluate"],
  ["Set aside", "?where=destination:is:quarantine"],
];

export function Trajectories() {
  const url = useAddress();
  const standing = useStanding();
  const narrow = useNarrow();
  const [told, tell] = useState<{ total?: number; error?: string; loading: boolean }>({ loading: true });
  const query = new URLSearchParams(url.search);
  const sort = query.get("sort") ?? "";
  const asked = new URLSearchParams([...query].filter(([name]) => ["where", "q", "in", "sort"].includes(name))).toString();
  const columns = useAnswer<Row[]>("/api/columns").data ?? [];

  const source = useMemo<IDatasource>(
    () => ({
      getRows({ startRow, endRow, successCallback, failCallback }) {
        tell((before) => ({ ...before, loading: true }));
        get(`/api/trajectories?${asked}&offset=${startRow}&limit=${endRow - startRow}`).then(
          ({ rows, total }) => {
            tell({ total, loading: false });
            successCallback(rows, total);
          },
          (error) => {
            tell({ error: error.message, loading: false });
            failCallback();
          },
        );
      },
    }),
    [asked],
  );

  const search = (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    go(withValues(url, { q: String(form.get("q")), in: form.get("in") === "both" ? null : String(form.get("in")) }));
  };
  const saved = `?${asked}`;

  return (
    <>
      <div class="head">
        <h1>Trajectories</h1>
        <p class="soft" role="status">
          {told.error ? "" : told.total === undefined ? "counting …" : `${count(told.total)} ${asked ? "found" : "in the store"}`}
        </p>
        <span class="push" />
        <CopyLink />
      </div>
      <nav class="saved" aria-label="Lists that are asked for often">
        {SAVED.map(([name, link]) => (
          <a href={`/trajectories${link}`} aria-current={(link || "?") === decodeURIComponent(saved) ? "true" : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <form class="search" role="search" onSubmit={search}>
        <input type="search" name="q" aria-label="Search for" placeholder="Search for words" defaultValue={query.get("q") ?? ""} key={query.get("q")} maxLength={400} />
        <select name="in" aria-label="Search in" defaultValue={query.get("in") ?? "both"}>
          <option value="both">in instructions and thoughts</option>
          <option value="instructions">in instructions</option>
          <option value="thoughts">in thoughts</option>
        </select>
        <button>Search</button>
      </form>
      <Filters columns={columns} chosen={query.getAll("where")} choose={(where) => go(withValues(url, { where }))} />
      {told.error && <Failure error={told.error} />}
      {told.total === 0 && !told.error && (
        <Empty>
          {asked ? (
            <>
              Nothing in the store is like that. <a href="/trajectories">Show all trajectories</a>
            </>
          ) : (
            <>
              No trajectory has been written yet. <code>flywheel run</code> makes some; they appear here as it writes them.
            </>
          )}
        </Empty>
      )}
      <div class="fills" hidden={told.total === 0 || !!told.error}>
        <Grid
          name="Trajectories"
          columns={narrow ? NARROW : WIDE}
          header={!narrow}
          rowHeight={narrow ? 104 : 60}
          source={source}
          again={standing}
          sort={sort}
          onSort={(sort) => go(withValues(url, { sort }), true)}
          onOpen={(row) => go(place(row))}
        />
      </div>
    </>
  );
}

const place = (row: Row) => `/trajectories/${encodeURIComponent(row.trajectory_id)}`;

function thumbnail(row?: Row): HTMLElement {
  if (!row) return element("span");
  if (!row.screen) return element("span", { class: "thumb none", title: "It has no screen" });
  const image = element("img", { class: "thumb", alt: "", loading: "lazy", src: `/thumbnails/${row.iteration}/${row.screen}` });
  image.addEventListener("error", () => image.replaceWith(element("span", { class: "thumb none", title: "Its screen cannot be shown" })));
  return image;
}

function title(row?: Row): HTMLElement {
  if (!row) return element("span", { class: "soft" }, "…");
  return element("a", { href: place(row), title: row.instruction ?? "" }, row.instruction || row.trajectory_id);
}

function verdict(row?: Row): HTMLElement {
  if (!row) return element("span");
  const [text, tone] = row.success === true ? ["V = 1", "good"] : row.success === false ? ["V = 0", "bad"] : ["no V", "other"];
  return element("span", { class: `pill ${tone}` }, text);
}

function store(row?: Row): HTMLElement {
  if (!row?.destination) return element("span", { class: "soft" }, row ? "–" : "");
  return element("span", { class: `pill toned tone-${row.destination}` }, row.destination === "quarantine" ? "quarantine" : row.destination.toUpperCase());
}

const text = (field: string, headerName: string, width: number, more: ColDef<Row> = {}): ColDef<Row> => ({
  field,
  headerName,
  width,
  valueFormatter: ({ value, data }) => (data ? short(value) : ""),
  ...more,
});

const WIDE: ColDef<Row>[] = [
  { colId: "screen", headerName: "Screen", width: 84, sortable: false, cellRenderer: ({ data }: { data?: Row }) => thumbnail(data) },
  { field: "instruction", headerName: "Instruction", minWidth: 240, flex: 1, cellRenderer: ({ data }: { data?: Row }) => title(data) },
  { field: "success", headerName: "Verdict", width: 92, cellRenderer: ({ data }: { data?: Row }) => verdict(data) },
  text("score", "Score", 84),
  { field: "destination", headerName: "Store", width: 108, cellRenderer: ({ data }: { data?: Row }) => store(data) },
  text("iteration", "Iteration", 96, { valueFormatter: ({ value }) => (value == null ? "" : label(value)) }),
  text("stage", "Stage", 112),
  text("domain", "Domain", 100),
  text("world", "World", 104),
  text("template", "Template", 120),
  text("level", "Level", 78),
  text("sample", "Sample", 88),
  text("steps", "Steps", 82),
  text("reward", "Reward", 92),
  text("status", "Status", 112),
  text("reason", "Reason", 240),
  text("started_at", "Started", 168, { valueFormatter: ({ value, data }) => (data ? when(value) : "") }),
  text("seconds", "Seconds", 94),
  text("policy_version", "Policy", 150),
  text("start_step", "From step", 104),
  text("parent_id", "Began within", 190),
  text("trajectory_id", "Trajectory", 190),
];

const NARROW: ColDef<Row>[] = [
  {
    field: "instruction",
    headerName: "Trajectory",
    flex: 1,
    cellRenderer: ({ data }: { data?: Row }) => {
      const about = data ? `${data.domain} / ${data.world ?? ""} · iteration ${label(data.iteration)} · ${data.stage} · ${data.steps} steps` : "";
      const pills = element("span", { class: "pills" }, verdict(data), ...(data?.destination ? [store(data)] : []));
      return element("div", { class: "row-card" }, thumbnail(data), element("div", {}, title(data), element("span", { class: "soft" }, about), pills));
    },
  },
];
