// The sound of a recorded session: its waveform, what was heard in it, and the steps that follow it as it plays.
import { useEffect, useRef, useState } from "preact/hooks";
import type WaveSurfer from "wavesurfer.js";
import { type Row, useAnswer } from "./api";
import { several, short, useDark } from "./parts";

interface Props {
  id: string;
  steps: Row[];
  at: number;
  to: (n: number) => void;
}

// In words: what the times of utterances, which are the screen's, and those of the sound have to do with one another.
function aside(offset: number | null): string {
  if (offset === null) return ", not marked: the sound is another one than was taken in";
  return `; the microphone's clock is ${short(Math.abs(offset))} s ${offset < 0 ? "ahead of" : "behind"} the screen's`;
}

export function Waveform({ id, steps, at, to }: Props) {
  const { data, error, loading } = useAnswer(`/api/trajectories/${encodeURIComponent(id)}/waveform`);
  const place = useRef<HTMLDivElement>(null);
  const player = useRef<WaveSurfer | null>(null);
  const [playing, play] = useState(false);
  const [failed, fail] = useState("");
  const dark = useDark();
  const offset: number | null = data?.offset_s ?? null;
  const said = steps.flatMap((step, n) => step.said.map((one: Row) => ({ ...one, at: n })));
  const now = useRef({ at, to, said });
  now.current = { at, to, said };

  useEffect(() => {
    if (!data) return;
    let over = false;
    const style = getComputedStyle(document.documentElement);
    const own = (name: string) => style.getPropertyValue(`--${name}`).trim();
    Promise.all([import("wavesurfer.js"), import("wavesurfer.js/plugins/regions")]).then(([{ default: Surfer }, { default: Regions }]) => {
      if (over) return;
      const regions = Regions.create();
      const made = Surfer.create({
        container: place.current!,
        height: 56,
        url: `/sound/${encodeURIComponent(id)}`,
        peaks: [data.peaks],
        duration: data.seconds,
        normalize: true,
        waveColor: own("soft"),
        progressColor: own("accent"),
        cursorColor: own("accent"),
        cspNonce: document.body.dataset.nonce,
        plugins: [regions],
      });
      player.current = made;
      const stretch = (one: Row) => [one.start_s - offset!, one.end_s - offset!];
      made.on("ready", () => {
        for (const one of offset === null ? [] : now.current.said) {
          const [start, end] = stretch(one);
          regions.addRegion({ start, end, drag: false, resize: false, color: "color-mix(in srgb, var(--accent) 18%, transparent)", id: `${one.at}` });
        }
        follow();
      });
      regions.on("region-clicked", (region) => now.current.to(Number(region.id)));
      made.on("play", () => play(true));
      made.on("pause", () => play(false));
      made.on("error", () => fail("the browser cannot play this sound"));
      made.on("timeupdate", (time) => {
        if (offset === null || !made.isPlaying()) return;
        const heard = now.current.said.find((one) => stretch(one)[0] <= time && time < stretch(one)[1]);
        if (heard && heard.at !== now.current.at) now.current.to(heard.at);
      });
    });
    return () => {
      over = true;
      player.current?.destroy();
      player.current = null;
    };
  }, [data, dark]);

  // Who goes to a step is taken to what was said with it.
  const follow = () => {
    const first = now.current.said.find((one) => one.at === now.current.at);
    if (player.current && first && offset !== null && !player.current.isPlaying()) player.current.setTime(Math.max(0, first.start_s - offset));
  };
  useEffect(follow, [at]);

  if (error) return <p class="soft small">Its sound: {error}</p>;
  if (loading || !data) return <p class="soft small">Its sound is being read…</p>;
  return (
    <section class="sound" aria-label="Sound">
      <div class="controls">
        <button type="button" onClick={() => player.current?.playPause()}>
          {playing ? "Pause" : "Listen"}
        </button>
        <div class="waveform" ref={place} />
      </div>
      <p class="soft small">
        {failed || `${short(data.seconds)} s, ${several(said.length, "utterance")}${aside(offset)}`}
      </p>
    </section>
  );
}
