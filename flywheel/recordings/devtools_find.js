// Returns the visible elements that a chain of selectors of Chrome's Recorder leads to: each goes on within the last.
(chain) => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap((one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])]);
  const plain = (text) => (text ?? "").replace(/\s+/g, " ").trim();
  const ways = {
    pierce: (root, rest) => all(root).filter((one) => one.matches(rest)),
    xpath: (root, rest) => {
      const found = document.evaluate(rest, root, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE);
      return Array.from({length: found.snapshotLength}, (_, number) => found.snapshotItem(number));
    },
    text: (root, rest) => {
      const holding = all(root).filter((one) => plain(one.textContent).includes(plain(rest)));
      return holding.filter((one) => !holding.some((other) => other !== one && one.contains(other)));
    },
    aria: (root, rest) => {
      const wanted = Object.fromEntries([...rest.matchAll(/\[\s*(role|name)\s*=\s*"([^"]*)"\s*\]/g)].map((one) => [one[1], one[2]]));
      const name = plain(rest.replace(/\[\s*(role|name)\s*=\s*"[^"]*"\s*\]/g, "")) || plain(wanted.name);
      return all(root).filter((one) => (!name || plain(one.computedName) === name) && (!wanted.role || one.computedRole === wanted.role));
    },
  };
  let found = [document];
  for (const selector of chain) {
    const [, kind, rest] = /^(?:(aria|xpath|text|pierce)\/)?([^]*)$/.exec(selector);
    const roots = found.map((one) => one.shadowRoot ?? one);
    found = [...new Set(roots.flatMap((root) => (kind ? ways[kind](root, rest) : [...root.querySelectorAll(rest)])))];
  }
  return found.filter((one) => one.getClientRects?.().length);
}
