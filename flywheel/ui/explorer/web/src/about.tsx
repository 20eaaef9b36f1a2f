// What is known of a trajectory besides its steps.
import type { ComponentChildren } from "preact";
import type { Row } from "./api";
import { Revision, Run, useRevisions } from "./record";
import { label, share, short, Store, Verdict, when } from "./parts";

export function About({ data }: { data: Row }) {
  const { facts, task, scores, samples, twins } = data;
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
      <Others title="Other samples of the task" id={facts.trajectory_id} rows={samples} none="It is the only one in its iteration.">
        {(row) => `${row.stage}, sample ${short(row.sample)}, ${row.steps} steps, ${row.status}`}
      </Others>
      <Others title="Near-duplicates" id={facts.trajectory_id} rows={twins} none="None was found.">
        {(row) => `iteration ${label(row.iteration)}: ${share(row.similarity)} of the steps agree, ${row.why}`}
      </Others>
    </div>
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
