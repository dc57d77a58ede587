// @ts-check
// Judges pages in a real browser; see `page-check.sh`.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const modules = createRequire(process.env.MODULES + "/");
const puppeteer = modules("puppeteer-core");
const axe = readFileSync(modules.resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = [1280, 390];
let faults = 0;

/** @param {string} page @param {string} what */
function fault(page, what) {
    faults += 1;
    console.error(`${page}: ${what}`);
}

/** @param {any} browser @param {string} path */
async function check(browser, path) {
    const page = await browser.newPage();
    page.on("console", (/** @type {any} */ message) => {
        if (message.type() === "error") fault(path, `console: ${message.text()}`);
    });
    page.on("pageerror", (/** @type {any} */ error) => fault(path, `script: ${error}`));
    page.on("request", (/** @type {any} */ request) => {
        if (!/^(file|data):/.test(request.url())) fault(path, `it asks for ${request.url()}`);
    });
    for (const scheme of ["light", "dark"]) {
        await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
        for (const width of WIDTHS) {
            await page.setViewport({ width, height: 900 });
            await page.goto("file://" + resolve(path), { waitUntil: "load" });
            await page.waitForSelector("html[data-ready=true]", { timeout: 5000 });
            const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
            if (wide > 0) fault(path, `it is ${wide} pixels wider than a window of ${width}`);
            // Of a page in a file, whose policy allows no other script.
            const found = await page.evaluate(axe + "; axe.run({ resultTypes: ['violations'] })");
            for (const one of found.violations.filter((/** @type {any} */ one) => ["serious", "critical"].includes(one.impact))) {
                fault(path, `axe, ${scheme}, ${width}: ${one.help}: ${one.nodes.slice(0, 3).map((/** @type {any} */ node) => node.target.join(" ")).join("; ")}`);
            }
        }
    }
    const seen = await page.evaluate(() => {
        /** @param {string} name */
        const all = (name) => [...document.querySelectorAll(name)];
        const links = all("nav a").map((link) => (link.getAttribute("href") || "").slice(1));
        const tables = all("table").filter((table) => /** @type {HTMLTableElement} */ (table).tBodies[0].rows.length > 1);
        const unsorted = tables.filter((one) => {
            const table = /** @type {HTMLTableElement} */ (one);
            const column = [...table.tBodies[0].rows[0].cells].findIndex((cell) => cell.dataset.n !== undefined);
            if (column < 0) return false;
            const button = table.querySelectorAll("thead button")[column];
            /** @type {HTMLElement} */ (button).click();
            /** @type {HTMLElement} */ (button).click();
            const numbers = [...table.tBodies[0].rows].map((row) => Number(row.cells[column].dataset.n));
            return numbers.some((number, at) => at > 0 && number > numbers[at - 1]);
        });
        const filters = all(".filter input").filter((one) => {
            const input = /** @type {HTMLInputElement} */ (one);
            input.value = "no row has this";
            input.dispatchEvent(new Event("input"));
            const rows = [...(input.closest("label")?.nextElementSibling?.querySelectorAll("tbody tr") || [])];
            const isWrong = rows.some((row) => !(/** @type {HTMLElement} */ (row).hidden));
            input.value = "";
            input.dispatchEvent(new Event("input"));
            return isWrong || rows.some((row) => /** @type {HTMLElement} */ (row).hidden);
        });
        return {
            sections: all("main section").map((section) => section.id),
            broken: links.filter((id) => !document.getElementById(id)),
            plots: all(".plot").length,
            drawn: all(".plot canvas").length,
            unsorted: unsorted.length,
            filters: filters.length,
            pictures: all("img").filter((image) => !(/** @type {HTMLImageElement} */ (image).complete)).length,
        };
    });
    if (seen.broken.length) fault(path, `links lead nowhere: ${seen.broken}`);
    if (seen.plots !== seen.drawn) fault(path, `${seen.drawn} of ${seen.plots} curves are drawn`);
    if (seen.unsorted) fault(path, `${seen.unsorted} tables are not sorted by a click`);
    if (seen.filters) fault(path, `${seen.filters} tables are not filtered`);
    if (seen.pictures) fault(path, `${seen.pictures} pictures are not shown`);
    if (!path.endsWith("compare.html")) for (const id of ["account", "settings", "next"]) if (!seen.sections.includes(id)) fault(path, `it has no section ${id}`);
    console.log(`${path}: ${seen.sections.length} sections, ${seen.drawn} curves`);
    await page.close();
}

const browser = await puppeteer.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"], acceptInsecureCerts: false });
try {
    for (const path of process.argv.slice(2)) await check(browser, path);
} finally {
    await browser.close();
}
if (faults) process.exit(1);
