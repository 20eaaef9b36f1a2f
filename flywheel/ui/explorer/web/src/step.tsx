// One step: its screen with the action drawn on it, and what was thought, written and answered.
import { useState } from "preact/hooks";
import type { Row } from "./api";
import { short } from "./parts";

export function Screen({ step, iteration }: { step: Row; iteration: number | string }) {
  const [lost, lose] = useState("");
  const missing = !step.screen || lost === step.screen;
  return (
    <div class="screen" style={{ aspectRatio: `${step.width} / ${step.height}` }}>
      {!missing && (
        <img
          src={`/screens/${iteration}/${step.screen}`}
          alt={`Screen of step ${step.step}: ${step.short}`}
          width={step.width}
          height={step.height}
          onError={() => lose(step.screen)}
        />
      )}
      {missing &&
        (step.observation != null && !step.image_sha256 ? (
          <pre class="read">{step.observation}</pre>
        ) : (
          <p class="none">{step.image_sha256 ? "The screen of this step is not here: it was pruned, or a file of it is missing." : "This step has no screen."}</p>
        ))}
      {/* Made by the server, which escapes what is typed in it. */}
      <div class="drawn" dangerouslySetInnerHTML={{ __html: step.overlay }} />
    </div>
  );
}

export function StepWords({ step, at, of }: { step: Row; at: number; of: number }) {
  return (
    <div class="words">
      <h2 aria-live="polite">
        <span class="soft">
          Step {step.step} <span class="small">({at + 1} of {of})</span>
        </span>{" "}
        {step.short}
      </h2>
      {step.parse_error && <p class="bad">No action: {step.parse_error}</p>}
      {step.thought && (
        <Part title="Thought">
          <p class="thought">{step.thought}</p>
        </Part>
      )}
      {step.said.length > 0 && (
        <Part title="Spoken">
          {step.said.map((one: Row) => (
            <p class="thought">
              “{one.asr_text}”{" "}
              <span class="soft small">
                {short(one.start_s)} to {short(one.end_s)} s{one.confidence == null ? "" : `, understood with ${short(one.confidence)}`}
                {one.low_confidence ? "; hardly understood, not learned from" : ""}
              </span>
            </p>
          ))}
        </Part>
      )}
      {step.tokens.length > 0 ? (
        <Part title="Raw output">
          <Tokens texts={step.tokens} logprobs={step.logprobs ?? []} />
        </Part>
      ) : (
        step.raw_text && (
          <Part title="Raw output">
            <pre>{step.raw_text}</pre>
          </Part>
        )
      )}
      {step.tool_result && (
        <Part title="Answer of the environment">
          <pre>{step.tool_result}</pre>
        </Part>
      )}
      {step.observation != null && step.image_sha256 && (
        <Part title="What was there to read">
          <pre>{step.observation}</pre>
        </Part>
      )}
      <dl class="facts">
        {step.reward != null && (
          <>
            <dt>Reward</dt>
            <dd>{short(step.reward)}</dd>
          </>
        )}
        <dt>End</dt>
        <dd>{step.terminated ? "the task ended" : step.truncated ? "a limit ended it" : "it went on"}</dd>
        <dt>By</dt>
        <dd>
          {step.author}
          {step.weight_version && step.weight_version !== step.author ? <> <code>{step.weight_version}</code></> : null}
        </dd>
        {step.url && (
          <>
            <dt>Page</dt>
            <dd><code>{step.url}</code></dd>
          </>
        )}
        {step.prompt_tokens != null && (
          <>
            <dt>Prompt</dt>
            <dd>{step.prompt_tokens} tokens</dd>
          </>
        )}
        {step.misclick && (
          <>
            <dt>Slip</dt>
            <dd>a click on nothing: shown in later prompts, not imitated</dd>
          </>
        )}
      </dl>
      {step.memory && (
        <details>
          <summary>Memory, as the model saw it</summary>
          <pre>{step.memory.text ?? JSON.stringify(step.memory, null, 2)}</pre>
          {step.memory.steps != null && <p class="soft small">of steps {short(step.memory.steps)}, by {short(step.memory.by)}</p>}
        </details>
      )}
    </div>
  );
}

function Part({ title, children }: { title: string; children: any }) {
  return (
    <>
      <h3>{title}</h3>
      {children}
    </>
  );
}

// The less likely a token was, the stronger its shade.
function Tokens({ texts, logprobs }: { texts: string[]; logprobs: number[] }) {
  const chances = texts.map((_, n) => (logprobs[n] == null ? null : Math.exp(logprobs[n])));
  const known = chances.map((chance, n) => [chance, n] as const).filter(([chance]) => chance !== null) as [number, number][];
  const rarest = known.sort((a, b) => a[0] - b[0])[0];
  return (
    <>
      <pre class="tokens">
        {texts.map((text, n) => (
          <span
            style={{ "--doubt": chances[n] === null ? 0 : 1 - chances[n]! }}
            title={chances[n] === null ? undefined : `${(100 * chances[n]!).toFixed(1)}%, log-probability ${logprobs[n].toFixed(3)}`}
          >
            {text}
          </span>
        ))}
      </pre>
      {rarest && (
        <p class="soft small">
          {texts.length} tokens, log-probability {logprobs.reduce((sum, one) => sum + one, 0).toFixed(2)} together; the least likely is “
          {texts[rarest[1]].trim() || "a blank"}” with {(100 * rarest[0]).toFixed(1)}%. The stronger the shade, the less likely.
        </p>
      )}
    </>
  );
}
