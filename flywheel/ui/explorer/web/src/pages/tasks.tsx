// The tasks, and the runs of one of them side by side, aligned by the states that they came to.
import { useEffect, useMemo } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { type Row, useAnswer, useStanding } from "../api";
import { CopyLink, Empty, Failure, label, Loading, several, short, Store, Verdict } from "../parts";
import { Screen, StepWords } from "../step";
import { WhatIf } from "../whatif";

export function Tasks() {
  const url = useAddress();
  const one = /^\/tasks\/([^/]+)$/.exec(url.pathname);
  return one ? <Runs id={decodeURIComponent(one[1])} key={one[1]} /> : <List />;
}

const PAGE = 100;

function List() {
  const url = useAddress();
  const q = url.searchParams.get("q") ?? "";
  const offset = Number(url.searchParams.get("offset") ?? 0) || 0;
  const { data, error, loading } = useAnswer<Row[]>(`/api/tasks?q=${encodeURIComponent(q)}&offset=${offset}&limit=${PAGE}`, useStanding());
  return (
    <>
      <div class="head">
        <h1>Tasks</h1>
        <p class="soft">Those first whose runs end differently.</p>
        <span class="push" />
        <CopyLink />
      </div>
      <div class="search" role="search">
        <input type="search" aria-label="Words of the instruction" placeholder="Words of the instruction" value={q} maxLength={400} onInput={(event) => go(withValues(new URL(location.href), { q: event.currentTarget.value, offset: null }), true)} />
      </div>
      {error && <Failure error={error} />}
      {loading && !data && <Loading what="the tasks" />}
      {data && data.length === 0 && <Empty>{q || offset ? "No task is like that." : "No task was played yet."}</Empty>}
      {data && data.length > 0 && (
        <div class="card wide all-tasks">
          <table>
            <thead>
              <tr>
                <th scope="col">Instruction</th>
                <th scope="col" class="left">World</th>
                <th scope="col" class="left">Template</th>
                <th scope="col">Runs</th>
                <th scope="col">V = 1</th>
                <th scope="col">Iterations</th>
              </tr>
            </thead>
            <tbody>
              {data.map((row) => (
                <tr>
                  <td>
                    <a href={`/tasks/${encodeURIComponent(row.task_id)}`}>{row.instruction || row.task_id}</a>
                  </td>
                  <td class="left">
                    {row.domain} / {row.world}
                  </td>
                  <td class="left">{row.template ?? ""}</td>
                  <td>
                    {row.runs}
                    {row.branches > 0 && <span class="soft">, {several(row.branches, "branch", "branches")}</span>}
                  </td>
                  <td>
                    {row.solved} of {row.judged}
                  </td>
                  <td>{row.iterations.map(label).join(", ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Turn offset={offset} n={data?.length ?? 0} most={PAGE} />
    </>
  );
}

function Turn({ offset, n, most, all }: { offset: number; n: number; most: number; all?: number }) {
  const to = (place: number) => go(withValues(new URL(location.href), { offset: place > 0 ? String(place) : null, at: null }));
  const more = all === undefined ? n === most : offset + most < all;
  if (!offset && !more) return null;
  return (
    <div class="choices">
      <button type="button" disabled={!offset} onClick={() => to(offset - most)}>
        The {most} before
      </button>
      <button type="button" disabled={!more} onClick={() => to(offset + most)}>
        The next {most}
      </button>
    </div>
  );
}

const FILTERS = ["iteration", "model", "source"];

function Runs({ id }: { id: string }) {
  const url = useAddress();
  const asked = new URLSearchParams([...FILTERS, "offset"].flatMap((name) => (url.searchParams.get(name) ? [[name, url.searchParams.get(name)!]] : [])));
  const standing = useStanding();
  const { data, error, loading } = useAnswer(`/api/tasks/${encodeURIComponent(id)}/runs?${asked}`, standing);
  useEffect(() => {
    document.title = `${data?.task.instruction ?? id} · ${document.body.dataset.workspace}`;
  }, [data, id]);
  if (error) {
    return (
      <>
        <h1>Task</h1>
        <Failure error={error} />
        <p>
          <a href="/tasks">All tasks</a>
        </p>
      </>
    );
  }
  if (loading || !data) return <Loading what="the runs" />;
  const { task, choices, runs } = data;
  const choose = (name: string, options: [string, string][], every: string) => (
    <select aria-label={name} value={url.searchParams.get(name) ?? ""} onChange={(event) => go(withValues(url, { [name]: event.currentTarget.value, offset: null, at: null }))}>
      <option value="">{every}</option>
      {options.map(([value, text]) => (
        <option value={value}>{text}</option>
      ))}
    </select>
  );
  return (
    <>
      <div class="head">
        <h1>{task.instruction || task.task_id}</h1>
        <span class="push" />
        <CopyLink />
      </div>
      <p class="soft">
        {task.domain} / {task.world} · {task.template} · <code>{task.task_id}</code>
      </p>
      <div class="choices">
        {choose("iteration", choices.iterations.map((k: number) => [String(k), `iteration ${label(k)}`]), "all iterations")}
        {choose("model", choices.models.map((row: Row) => [row.digest, row.model ?? row.digest.slice(0, 12)]), "all models")}
        {choose("source", choices.sources.map((name: string) => [name, name]), "all sources")}
        <p class="soft small">
          {choices.chosen > choices.most ? `${several(runs.length, "run")} of ${choices.chosen}` : several(runs.length, "run")}
          {choices.chosen < choices.all && `, ${choices.all} in all`}
        </p>
      </div>
      <Turn offset={choices.offset} n={runs.length} most={choices.most} all={choices.chosen} />
      {runs.length ? <SideBySide data={data} /> : <Empty>{choices.chosen ? "No step of these runs is here: they were pruned, or crashed." : "No run is like that."}</Empty>}
      {runs.length > 0 && data.without_steps.length > 0 && <p class="soft small">Without steps, and so not shown: {data.without_steps.join(", ")}.</p>}
    </>
  );
}

interface Cell {
  state: number;
  // Of the first run of the cell, and how many runs beside one another it covers.
  first: number;
  runs: number;
}

// The cells of each level: states that neighbours share are one cell; null where a run is not in a state of that level.
function layOut(data: Row): { grid: (number | undefined)[][]; begins: number[]; ends: number[] } {
  const grid: (number | undefined)[][] = Array.from({ length: data.levels }, () => []);
  const begins: number[] = [];
  const ends: number[] = [];
  data.states.forEach((state: Row, number: number) => {
    for (const [run] of state.places) {
      grid[state.level][run] = number;
      begins[run] = Math.min(begins[run] ?? Infinity, state.level);
      ends[run] = Math.max(ends[run] ?? 0, state.level);
    }
  });
  return { grid, begins, ends };
}

function cellsOf(row: (number | undefined)[], level: number, begins: number[], ends: number[]): (Cell & { gap?: "waits" | "over" })[] {
  const cells: (Cell & { gap?: "waits" | "over" })[] = [];
  for (let run = 0; run < ends.length; run++) {
    const state = row[run] ?? -1;
    const gap = state >= 0 ? undefined : level > begins[run] && level < ends[run] ? "waits" : "over";
    const last = cells.at(-1);
    if (last && last.state === state && last.gap === gap && gap !== "waits") last.runs++;
    else cells.push({ state, first: run, runs: 1, gap });
  }
  return cells;
}

const plain = (state: Row, data: Row) => state.ways_in === 1 && state.ways_out === 1 && state.places.every(([run, step]: number[]) => step > 0 && step < data.steps[run].length);
const numbers = (runs: number[]) => runs.map((run) => run + 1).join(", ");

function SideBySide({ data }: { data: Row }) {
  const url = useAddress();
  const { grid, begins, ends } = useMemo(() => layOut(data), [data]);
  const folded = url.searchParams.has("forks");
  const [name, step] = (url.searchParams.get("at") ?? "").split(":");
  const run = Math.max(data.runs.findIndex((row: Row) => row.trajectory_id === name), 0);
  const found = data.states.findIndex((state: Row) => state.places.some(([r, n]: number[]) => r === run && String(n) === step));
  const at = found >= 0 ? found : grid[0][run] ?? 0;
  const level = data.states[at].level;
  const placeOf = (state: number, run: number): number[] => data.states[state].places.find(([r]: number[]) => r === run) ?? data.states[state].places[0];
  const select = (state: number, run: number) => {
    const [r, n] = placeOf(state, run);
    go(withValues(new URL(location.href), { at: `${data.runs[r].trajectory_id}:${n}` }), true);
  };
  const shown = useMemo(() => grid.map((row) => !folded || row.some((state) => state !== undefined && !plain(data.states[state], data))), [grid, folded, data]);

  // What the address names is in sight.
  useEffect(() => {
    const place = document.getElementById("runs")!;
    const cell = place.querySelector<HTMLElement>("[aria-current=step]")?.closest("td");
    if (cell && (cell.offsetTop > place.clientHeight || cell.offsetLeft > place.clientWidth)) place.scrollTo(Math.max(cell.offsetLeft - place.clientWidth / 2, 0), cell.offsetTop - place.clientHeight / 2);
  }, [data]);

  const press = (event: KeyboardEvent) => {
    const ways: Record<string, [number, number]> = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
    const way = ways[event.key];
    if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    let [l, r] = [level, run];
    const here = grid[level][run];
    do [l, r] = [l + way[0], r + way[1]];
    while (l >= 0 && l < grid.length && r >= 0 && r < ends.length && (grid[l][r] === undefined || grid[l][r] === here || !shown[l]));
    const to = grid[l]?.[r];
    if (to === undefined) return;
    select(to, r);
    // Its cell is drawn under the first of the neighbours that share it.
    let first = r;
    while (first > 0 && grid[l][first - 1] === to) first--;
    requestAnimationFrame(() => document.getElementById(`c${l}-${first}`)?.focus());
  };

  const rows = [];
  let hidden = 0;
  for (let l = 0; l <= grid.length; l++) {
    if (l < grid.length && !shown[l]) {
      hidden++;
      continue;
    }
    if (hidden) {
      rows.push(
        <tr class="hidden">
          <th scope="row">…</th>
          <td colSpan={ends.length}>{several(hidden, "row")} in which every run goes straight on</td>
        </tr>,
      );
      hidden = 0;
    }
    if (l === grid.length) break;
    rows.push(
      <tr key={l}>
        <th scope="row">{l}</th>
        {cellsOf(grid[l], l, begins, ends).map((cell) =>
          cell.gap ? (
            <td colSpan={cell.runs} class={cell.gap} />
          ) : (
            <StateCell data={data} cell={cell} level={l} here={cell.state === at} inside={run >= cell.first && run < cell.first + cell.runs} select={() => select(cell.state, run >= cell.first && run < cell.first + cell.runs ? run : cell.first)} />
          ),
        )}
      </tr>,
    );
  }
  return (
    <div class="side">
      <div>
        <div class="choices">
          <label>
            <input type="checkbox" checked={folded} onChange={(event) => go(withValues(url, { forks: event.currentTarget.checked ? "1" : null }), true)} /> forks, meetings and ends alone
          </label>
          <p class="soft small keys">
            <kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> go from state to state
          </p>
        </div>
        <div class="card wide runs" id="runs" onKeyDown={press} role="region" aria-label="Runs side by side">
          <table>
            <thead>
              <tr>
                <th scope="col">
                  <span class="heard">Row</span>
                </th>
                {data.runs.map((row: Row, n: number) => (
                  <RunHead row={row} n={n} here={n === run} />
                ))}
              </tr>
            </thead>
            <tbody>{rows}</tbody>
          </table>
        </div>
        <p class="soft small">
          A row is a state, its cell what was done in it. A cell over several runs is a state that they share, by its screen; <b class="mark-fork">▾</b> they part there, <b class="mark-meet">▴</b> runs meet there that came different ways. Numbers are log-probabilities of what was sampled, in nats.
        </p>
      </div>
      <Detail data={data} at={at} run={placeOf(at, run)[0]} select={select} />
    </div>
  );
}

function RunHead({ row, n, here }: { row: Row; n: number; here: boolean }) {
  const from = row.parent == null ? row.parent_id && "another one" : `run ${row.parent + 1}`;
  return (
    <th scope="col" class={here ? "here" : undefined}>
      <a href={`/trajectories/${encodeURIComponent(row.trajectory_id)}`} aria-label={`Run ${n + 1}, ${row.trajectory_id}`}>
        {n + 1}
      </a>{" "}
      <Verdict success={row.success} />
      <span class="between">
        {label(row.iteration)} {row.stage}
        {row.source !== "rollout" && row.source !== row.stage ? `, ${row.source}` : ""}
      </span>
      {from && (
        <span class="between">
          of {from} from step {row.start_step ?? 0}
        </span>
      )}
      {row.status !== "completed" && <span class="between">{row.status}</span>}
    </th>
  );
}

interface Done {
  short: string;
  places: number[][];
  step: Row;
}

// What runs did in a state, the commonest first; those that ended there did nothing.
function doneIn(state: Row, data: Row, first = 0, runs = Infinity): { done: Done[]; ended: number[] } {
  const of = new Map<string, Done>();
  const ended: number[] = [];
  for (const [run, n] of state.places) {
    if (run < first || run >= first + runs) continue;
    const step = data.steps[run][n];
    if (!step) ended.push(run);
    else if (of.has(step.short)) of.get(step.short)!.places.push([run, n]);
    else of.set(step.short, { short: step.short, places: [[run, n]], step });
  }
  return { done: [...of.values()].sort((a, b) => b.places.length - a.places.length), ended };
}

function meanLogprob(done: Done, data: Row): string {
  const known = done.places.map(([run, n]) => data.steps[run][n].logprob).filter((one) => one != null);
  return known.length ? (known.reduce((sum, one) => sum + one, 0) / known.length).toFixed(1) : "";
}

const MOST = 3; // different actions in a cell

function StateCell({ data, cell, level, here, inside, select }: { data: Row; cell: Cell; level: number; here: boolean; inside: boolean; select: () => void }) {
  const state = data.states[cell.state];
  const { done, ended } = doneIn(state, data, cell.first, cell.runs);
  const others = state.places.map(([run]: number[]) => run).filter((run: number) => run < cell.first || run >= cell.first + cell.runs);
  const what = [...done.map((one) => `${one.short}${one.places.length > 1 ? `, ${one.places.length} runs` : ""}`), ...(ended.length ? [`${several(ended.length, "run")} ended`] : [])].join("; ");
  const whose = cell.runs === 1 ? `run ${cell.first + 1}` : `runs ${cell.first + 1} to ${cell.first + cell.runs}`;
  const marks = `${state.ways_out > 1 ? ", runs part here" : ""}${state.ways_in > 1 ? ", runs meet here" : ""}${others.length ? `, also run ${numbers(others)}` : ""}`;
  return (
    <td colSpan={cell.runs} class={`${state.ways_out > 1 ? "fork " : ""}${state.ways_in > 1 ? "meet " : ""}${cell.runs > 1 ? "shared" : ""}`}>
      <button type="button" id={`c${level}-${cell.first}`} class={here && inside ? "here" : here ? "same" : undefined} aria-current={here && inside ? "step" : undefined} tabIndex={here && inside ? 0 : -1} onClick={select} aria-label={`Row ${level}, ${whose}: ${what}${marks}`}>
        {state.ways_out > 1 && <b class="mark-fork">▾</b>}
        {state.ways_in > 1 && <b class="mark-meet">▴</b>}
        {done.slice(0, MOST).map((one) => (
          <span class="did">
            {cell.runs > 1 && done.length + ended.length > 1 && <i>{one.places.length}× </i>}
            {one.step.author !== "model" && <i>{one.step.author}: </i>}
            {one.short} <small>{meanLogprob(one, data)}</small>
          </span>
        ))}
        {done.length > MOST && <span class="did soft">and {done.length - MOST} more</span>}
        {[...new Set(ended.map((run) => data.runs[run].success))].map((success) => (
          <span class="did">
            {cell.runs > 1 && <i>{ended.filter((run) => data.runs[run].success === success).length}× </i>}end {success == null ? "" : success ? "V = 1" : "V = 0"}
          </span>
        ))}
        {others.length > 0 && <small class="also"> = {numbers(others)}</small>}
      </button>
    </td>
  );
}

function Detail({ data, at, run, select }: { data: Row; at: number; run: number; select: (state: number, run: number) => void }) {
  const state = data.states[at];
  const row = data.runs[run];
  const n: number = state.places.find(([r]: number[]) => r === run)[1];
  const own = useAnswer(`/api/trajectories/${encodeURIComponent(row.trajectory_id)}`);
  const step = own.data?.steps[n];
  const { done, ended } = useMemo(() => doneIn(state, data), [state, data]);
  const tally = (runs: number[]) => `V = 1 in ${runs.filter((one) => data.runs[one].success).length} of ${runs.length}`;
  const which = (runs: number[]) =>
    runs.map((one, place) => (
      <>
        {place > 0 && ", "}
        <button type="button" class="quiet" aria-pressed={one === run} aria-label={`Run ${one + 1}`} onClick={() => select(at, one)}>
          {one + 1}
        </button>
      </>
    ));
  return (
    <section class="detail" aria-label={`State in row ${state.level}, run ${run + 1}`}>
      <div class="card">
        <h2>
          {several(state.places.length, "run")} in this state{state.ways_in > 1 ? `, by ${state.ways_in} ways` : ""}
          {state.ways_out > 1 ? `, ${state.ways_out} ways on` : ""}
        </h2>
        <ul class="others">
          {done.map((one) => (
            <li>
              {one.short} <span class="soft small">{tally(one.places.map(([r]) => r))}{meanLogprob(one, data) && `; log-probability ${meanLogprob(one, data)}`}; run</span> {which(one.places.map(([r]) => r))}
            </li>
          ))}
          {ended.length > 0 && (
            <li>
              ended here <span class="soft small">{tally(ended)}; run</span> {which(ended)}
            </li>
          )}
        </ul>
      </div>
      {own.error && <Failure error={own.error} />}
      {own.loading && <Loading what="the step" />}
      {own.data && !step && (
        <div class="card">
          <h2>
            Run {run + 1} ended here, {row.status} <Verdict success={row.success} /> <Store name={row.destination} />
          </h2>
          {state.screen && <img class="last" src={`/screens/${state.iteration}/${state.screen}`} alt={`Screen after the last step of run ${run + 1}`} />}
          <p class="soft small">
            After {several(n, "step")}; reward {short(row.reward)}
            {row.error ? `; ${row.error}` : ""}
          </p>
        </div>
      )}
      {step && (
        <>
          <Screen step={step} iteration={own.data.facts.iteration} />
          <StepWords step={step} at={n} of={own.data.steps.length} />
          {data.steps[run][n].still && <p class="soft small">The state after it looks as before.</p>}
          <WhatIf run={row} n={run} step={step} task={data.task.task_id} others={done.filter((one) => one.short !== step.short).flatMap((one) => one.step.action ?? [])} key={`${row.trajectory_id}:${n}`} />
        </>
      )}
    </section>
  );
}
