// Builds the pages into ../static, and writes there which sources they were built from (tests hold them together).
import { createHash } from "node:crypto";
import { cp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const out = new URL("../static/", import.meta.url);

async function sources() {
  const own = (await readdir("src", { recursive: true, withFileTypes: true }))
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`.replaceAll("\\", "/"));
  const hash = createHash("sha256");
  for (const name of [...own, "build.mjs", "package-lock.json", "package.json", "tsconfig.json"].sort()) {
    hash.update(`${name}\0`).update(await readFile(name)).update("\0");
  }
  return hash.digest("hex");
}

await rm(out, { recursive: true, force: true });
const { metafile } = await build({
  entryPoints: { app: "src/main.tsx" },
  outdir: out.pathname,
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  chunkNames: "[name]-[hash]",
  logLevel: "warning",
  metafile: true,
});
// The licences of all packages that are in it, as they ask for.
const packages = new Set(Object.keys(metafile.inputs).flatMap((name) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(name)?.[1] ?? []));
const licences = [];
for (const name of [...packages].sort()) {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
  const files = (await readdir(folder, { withFileTypes: true })).filter((entry) => entry.isFile()).map((entry) => entry.name);
  const texts = files.filter((file) => /^(licen[cs]e|notice|copying)/i.test(file)).sort();
  const found = await Promise.all(texts.map((file) => readFile(`${folder}/${file}`, "utf8")));
  licences.push([`${name} ${version} (${license})`, ...found.map((text) => text.trim())].join("\n\n"));
}
await writeFile(new URL("licences.txt", out), `${licences.join(`\n\n${"-".repeat(80)}\n\n`)}\n`);
await cp("src/app.css", new URL("app.css", out));
await cp("src/wheel.svg", new URL("wheel.svg", out));
await writeFile(new URL("built.json", out), `${JSON.stringify({ sources: await sources() })}\n`);
