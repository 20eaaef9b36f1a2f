// Shadow trees: a page's script may close one, and it is reached all the same.
const treeIn = (host) => treeOf(host) ?? seen(core.trees, host);
/** The shadow trees of all realms, outer ones first; but for closed ones that a document was sent with, which no
 *  script reaches. */
const shadowTrees = () => {
  const found = [];
  const look = (nodes) => {
    for (let i = 0; i < nodes.length; i++) {
      const tree = treeIn(nodes[i]);
      if (tree) push(found, tree);
    }
  };
  for (let r = 0; r < core.realms.length; r++) {
    const shown = reached(core.realms[r]);
    if (shown) look(find(shown, "*"));
  }
  for (let t = 0; t < found.length; t++) look(findIn(found[t], "*"));
  return found;
};

const attach = E.prototype.attachShadow;
replace(E.prototype, "attachShadow", { attachShadow(...args) {
  const tree = apply(attach, this, args);
  remember(core.trees, this, tree);
  return tree;
} }.attachShadow);
