// One trajectory, step by step: by keyboard, slider or by itself.
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { type Row, useAnswer, useStanding } from "../api";
import { About } from "../about";
import { CopyLink, Empty, Failure, label, Loading, several, Store, Verdict } from "../parts";
import { Screen, StepWords } from "../step";
import { Waveform } from "../waveform";

const SPEEDS = [1, 2, 5, 10];

export function Replay({ id }: { id: string }) {
  const standing = useStanding();
  const { data, error, loading } = useAnswer(`/api/trajectories/${encodeURIComponent(id)}`, standing);
  useEffect(() => {
    document.title = `${data?.facts.instruction ?? id} · ${document.body.dataset.workspace}`;
  }, [data, id]);
  if (error) {
    return (
      <>
        <h1>Trajectory</h1>
        <Failure error={error} />
        <p>
          <a href="/trajectories">All trajectories</a>
        </p>
      </>
    );
  }
  if (loading || !data) return <Loading what="the trajectory" />;
  const { facts, steps } = data;
  return (
    <>
      <div class="head">
        <h1>{facts.instruction || facts.trajectory_id}</h1>
        <span class="pills">
          <Verdict success={facts.success} />
          <Store name={facts.destination} />
        </span>
        <span class="push" />
        <CopyLink />
      </div>
      <p class="soft">
        {facts.domain} / {facts.world} · iteration {label(facts.iteration)} · {facts.stage} · {facts.status} · {several(steps.length, "step")}
      </p>
      {data.set_aside.map((row: Row) => (
        <div class="notice">
          <strong>Set aside:</strong> {row.reason}
          {row.detail ? ` (${row.detail})` : ""}
        </div>
      ))}
      {facts.error && (
        <div class="notice">
          <strong>It ended in an error:</strong> {facts.error}
        </div>
      )}
      {steps.length ? <Player steps={steps} iteration={facts.iteration} recorded={facts.source === "recording" ? id : undefined} /> : <Empty>It has no steps here: they were set aside, pruned, or never made.</Empty>}
      <About data={data} />
    </>
  );
}

// iteration: where the screens are, also `recordings/NAME`. recorded: the name of a trajectory that is a person's recorded
// session, which has sound.
export function Player({ steps, iteration, recorded }: { steps: Row[]; iteration: number | string; recorded?: string }) {
  const url = useAddress();
  const [playing, play] = useState(false);
  const [speed, setSpeed] = useState(2);
  const asked = steps.findIndex((step) => String(step.step) === url.searchParams.get("step"));
  const at = Math.max(asked, 0);
  const to = (n: number) => {
    const step = steps[Math.min(Math.max(n, 0), steps.length - 1)];
    go(withValues(new URL(location.href), { step: String(step.step) }), true);
  };

  useEffect(() => {
    if (!playing) return;
    if (at >= steps.length - 1) return play(false);
    const timer = setTimeout(() => to(at + 1), 1000 / speed);
    return () => clearTimeout(timer);
  }, [playing, at, speed]);

  // Before the next key: an effect after painting would still act on the step or the words of before.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      const on = event.target as HTMLElement;
      if (on.closest("input:not([type=range]), textarea, select, [contenteditable], [role=grid]") || event.ctrlKey || event.metaKey || event.altKey) return;
      const moves: Record<string, () => void> = {
        ArrowRight: () => to(at + 1),
        ArrowLeft: () => to(at - 1),
        Home: () => to(0),
        End: () => to(steps.length - 1),
        " ": () => begin(),
      };
      if (!moves[event.key] || (event.key === " " && on.closest("button, a, summary"))) return;
      event.preventDefault();
      moves[event.key]();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  const begin = () => {
    if (!playing && at >= steps.length - 1) to(0);
    play(!playing);
  };
  const step = steps[at];
  const next = steps[at + 1];
  return (
    <section class="player" aria-label="Steps">
      <div>
        <Screen step={step} iteration={iteration} />
        {next?.screen && <link rel="prefetch" as="image" href={`/screens/${iteration}/${next.screen}`} />}
        <div class="controls">
          <button type="button" onClick={() => to(at - 1)} disabled={at === 0} aria-label="Step before">
            ←
          </button>
          <button type="button" class="play" onClick={begin}>
            {playing ? "Stop" : "Play"}
          </button>
          <button type="button" onClick={() => to(at + 1)} disabled={at === steps.length - 1} aria-label="Next step">
            →
          </button>
          <input
            type="range"
            min={0}
            max={steps.length - 1}
            value={at}
            onInput={(event) => to(Number(event.currentTarget.value))}
            aria-label="Step"
            aria-valuetext={`step ${step.step}, ${at + 1} of ${steps.length}: ${step.short}`}
          />
          <select aria-label="Steps a second" value={speed} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>
            {SPEEDS.map((one) => (
              <option value={one}>{one}/s</option>
            ))}
          </select>
        </div>
        <p class="soft small keys">
          <kbd>←</kbd> <kbd>→</kbd> a step, <kbd>Home</kbd> <kbd>End</kbd> the first and the last, <kbd>Space</kbd> plays
        </p>
        {recorded && <Waveform id={recorded} steps={steps} at={at} to={to} />}
      </div>
      <div class="beside">
        <StepWords step={step} of={steps.length} at={at} />
        <ol class="film" aria-label="All steps">
          {steps.map((one, n) => (
            <li>
              <button type="button" aria-current={n === at ? "step" : undefined} onClick={() => to(n)}>
                <span class="number">{one.step}</span> {one.short}
                {one.by && <span class="who">{one.by}</span>}
                {one.reward ? <span class="reward"> {one.reward > 0 ? "+" : ""}{+one.reward.toPrecision(3)}</span> : null}
              </button>
            </li>
          ))}
        </ol>
      </div>
    </section>
  );
}
