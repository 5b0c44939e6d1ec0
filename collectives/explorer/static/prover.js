/* A worker that proves texts by Pyodide, the browser's own Python. It says when it is ready, and then answers
   each text with its verdict. The page starts it with the first text. */

import { loadPyodide } from "./pyodide/pyodide.mjs";

async function prover() {
  const python = await loadPyodide();
  const sources = await self.fetch("pyodide/collectives.zip");
  if (!sources.ok) throw new Error(`collectives.zip: ${sources.status}`);
  python.unpackArchive(await sources.arrayBuffer(), "zip");
  const { verdict } = python.pyimport("collectives.explorer.verdict");
  const { dumps } = python.pyimport("json");
  return ({ text, ranks }) => JSON.parse(dumps(verdict(text, python.toPy(ranks))));
}

const ready = prover();
ready.then(() => self.postMessage("ready"), (error) => self.postMessage({ failed: String(error) }));
self.onmessage = ({ data }) => ready.then((prove) => prove(data))
  .then((verdict) => self.postMessage(verdict), (error) => self.postMessage({ failed: String(error) }));
