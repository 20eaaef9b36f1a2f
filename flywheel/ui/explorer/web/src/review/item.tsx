// One sample: what happened, what the reviewer says of it, and after that what others and scorers say.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { About } from "../about";
import { post, type Row, useAnswer } from "../api";
import { Player } from "../pages/replay";
import { Empty, Failure, label, Loading, several, Store, Verdict, when } from "../parts";

interface Props {
  id: string;
  reviewer: string;
  queue: string;
  choices: Row;
  next: () => boolean;
  // moved: the next sample is shown already.
  onSaid: (moved?: boolean) => void;
}

export function Item({ id, reviewer, queue, choices, next, onSaid }: Props) {
  const [said, say] = useState(0);
  const { data, error } = useAnswer(`/api/review/items/${encodeURIComponent(id)}?reviewer=${encodeURIComponent(reviewer)}`, said);
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="the sample" />;
  const { facts, steps, mine, owner, me, seen } = data;
  return (
    <article aria-label="Sample">
      <h2 class="asked">{facts.instruction || facts.trajectory_id}</h2>
      <p class="soft">
        {facts.domain} / {facts.world} · iteration {label(facts.iteration)} · {facts.stage === "ingest" ? "a recording" : "a rollout"} · {several(steps.length, "step")}
      </p>
      <Bar {...{ id, reviewer, queue, choices, mine, next, owner, me, seen }} onSaid={(moved) => (say(said + 1), onSaid(moved))} again={() => say(said + 1)} />
      {mine && <Others mine={mine} others={data.others} facts={facts} />}
      {steps.length ? <Player steps={steps} iteration={facts.iteration} /> : <Empty>It has no steps here: they were set aside, pruned, or never made.</Empty>}
      {mine ? <About data={data} /> : <p class="soft">What scorers and others say of it is shown when you have said what you see.</p>}
    </article>
  );
}

interface BarProps extends Props {
  mine: Row | null;
  owner: string;
  me: string;
  // Others who have labelled it, as this page shows it: who else has since is told before another label counts.
  seen: string[];
  again: () => void;
}

const GO_ON = "flywheel-go-on";

function Bar({ id, reviewer, queue, choices, mine, next, owner, me, seen, onSaid, again }: BarProps) {
  const theirs = !!owner && owner !== me;
  const [onward, goOnward] = useState(() => localStorage.getItem(GO_ON) === "yes");
  const [comment, setComment] = useState<string>(mine?.comment ?? "");
  const [state, set] = useState<{ error?: string; told?: string; busy?: boolean }>({});
  const field = useRef<HTMLTextAreaElement>(null);
  const say = async (chosen: string) => {
    if (state.busy || theirs) return;
    set({ busy: true });
    try {
      await post("/api/review/labels", { trajectory_id: id, label: chosen, comment, reviewer, queue, seen });
      set({ told: `Kept: ${chosen}` });
      onSaid(onward && next());
    } catch (error) {
      set({ error: (error as Error).message });
      again();
    }
  };
  const give = async (to: string) => {
    try {
      await post("/api/review/owners", { trajectory_ids: [id], owner: to, reviewer, take_over: theirs });
      set({ told: to ? "It is yours to label." : "It is nobody’s now." });
      onSaid();
    } catch (error) {
      set({ error: (error as Error).message });
    }
  };
  const goOn = () => next() || set({ told: "No other sample of this queue is open for you." });
  // Before the next key: an effect after painting would still act on the step or the words of before.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      const on = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape" && on === field.current) return field.current!.blur();
      if (on.closest("input:not([type=range], [type=checkbox]), textarea, select, [contenteditable], [role=grid]")) return;
      const chosen = choices.labels[Number(event.key) - 1];
      const act = chosen ? () => say(chosen) : ({ n: goOn, c: () => field.current!.focus(), t: mine ? undefined : () => give(owner === me ? "" : me) } as Record<string, (() => unknown) | undefined>)[event.key.toLowerCase()];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  return (
    <section class="card verdict" aria-label="Your label">
      <div class="says">
        {choices.labels.map((name: string, n: number) => (
          <button type="button" class={mine?.label === name ? "main" : ""} aria-pressed={mine?.label === name} aria-keyshortcuts={String(n + 1)} disabled={state.busy || theirs} onClick={() => say(name)}>
            <kbd>{n + 1}</kbd> {name[0].toUpperCase() + name.slice(1)}
          </button>
        ))}
        <span class="push" />
        {!mine && (
          <button type="button" aria-keyshortcuts="t" onClick={() => give(owner === me ? "" : me)}>
            <kbd>T</kbd> {owner === me ? "Release" : theirs ? "Take over" : "Take"}
          </button>
        )}
        <button type="button" aria-keyshortcuts="n" onClick={goOn}>
          <kbd>N</kbd> Next
        </button>
        <label class="small">
          <input type="checkbox" checked={onward} onChange={(event) => (localStorage.setItem(GO_ON, event.currentTarget.checked ? "yes" : ""), goOnward(event.currentTarget.checked))} /> go on after a label
        </label>
      </div>
      <label class="comment">
        <span>
          <kbd>C</kbd> Comment
        </span>
        <textarea ref={field} rows={1} maxLength={choices.comment} value={comment} aria-keyshortcuts="c" placeholder="Kept with the label" title="Esc leaves the field" onInput={(event) => setComment(event.currentTarget.value)} />
      </label>
      {state.error && <Failure error={state.error} />}
      <p class="small soft told" role="status">
        {state.told ?? (mine ? `You said “${mine.label}”, ${when(mine.at)} UTC. Another label replaces it.` : theirs ? `${owner} is to label it: go on, or take it over.` : "Was the task solved, by what you see?")}
        {!mine && owner === me && " It is yours."}
        {!mine && seen.length > 0 && ` ${seen.join(" and ")} labelled it already.`}
      </p>
    </section>
  );
}

// What was hidden until now.
function Others({ mine, others, facts }: { mine: Row; others: Row[]; facts: Row }) {
  return (
    <div class="notice">
      <strong>You: {mine.label}.</strong>{" "}
      {others.map((one) => (
        <span>
          {one.reviewer}: {one.label}
          {one.comment ? ` (“${one.comment}”)` : ""}
          {one.queue === "decide" ? ", who decided" : ""}.{" "}
        </span>
      ))}
      {others.length === 0 && "No other reviewer has labelled it yet. "}
      It was routed: <Verdict success={facts.success} /> <Store name={facts.destination} /> {facts.reason}
    </div>
  );
}
