import { Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { type Row, useAnswer, useStanding } from "../api";
import { Chart } from "../chart";
import { CopyLink, Empty, Failure, label, Loading, share } from "../parts";
import { DataDocs, Revision, Run, useRevisions } from "../record";
import { bars, beside, curves, funnel, overTime, passes } from "../pictures";

const LAID = 3; // iterations that are laid over one another where none are chosen

export function Iterations() {
  const url = useAddress();
  const { data, error, loading } = useAnswer("/api/iterations", useStanding());
  if (error) return <Failure error={error} />;
  if (loading || !data) return <Loading what="the iterations" />;
  if (!data.iterations.length) {
    return (
      <>
        <h1>Iterations</h1>
        <Empty>
          No iteration has begun yet. <code>flywheel run</code> begins one; it appears here as it writes.
        </Empty>
      </>
    );
  }
  const all: number[] = data.iterations.map((row: Row) => row.iteration);
  const named = (url.searchParams.get("of") ?? "").split(",").map(Number);
  const chosen = all.filter((k) => named.includes(k));
  const laid = chosen.length ? chosen : all.slice(-LAID);
  const toggle = (k: number) => {
    const next = laid.includes(k) ? laid.filter((one) => one !== k) : [...laid, k];
    go(withValues(url, { of: next.sort((a, b) => a - b).join(",") }), true);
  };
  return (
    <>
      <div class="head">
        <h1>Iterations</h1>
        <p class="soft">
          Those that are ticked are laid over one another below
          {data.other && <>, and <b>{data.other.name}</b> over them: dashed lines, pale bars</>}
        </p>
        <span class="push" />
        <DataDocs />
        <CopyLink />
      </div>
      <Table data={data} laid={laid} toggle={toggle} />
      <Pictures data={data} laid={laid} />
    </>
  );
}

function Table({ data, laid, toggle }: { data: Row; laid: number[]; toggle: (k: number) => void }) {
  const revisions = useRevisions();
  const [open, show] = useState<number>();
  const domains = [...new Set<string>(data.held_out_success.map((row: Row) => row.domain))].filter((name) => name !== "all");
  return (
    <div class="card wide all" tabIndex={0} role="region" aria-label="All iterations">
      <table>
        <thead>
          <tr>
            <th scope="col">Iteration</th>
            <th scope="col">Tasks</th>
            <th scope="col">Rollouts</th>
            <th scope="col">Recordings</th>
            <th scope="col">P(V = 1)</th>
            <th scope="col">SFT</th>
            <th scope="col">CT</th>
            <th scope="col">Quarantine</th>
            {domains.map((name) => (
              <th scope="col">{name}</th>
            ))}
            <th scope="col">Minutes</th>
            <th scope="col" class="left">Promoted</th>
            <th scope="col" class="left">Run, revision</th>
          </tr>
        </thead>
        <tbody>
          {[...data.iterations].reverse().map((row: Row) => (
           <Fragment key={row.iteration}>
            <tr>
              <th scope="row">
                <label>
                  <input type="checkbox" checked={laid.includes(row.iteration)} onChange={() => toggle(row.iteration)} /> {label(row.iteration)}
                </label>
              </th>
              <td>{row.tasks}</td>
              <td>
                <a href={`/trajectories?where=iteration:is:${row.iteration}&where=stage:is:rollout`}>{row.trajectories}</a>
              </td>
              <td>
                <a href={`/trajectories?where=iteration:is:${row.iteration}&where=source:is:recording`}>{row.recordings}</a>
              </td>
              <td>
                {share(row.p_v1)}
                {row.p_v1 != null && <span class="soft small between">{share(row.p_v1_low)} to {share(row.p_v1_high)}</span>}
              </td>
              <td>{row.to_sft}</td>
              <td>{row.to_ct}</td>
              <td>
                {row.to_quarantine}
                {row.conserved === false && row.to_sft + row.to_ct > 0 && <span class="bad"> not conserved</span>}
              </td>
              {domains.map((name) => (
                <td>{row.held_out_success[name] ? `${share(row.held_out_success[name].before)} → ${share(row.held_out_success[name].after)}` : "–"}</td>
              ))}
              <td>{row.minutes == null ? "–" : row.minutes.toFixed(1)}</td>
              <td class="left">
                {row.promoted == null ? (
                  <span class="soft">not decided</span>
                ) : (
                  <button type="button" class="quiet" aria-expanded={open === row.iteration} onClick={() => show(open === row.iteration ? undefined : row.iteration)}>
                    {row.promoted ? "promoted" : "kept the old"}
                  </button>
                )}
              </td>
              <td class="left">
                {data.runs
                  .filter((run: Row) => run.iteration === row.iteration)
                  .map((run: Row) => (
                    <span class="between" title={`Prefect's run ${run.run_id}`}>
                      <Run id={run.run_id}>{run.name}</Run> {run.state !== "Completed" && <span class="soft small">{run.state}</span>}
                    </span>
                  ))}
                <Revision iteration={row.iteration} of={revisions} />
              </td>
            </tr>
            {open === row.iteration && <Why row={row} columns={11 + domains.length} />}
           </Fragment>
          ))}
        </tbody>
      </table>
    </div>
  );
}

// Across all columns: beside them it would not fit in.
function Why({ row, columns }: { row: Row; columns: number }) {
  return (
    <tr>
      <td class="left why" colSpan={columns}>
        <p class="small">{row.reason || "no reason was given"}</p>
        <p class="small soft">
          The newest is <code>{row.model}</code>. <a href={`/review?show=promotions&iteration=${row.iteration}`}>The decision, and what it rests on</a>
        </p>
      </td>
    </tr>
  );
}

// Its rows, and those of the workspace that is laid over it, which say of which they are.
function both(data: Row): Row {
  const { other } = data;
  const tables = ["iterations", "p_v1", "rises", "held_out_success", "funnel", "minutes", "pass"];
  return { ...data, ...Object.fromEntries(tables.map((name) => [name, beside(data[name], other?.[name], other?.name)])) };
}

function Pictures({ data: own, laid }: { data: Row; laid: number[] }) {
  const data = useMemo(() => both(own), [own]);
  const of = (rows: Row[]) => rows.filter((row) => laid.includes(row.iteration));
  const key = laid.join(",");
  const whose = own.other ? ["of"] : [];
  const stores = useMemo(
    () => data.iterations.flatMap((row: Row) => ["sft", "ct", "quarantine"].map((name) => ({ iteration: row.iteration, of: row.of, name, value: row[`to_${name}`] }))),
    [data],
  );
  const minutes = useMemo(() => data.minutes.map((row: Row) => ({ ...row, name: row.stage, value: row.minutes })), [data]);
  const options = useMemo(
    () => ({
      p: overTime(data.p_v1, "p", "low", "high"),
      success: overTime(data.held_out_success, "after", "after_low", "after_high"),
      rises: overTime(data.rises, "rise", "low", "high", true),
      stores: bars(stores, "rows"),
      minutes: bars(minutes, "minutes"),
    }),
    [data],
  );
  const some = useMemo(() => ({ pass: passes(of(data.pass)), funnel: funnel(of(data.funnel)) }), [data, key]);
  return (
    <div class="pictures">
      {data.p_v1.length > 0 && (
        <Chart title="P(V = 1) on new tasks" note="Rollouts of the newest model, before it trains on them; 95% intervals." option={options.p} columns={[...whose, "iteration", "domain", "p", "low", "high", "scored"]} rows={data.p_v1} />
      )}
      {data.rises.length > 0 && (
        <Chart title="Rise of P(V = 1) on like tasks" note="Beside the iteration before, on templates and levels that both played." option={options.rises} columns={[...whose, "iteration", "domain", "before", "after", "rise", "low", "high", "slots"]} rows={data.rises} />
      )}
      {data.held_out_success.length > 0 && (
        <Chart title="Held-out success" note="Of the merged model; 95% intervals." option={options.success} columns={[...whose, "iteration", "domain", "before", "after", "after_low", "after_high", "n"]} rows={data.held_out_success} />
      )}
      {some.pass && data.pass.length > 0 && (
        <Chart title="pass@k" note="Chance that one of k samples of a task is verified." option={some.pass} columns={[...whose, "iteration", "k", "pass", "tasks"]} rows={of(data.pass)} />
      )}
      <Chart title="From tasks to stores" option={some.funnel} columns={[...whose, "iteration", "name", "rows"]} rows={of(data.funnel)} />
      <Chart title="What went into the stores" option={options.stores} columns={[...whose, "iteration", "name", "value"]} rows={stores} />
      {data.minutes.length > 0 && <Chart title="Minutes of each stage" height={300} option={options.minutes} columns={[...whose, "iteration", "stage", "minutes"]} rows={data.minutes} />}
      {data.curves.length > 0 && <Curves all={[data, data.other ?? {}].flatMap((one) => one.curves ?? [])} laid={laid} other={data.other?.name} />}
    </div>
  );
}

// Those alone that some of these iterations have: where RL was off, it has none.
function Curves({ all, laid, other }: { all: Row[]; laid: number[]; other?: string }) {
  const there = all.filter((row) => row.iterations.some((k: number) => laid.includes(k)));
  const without = all.some((row) => row.stage.startsWith("rl-")) && !there.some((row) => row.stage.startsWith("rl-"));
  return (
    <div>
      {there.length > 0 ? <Curve known={there} laid={laid} other={other} /> : <p class="soft">These iterations have no training curve.</p>}
      {without && <p class="soft small">RL was off in these iterations, so it has no curve here.</p>}
    </div>
  );
}

function Curve({ known, laid, other }: { known: Row[]; laid: number[]; other?: string }) {
  const url = useAddress();
  const standing = useStanding();
  const first = known.find((row) => row.name === "reward") ?? known[0];
  const asked = (url.searchParams.get("curve") ?? `${first.stage}/${first.name}`).split("/");
  const [chosen, setStage] = useState(asked[0]);
  const stage = known.some((row) => row.stage === chosen) ? chosen : first.stage;
  const names = [...new Set<string>(known.filter((row) => row.stage === stage).map((row) => row.name))];
  const name = names.includes(asked[1]) ? asked[1] : names[0];
  const choose = (stage: string, name: string) => (setStage(stage), go(withValues(url, { curve: `${stage}/${name}` }), true));
  const query = laid.map((k) => `iteration=${k}`).join("&");
  const { data: found, error } = useAnswer<{ own: Row[]; theirs: Row[] }>(`/api/curves/${encodeURIComponent(stage)}/${encodeURIComponent(name)}?${query}`, standing);
  const data = useMemo(() => (found ? beside(found.own, found.theirs, other) : []), [found]);
  const option = useMemo(() => curves(data), [data]);
  return (
    <div>
      <div class="choices">
        <label>
          Curve of{" "}
          <select value={stage} onChange={(event) => choose(event.currentTarget.value, name)}>
            {[...new Set(known.map((row) => row.stage))].map((one) => (
              <option value={one}>{one}</option>
            ))}
          </select>
        </label>
        <label>
          figure{" "}
          <select value={name} onChange={(event) => choose(stage, event.currentTarget.value)}>
            {names.map((one) => (
              <option value={one}>{one.replaceAll("_", " ")}</option>
            ))}
          </select>
        </label>
      </div>
      {error ? <Failure error={error} /> : <Chart title={`${stage}: ${name.replaceAll("_", " ")}`} option={option} columns={[...(other ? ["of"] : []), "iteration", "domain", "step", "value"]} rows={data} />}
    </div>
  );
}
