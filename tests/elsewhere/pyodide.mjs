// Run a Python program in Pyodide: node pyodide.mjs FOLDER_OF_PYODIDE WHEEL PROGRAM.py
// The folder is that of the package of npm, which has the standard library, and no NumPy.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, wheel, program] = process.argv.slice(2).map((each) => resolve(each));
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const pyodide = await loadPyodide({ indexURL: `${folder}/` });
pyodide.unpackArchive(new Uint8Array(readFileSync(wheel)), "wheel");
pyodide.runPython(readFileSync(program, "utf-8"));
