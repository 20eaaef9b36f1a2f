// What is known of a trajectory besides its steps.
import type { ComponentChildren } from "preact";
import type { Row } from "./api";
import { Revision, Run, useRevisions } from "./record";
import { label, share, short, Store, Verdict, when } from "./parts";

export function About({ data }: { data: Row }) {
  const { facts, task, scores, samples, twins, family } = data;
  const revisions = useRevisions();
  return (
    <div class="about">
      <section class="card">
        <h2>What was decided</h2>
        <dl class="facts">
          <dt>Verdict</dt>
          <dd>
            <Verdict success={facts.success} /> {facts.score == null ? "not scored" : `score ${short(facts.score)}`}
          </dd>
          <dt>Store</dt>
          <dd>{facts.destination ? <><Store name={facts.destination} /> {facts.reason}</> : "not routed"}</dd>
          {scores.map((one: Row) => (
            <>
              <dt>
                <code>{one.scorer}</code>
              </dt>
              <dd>
                {short(one.score)} of {short(one.threshold)} asked{one.detail ? `: ${one.detail}` : ""}
              </dd>
            </>
          ))}
          <dt>Reward</dt>
          <dd>{short(facts.reward)}</dd>
        </dl>
      </section>
      <section class="card">
        <h2>Where it came from</h2>
        <dl class="facts">
          <dt>Trajectory</dt>
          <dd>
            <code>{facts.trajectory_id}</code>
          </dd>
          <dt>Acted</dt>
          <dd>
            {facts.author}, {facts.source}
            {facts.model ? <>, <code>{facts.model}</code></> : facts.policy_version ? <>, <code>{facts.policy_version}</code></> : null}
          </dd>
          <dt>Run</dt>
          <dd>{facts.run_id ? <Run id={facts.run_id}>{facts.run ?? <code>{facts.run_id}</code>}</Run> : "–"}</dd>
          <dt>Revision</dt>
          <dd>
            <Revision iteration={facts.iteration} of={revisions} />
          </dd>
          <dt>Time</dt>
          <dd>
            {when(facts.started_at)}, {short(facts.seconds)} s
          </dd>
          <dt>Trained</dt>
          <dd>{facts.trained_checkpoints.length ? facts.trained_checkpoints.map((one: string) => <><code>{one}</code> </>) : "no checkpoint"}</dd>
          {facts.origin && (
            <>
              <dt>Origin</dt>
              <dd>
                {facts.origin}, {facts.licence}
              </dd>
            </>
          )}
        </dl>
      </section>
      <section class="card">
        <h2>Its task</h2>
        <dl class="facts">
          <dt>Task</dt>
          <dd>
            <a href={`/trajectories?where=task_id:is:${encodeURIComponent(facts.task_id)}`}>
              <code>{facts.task_id}</code>
            </a>
          </dd>
          <dt>Side by side</dt>
          <dd>
            <a href={`/tasks/${encodeURIComponent(facts.task_id)}?at=${encodeURIComponent(facts.trajectory_id)}:0`}>all its runs, by state</a>
          </dd>
          <dt>Template</dt>
          <dd>
            {facts.template ?? "–"}, level {short(facts.level)}, {facts.split ?? "no"} split
          </dd>
          {task && (
            <>
              <dt>Verifier</dt>
              <dd>
                {task.verifier}, threshold {short(task.threshold)}
              </dd>
              <dt>Limit</dt>
              <dd>{short(task.max_steps)} steps</dd>
            </>
          )}
        </dl>
        {task?.params && task.params !== "{}" && (
          <details>
            <summary>Parameters</summary>
            <pre>{pretty(task.params)}</pre>
          </details>
        )}
      </section>
      {family.length > 1 && (
        <section class="card">
          <h2>Its family</h2>
          <p class="soft small">What began within another trajectory, at the step where it branched off: corrections by a solver, episodes of RL from restored starts, counterfactual runs.</p>
          <ul class="tree">
            <Branch of={family[0]} family={family} here={facts.trajectory_id} longest={Math.max(...family.map((row: Row) => row.steps ?? 0), 1)} />
          </ul>
        </section>
      )}
      <Others title="Other samples of the task" id={facts.trajectory_id} rows={samples} none="It is the only one in its iteration.">
        {(row) => `${row.stage}, sample ${short(row.sample)}, ${row.steps} steps${row.start_step ? `, from step ${row.start_step}` : ""}, ${row.status}`}
      </Others>
      <Others title="Near-duplicates" id={facts.trajectory_id} rows={twins} none="None was found.">
        {(row) => `iteration ${label(row.iteration)}: ${share(row.similarity)} of the steps agree, ${row.why}`}
      </Others>
    </div>
  );
}

interface BranchProps {
  of: Row;
  family: Row[];
  here: string;
  // Steps of the longest of the family.
  longest: number;
  depth?: number;
}

// A trajectory with those that began within it. The bar stands for its own steps: those of all begin at the same edge.
function Branch({ of, family, here, longest, depth = 0 }: BranchProps) {
  const inner = family.filter((row) => row.parent_id === of.trajectory_id);
  const from = of.start_step ?? 0;
  const mine = of.trajectory_id === here;
  const known = of.stage != null;
  return (
    <li>
      <div class={mine ? "mine" : undefined}>
        <div style={{ paddingLeft: `${18 * Math.min(depth, 8)}px` }}>
        {known && <Verdict success={of.success} />}{" "}
        {mine || !known ? <code aria-current={mine ? "true" : undefined}>{of.trajectory_id}</code> : <a href={`/trajectories/${encodeURIComponent(of.trajectory_id)}`}><code>{of.trajectory_id}</code></a>}{" "}
        <span class="soft small">
          {known ? `${of.parent_id ? `from step ${from}, ` : ""}${of.source}, iteration ${label(of.iteration)}, ${of.stage}, by ${of.author}, ${of.steps} steps, ${of.status}` : "not here: discarded, pruned, or rolled back"}
        </span>{" "}
        {!mine && known && (
          <a class="small" href={`/compare?a=${encodeURIComponent(here)}&b=${encodeURIComponent(of.trajectory_id)}`} aria-label={`Compare with ${of.trajectory_id}`}>
            compare
          </a>
        )}
        </div>
        {known && (
          <span class="span" aria-hidden="true">
            <i style={{ marginLeft: `${(100 * from) / longest}%`, width: `${(100 * Math.max((of.steps ?? 0) - from, 0)) / longest}%` }} class={of.success ? "good" : of.success === false ? "bad" : ""} />
          </span>
        )}
      </div>
      {inner.length > 0 && (
        <ul>
          {inner.map((row) => (
            <Branch of={row} family={family} here={here} longest={longest} depth={depth + 1} />
          ))}
        </ul>
      )}
    </li>
  );
}

function Others({ title, id, rows, none, children }: { title: string; id: string; rows: Row[]; none: string; children: (row: Row) => ComponentChildren }) {
  return (
    <section class="card">
      <h2>{title}</h2>
      {rows.length === 0 && <p class="soft">{none}</p>}
      <ul class="others">
        {rows.map((row) => (
          <li>
            <Verdict success={row.success} /> <a href={`/trajectories/${encodeURIComponent(row.trajectory_id)}`}><code>{row.trajectory_id}</code></a>{" "}
            <span class="soft small">{children(row)}</span>{" "}
            <a class="small" href={`/compare?a=${encodeURIComponent(id)}&b=${encodeURIComponent(row.trajectory_id)}`} aria-label={`Compare with ${row.trajectory_id}`}>
              compare
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
