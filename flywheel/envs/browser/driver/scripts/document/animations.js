// CSS animations and transitions, moved by page time.
const lives = new WeakMap(); // animation -> { time, seen }: its own time, and the page time when it was last moved
const drive = (animations) => {
  for (let i = 0; i < animations.length; i++) {
    const animation = animations[i], effect = animation.effect;
    if (animation.timeline && "axis" in animation.timeline) continue; // it follows a scroll
    let life = seen(lives, animation);
    if (!life) {
      if (animation.playState !== "running") continue;
      remember(lives, animation, (life = { time: 0, seen: core.now }));
      animation.pause();
    }
    const held = animation.animationName !== undefined && effect?.target &&
      style(effect.target, effect.pseudoElement).animationPlayState === "paused";
    if (!held) life.time += (core.now - life.seen) * animation.playbackRate;
    life.seen = core.now;
    const end = effect ? effect.getComputedTiming().endTime : 0;
    if (life.time >= end && animation.playState !== "finished") animation.finish();
    else if (life.time < end) animation.currentTime = max(life.time, 0);
  }
};
const driveAnimations = (trees) => {
  for (let r = core.realms.length - 1; r >= 0; r--) {
    const shown = reached(core.realms[r]);
    if (shown) drive(animationsOf(shown));
  }
  for (let t = 0; t < trees.length; t++) drive(animationsIn(trees[t]));
};
