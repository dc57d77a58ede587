// @ts-check
// Judges pages in a real browser, or makes pictures of them; see `page-check.sh`.
import { spawn } from "node:child_process";
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

/**
 * A run with a page, which the browser sees from its beginning to its end without loading it anew.
 * @param {any} browser
 * @param {string[]} words the end as the page says it, then the command
 */
async function live(browser, [end, ...command]) {
    const run = spawn(command[0], command.slice(1), { stdio: ["ignore", "ignore", "pipe"] });
    let said = "";
    /** @type {string} */
    const address = await new Promise((found, failed) => {
        run.stderr.on("data", (data) => {
            said += data;
            const address = said.match(/page at (http:\S+)/);
            if (address) found(address[1]);
        });
        run.on("exit", () => failed(new Error("it has served no page: " + said)));
    });
    const page = await browser.newPage();
    page.on("pageerror", (/** @type {any} */ error) => fault(address, `script: ${error}`));
    await page.goto(address, { waitUntil: "domcontentloaded" });
    const top = () => page.evaluate(() => document.getElementById("top")?.textContent || "");
    const first = await top();
    if (first.includes(end)) fault(address, "the run was over before it was seen");
    await page.waitForFunction((/** @type {string} */ end) => document.getElementById("top")?.textContent?.includes(end), { timeout: 120000 }, end)
        .catch(async () => fault(address, `it has not come to "${end}", but to: ${await top()}`));
    console.log(`${command.join(" ")}: seen to its end`);
    await page.close();
}

/**
 * @param {any} browser
 * @param {string[]} words
 */
async function picture(browser, [file, path, selector]) {
    const page = await browser.newPage();
    await page.setViewport({ width: 1100, height: 1000 });
    await page.goto("file://" + resolve(path), { waitUntil: "load" });
    await page.waitForSelector("html[data-ready=true]", { timeout: 5000 });
    const found = selector === "body" ? page : await page.$(selector);
    await found.screenshot({ path: file, quality: 85 });
}

const browser = await puppeteer.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"], acceptInsecureCerts: false });
try {
    const words = process.argv.slice(2);
    if (words[0] === "--picture") await picture(browser, words.slice(1));
    else if (words[0] === "--live") await live(browser, words.slice(1));
    else for (const path of words) await check(browser, path);
} finally {
    await browser.close();
}
if (faults) process.exit(1);
