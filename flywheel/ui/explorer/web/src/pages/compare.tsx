// Two iterations by the tasks that one of them alone solves, and two trajectories step by step.
import { useLayoutEffect } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { type Row, useAnswer, useStanding } from "../api";
import { CopyLink, Empty, Failure, label, Loading, several, Store, Verdict } from "../parts";
import { Screen, StepWords } from "../step";

export function Compare() {
  const url = useAddress();
  const a = url.searchParams.get("a");
  const b = url.searchParams.get("b");
  return (
    <>
      <div class="head">
        <h1>Compare</h1>
        <span class="push" />
        <CopyLink />
      </div>
      {a && b ? <Beside a={a} b={b} /> : <Between />}
    </>
  );
}

function Between() {
  const url = useAddress();
  const standing = useStanding();
  const known = useAnswer("/api/iterations", standing);
  const all: number[] = known.data?.iterations.map((row: Row) => row.iteration) ?? [];
  const last = Number(url.searchParams.get("to") ?? all.at(-1));
  const first = Number(url.searchParams.get("from") ?? all.at(-2) ?? all.at(-1));
  const { data, error, loading } = useAnswer<Row[]>(all.length ? `/api/held-out/${first}/${last}` : null, standing);
  if (known.error) return <Failure error={known.error} />;
  if (!known.data) return <Loading what="the iterations" />;
  if (all.length < 2) return <Empty>Two iterations are needed to compare them; {all.length ? "there is one" : "there is none yet"}.</Empty>;
  const choose = (name: string, value: number, text: string) => (
    <label>
      {text}{" "}
      <select value={value} onChange={(event) => go(withValues(url, { [name]: event.currentTarget.value }))}>
        {all.map((k) => (
          <option value={k}>{label(k)}</option>
        ))}
      </select>
    </label>
  );
  const evaluated = (k: number) => known.data!.held_out_success.some((row: Row) => row.iteration === k);
  const group = (title: string, before: boolean, after: boolean) => (
    <Tasks title={title} rows={data!.filter((row) => row.before === before && row.after === after)} open={before !== after} />
  );
  return (
    <>
      <div class="choices">
        {choose("from", first, "Iteration")}
        {choose("to", last, "beside")}
      </div>
      <p class="soft">
        Held-out tasks that both have played: the newest model after iteration {label(first)}
        {data?.[0] && <> (<code>{data[0].model_before}</code>)</>}, and the one that iteration {label(last)} made
        {data?.[0] && <> (<code>{data[0].model_after}</code>, {data[0].promoted == null ? "not decided yet" : data[0].promoted ? "promoted" : "not promoted"})</>}. One counts as solved where more than half of its episodes were.
      </p>
      {error && <Failure error={error} />}
      {loading && <Loading what="the tasks" />}
      {data && data.length === 0 && <Empty>{evaluated(last) ? "These two models have no held-out task in common: the tasks, or the settings under which they are played, changed in between." : `The model of iteration ${label(last)} is not evaluated yet.`}</Empty>}
      {data && data.length > 0 && (
        <>
          {group("Lost", true, false)}
          {group("Gained", false, true)}
          {group("Solved by both", true, true)}
          {group("Solved by none", false, false)}
        </>
      )}
    </>
  );
}

function Tasks({ title, rows, open }: { title: string; rows: Row[]; open: boolean }) {
  return (
    <details class="card tasks" open={open}>
      <summary>
        {title}: {several(rows.length, "task")}
      </summary>
      {rows.length > 0 && (
        <ul class="others">
          {rows.map((row) => (
            <li>
              <a href={`/compare?a=${encodeURIComponent(row.trajectory_before)}&b=${encodeURIComponent(row.trajectory_after)}`}>{row.instruction || row.task_id}</a>{" "}
              <span class="soft small">
                {row.domain} / {row.world}
              </span>
            </li>
          ))}
        </ul>
      )}
    </details>
  );
}

function Beside({ a, b }: { a: string; b: string }) {
  const url = useAddress();
  const one = useAnswer(`/api/trajectories/${encodeURIComponent(a)}`);
  const other = useAnswer(`/api/trajectories/${encodeURIComponent(b)}`);
  const most = Math.max(one.data?.steps.length ?? 0, other.data?.steps.length ?? 0, 1);
  const at = Math.min(Math.max(Number(url.searchParams.get("at") ?? 0) || 0, 0), most - 1);
  const to = (n: number) => go(withValues(new URL(location.href), { at: String(Math.min(Math.max(n, 0), most - 1)) }), true);
  // Before the next key: an effect after painting would still act on the step or the words of before.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      const on = event.target as HTMLElement;
      const move = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: most - 1 }[event.key];
      if (move === undefined || on.closest("input:not([type=range]), textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      to(move);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  return (
    <>
      <div class="controls">
        <button type="button" onClick={() => to(at - 1)} disabled={at === 0} aria-label="Step before">
          ←
        </button>
        <button type="button" onClick={() => to(at + 1)} disabled={at >= most - 1} aria-label="Next step">
          →
        </button>
        <input type="range" min={0} max={most - 1} value={at} onInput={(event) => to(Number(event.currentTarget.value))} aria-label="Step" aria-valuetext={`${at + 1} of ${most}`} />
      </div>
      <div class="two">
        <Side answer={one} at={at} />
        <Side answer={other} at={at} />
      </div>
    </>
  );
}

function Side({ answer, at }: { answer: { data?: Row; error?: string }; at: number }) {
  if (answer.error) return <Failure error={answer.error} />;
  if (!answer.data) return <Loading what="the trajectory" />;
  const { facts, steps } = answer.data;
  const step = steps[at];
  return (
    <section aria-label={`Iteration ${label(facts.iteration)}, ${facts.trajectory_id}`}>
      <p>
        <a href={`/trajectories/${encodeURIComponent(facts.trajectory_id)}`}>{facts.instruction || facts.trajectory_id}</a>
      </p>
      <p class="soft small">
        <Verdict success={facts.success} /> <Store name={facts.destination} /> iteration {label(facts.iteration)} · {facts.stage} · {facts.model ?? facts.author} · {several(steps.length, "step")}
      </p>
      {step ? (
        <>
          <Screen step={step} iteration={facts.iteration} />
          <StepWords step={step} at={at} of={steps.length} />
        </>
      ) : (
        <Empty>It ended after {several(steps.length, "step")}.</Empty>
      )}
    </section>
  );
}
